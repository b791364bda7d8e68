"""``task=judge_training`` and ``task=judge_validation``: trains the refusal classifier, and measures refusal judges.

Both read answers that people have labelled: XSTest's completions, and MSTS's answers about pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.benchmarks import msts, xstest
from experiments.config import Run
from experiments.evaluation.judge_agreement import (
    MSTS,
    XSTEST,
    Labelled,
    annotators,
    by_authors,
    by_language,
    measured,
    offline_judges,
    read_by,
    read_labelled,
    trained,
)
from experiments.judges.refusal_classifier import PARTS, SHIPPED
from experiments.report import judge_card
from experiments.report.table import say, terminal
from experiments.runs.resumption import open_run
from interp.errors import UserError

NAMES = {XSTEST: "XSTest v2", MSTS: "MSTS"}


def folders(root: str | Sequence[str] | None) -> list[Path]:
    """The folders that ``task.root`` names, one or several.

    Raises:
        UserError: none was given.
    """
    if not root:
        raise UserError(
            f"task.root: no folder given; labelled answers are XSTest's, published at {xstest.REPOSITORY}, and MSTS's, "
            f"published at {msts.REPOSITORY}; task.root=<clone>, or task.root=[<clone>,<clone>] for both"
        )
    return [Path(one) for one in ([root] if isinstance(root, str) else root)]


@dataclass(frozen=True)
class TrainRefusalClassifier:
    """The task that made the shipped weights. ``root`` names a clone of XSTest and one of MSTS."""

    root: Any = None

    def __call__(self, run: Run) -> None:
        """Writes the weights into a run directory: of all answers, and without each fold of prompts.

        Raises:
            UserError: answers of one of the two sets are missing.
        """
        rows, _ = read_labelled(folders(self.root))
        with (
            Console().status("the classifier is trained"),
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store,
        ):
            classifier = trained(rows, trained_on=trained_on(rows))
            path = store.path / SHIPPED
            path.write_text(classifier.to_json(), encoding="utf-8")
            store.finish()
        parts = {name: getattr(classifier, name) for name in PARTS}
        say(
            *(f"{name}: {len(part.whole.terms)} terms, {len(part.prompts)} prompts, threshold {part.whole.threshold:g}"
              for name, part in parts.items()),
            judge_card.ATTRIBUTION,
            "how well it agrees with people: task=judge_validation",
            f"weights: {path}",
        )  # fmt: skip


def trained_on(rows: Sequence[Labelled]) -> str:
    """Which sets and models the answers are of."""
    parts = [
        f"{name}, labelled answers of {', '.join(dict.fromkeys(row.model for row in rows if row.source == source))}"
        for source, name in NAMES.items()
    ]
    return f"{'; '.join(parts)} (CC BY 4.0)"


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` names a clone of XSTest or of MSTS, or both; a judge named by the run is measured as well."""

    root: Any = None

    def __call__(self, run: Run) -> None:
        """Writes judge_card.json and judge_card.md into a run directory, and prints the table.

        Raises:
            UserError: no labelled answers in ``root``, or the run's judge does not read refusals.
        """
        rows, others = read_labelled(roots := folders(self.root))
        if run.judge_named and run.judge.kind != "refusal":
            raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, and the labels are of refusals; "
                            "choose a refusal judge or none")  # fmt: skip
        settings: dict[str, Any] = {"seed": run.seed, "draws": run.draws}
        with Console().status("the classifier is trained without each model and fold of prompts"):
            judges = offline_judges(rows, others, **settings)
        judges |= self._authors(roots, rows, settings)
        if run.judge_named and run.judge.name not in judges:
            found = measured(rows, read_by(run.judge, rows), **settings)
            judges[run.judge.name] = found | {"languages": by_language(run.judge, others, **settings)}
        people = annotators(rows, **settings)
        card = judge_card.judge_card(judges, people, draws=run.draws, seed=run.seed)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            store.write_json("judge_card.json", card)
            (store.path / "judge_card.md").write_text(judge_card.markdown(card), encoding="utf-8")
            store.finish()
        made = f"judge card: {store.path / 'judge_card.md'}"
        say(*map(terminal, judge_card.tables_of(card)), card["method"], card["attribution"], made)

    def _authors(self, roots: Sequence[Path], rows: Sequence[Labelled], settings: dict[str, Any]) -> dict[str, Any]:
        """XSTest's authors' own judges, on XSTest alone."""
        of_xstest = [row for row in rows if row.source == XSTEST]
        models = list(dict.fromkeys(row.model for row in of_xstest))
        return {
            name: measured(of_xstest, by_authors(verdicts, of_xstest), **settings)
            for root in roots if models
            for name, verdicts in xstest.read_authors_verdicts(root, models).items()
        }  # fmt: skip
