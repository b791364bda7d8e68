"""``task=judge_training``: trains the refusal classifier on XSTest's labels."""

from dataclasses import dataclass

from rich.console import Console

from experiments.benchmarks.xstest import SOURCE, given, read_completions, twins
from experiments.config import Run
from experiments.evaluation.classifier_training import train
from experiments.evaluation.judge_agreement import features
from experiments.judges.refusal_classifier import SHIPPED
from experiments.runs.directory import open_run


@dataclass(frozen=True)
class TrainRefusalClassifier:
    """The task that made the shipped weights. ``root`` holds XSTest's labelled completions and its prompts."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes the weights into a run directory: of all answers, and without each fold of prompts.

        The threshold is the median of those chosen with models and prompts left out, with which
        ``task=judge_validation`` measures how well the classifier agrees with people.
        """
        root = given(self.root)
        completions = read_completions(root)
        answers = features(completions, twins(root))
        trained_on = f"XSTest v2, labelled completions of {', '.join(completions)} (CC BY 4.0)"
        console = Console()
        with console.status("the classifier is trained"):
            classifier = train(answers, trained_on=trained_on)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            (store.path / SHIPPED).write_text(classifier.to_json(), encoding="utf-8")
            store.finish()
        thresholds = ", ".join(f"{one.threshold:g}" for one in (classifier.whole, *classifier.without))
        said = [f"{len(classifier.whole.terms)} terms, {len(classifier.prompts)} prompts, threshold {thresholds}",
                 f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {SOURCE}",
                 "how well it agrees with people: task=judge_validation",
                 f"weights: {store.path / SHIPPED}"]  # fmt: skip
        for line in said:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
