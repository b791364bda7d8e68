"""``task=judge_training``: trains the refusal classifier on XSTest's labels, and measures it."""

from dataclasses import dataclass

from rich.console import Console

from experiments.benchmarks.xstest import given, read_completions
from experiments.config import Run
from experiments.evaluation.classifier_training import ClassifierSettings, fit, joined, most_chosen
from experiments.evaluation.judge_agreement import features, offline_judges
from experiments.judges.refusal_classifier import SHIPPED
from experiments.report import judge_card
from experiments.report.table import terminal
from experiments.runs.directory import open_run


@dataclass(frozen=True)
class TrainRefusalClassifier:
    """The task that made the shipped weights. ``root`` holds XSTest's labelled completions."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes the weights and the agreement into a run directory.

        The weights are trained on all models, with the settings most often chosen when one of them is left out.
        """
        completions = read_completions(given(self.root))
        judges = offline_judges(completions, seed=run.seed, draws=run.draws)
        chosen = judges["refusal_classifier"]["settings_without_the_model"]
        settings = most_chosen({model: ClassifierSettings(**one) for model, one in chosen.items()})
        trained_on = f"XSTest v2, labelled completions of {', '.join(completions)} (CC BY 4.0)"
        weights = fit(joined(list(features(completions).values())), settings, trained_on=trained_on)
        card = judge_card.judge_card(judges)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            (store.path / SHIPPED).write_text(weights.to_json(), encoding="utf-8")
            (store.path / "agreement.md").write_text(judge_card.markdown(card), encoding="utf-8")
            store.finish()
        console = Console()
        console.print(terminal(judge_card.table(card)))
        terms = f"{settings}, {len(weights.terms)} terms"
        for line in (terms, card["attribution"], f"weights: {store.path / SHIPPED}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
