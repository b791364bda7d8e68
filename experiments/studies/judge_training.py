"""``+exp=train_refusal_classifier``: fits the refusal classifier anew on XSTest's labels, and measures it."""

from dataclasses import dataclass

from rich.console import Console

from experiments.benchmarks.xstest import given, read_completions
from experiments.config import Run
from experiments.evaluation.judge_agreement import features, offline_judges
from experiments.judges.refusal_classifier import SHIPPED, Settings, fit, joined, most_chosen
from experiments.runs.directory import open_run
from experiments.studies.judge_validation import ATTRIBUTION, METHOD, TITLE, markdown, terminal


@dataclass(frozen=True)
class TrainRefusalClassifier:
    """The task. ``root`` holds XSTest's labelled completions; the weights that are shipped were made by it."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes the weights and the agreement into a run directory.

        Trained on all models, with the settings that were most often chosen with one of them left out.
        """
        completions = read_completions(given(self.root))
        judges = offline_judges(completions, seed=run.seed, draws=run.draws)
        chosen = judges["refusal_classifier"]["settings_without_the_model"]
        settings = most_chosen({model: Settings(**one) for model, one in chosen.items()})
        trained_on = f"XSTest v2, labelled completions of {', '.join(completions)} (CC BY 4.0)"
        weights = fit(joined(list(features(completions).values())), settings, trained_on=trained_on)
        card = {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION, "judges": judges}
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            (store.path / SHIPPED).write_text(weights.to_json(), encoding="utf-8")
            (store.path / "agreement.md").write_text(markdown(card), encoding="utf-8")
            store.finish()
        console = Console()
        console.print(terminal(card))
        for line in (f"{settings}, {len(weights.terms)} terms", ATTRIBUTION, f"weights: {store.path / SHIPPED}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
