"""``task=judge_training`` and ``task=judge_validation``: trains the refusal classifier, and measures refusal judges.

Both read XSTest's labelled completions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.benchmarks.xstest import REPOSITORY, given, read_authors_verdicts, read_completions, twins
from experiments.config import Run
from experiments.evaluation.classifier_training import train
from experiments.evaluation.judge_agreement import by_authors, features, measured, offline_judges, read_by
from experiments.judges.refusal_classifier import SHIPPED
from experiments.report import judge_card
from experiments.report.table import say, terminal
from experiments.runs.resumption import open_run
from interp.errors import UserError


@dataclass(frozen=True)
class TrainRefusalClassifier:
    """The task that made the shipped weights. ``root`` holds XSTest's labelled completions and its prompts."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes the weights into a run directory: of all answers, and without each fold of prompts.

        The threshold is the median of those chosen with models and prompts left out, with which
        ``task=judge_validation`` measures how well the classifier agrees with people.
        """
        completions, groups = read_completions(given(self.root)), twins(given(self.root))
        trained_on = f"XSTest v2, labelled completions of {', '.join(completions)} (CC BY 4.0)"
        answers = features(completions, groups)
        with (
            Console().status("the classifier is trained"),
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store,
        ):
            classifier = train(answers, trained_on=trained_on)
            path = store.path / SHIPPED
            path.write_text(classifier.to_json(), encoding="utf-8")
            store.finish()
        thresholds = ", ".join(f"{one.threshold:g}" for one in (classifier.whole, *classifier.without))
        say(
            f"{len(classifier.whole.terms)} terms, {len(classifier.prompts)} prompts, threshold {thresholds}",
            f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {REPOSITORY}",
            "how well it agrees with people: task=judge_validation",
            f"weights: {path}",
        )  # fmt: skip


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` holds XSTest's labelled completions; a refusal judge named by the run is measured as well."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes judge_card.json and judge_card.md into a run directory, and prints the table.

        Raises:
            UserError: no completions in ``root``, or the run's judge does not read refusals.
        """
        completions, groups = read_completions(given(self.root)), twins(given(self.root))
        with Console().status("the classifier is trained without each model and fold of prompts"):
            settings: dict[str, Any] = {"seed": run.seed, "draws": run.draws}
            judges = offline_judges(completions, groups, **settings)
        for name, verdicts in read_authors_verdicts(Path(given(self.root)), completions).items():
            judges[name] = measured(completions, by_authors(verdicts, completions), **settings)
        if run.judge_named and run.judge.name not in judges:
            if run.judge.kind != "refusal":
                raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, XSTest's labels are of "
                                "refusals; choose a refusal judge or none")  # fmt: skip
            readings = read_by(run.judge, completions)
            judges[run.judge.name] = measured(completions, readings, **settings)
        card = judge_card.judge_card(judges, draws=run.draws, seed=run.seed)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            store.write_json("judge_card.json", card)
            (store.path / "judge_card.md").write_text(judge_card.markdown(card), encoding="utf-8")
            store.finish()
        made = f"judge card: {store.path / 'judge_card.md'}"
        say(terminal(judge_card.table(card)), card["method"], card["attribution"], made)
