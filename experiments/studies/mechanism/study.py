"""``+exp=mechanism``: why the baseline fails, by causal tools on its failures and matched successes.

In the run's directory: rows in ``results.csv``, ``mechanism.json`` (settings, counts and conclusions),
``figures/mechanism_*.svg`` and ``.png``, and a section of the report.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.looking_inside import Presented, followed, look_inside
from experiments.evaluation.validated_run import ValidatedRun
from experiments.report.sections import Section
from experiments.report.tables import lines
from experiments.runs.results_table import Results, Row
from experiments.studies.questions import Questions, check_sizes, examine_baseline
from interp.errors import UserError
from mitigation.method import check_prior

NAME = "mechanism"


@dataclass(frozen=True)
class Mechanism:
    """The task. Everything is done on the test cases; what is chosen on them needs no labels.

    ``failures`` is how many failures are cut and patched, best matched first (None: all), with all successes matched to
    them and the twins of both. ``width`` is the number of layers in a window of a knockout; a window begins every
    ``stride`` layers. ``layers`` is how many layers of the residual stream are looked at, evenly from first to last.
    ``prior`` replaces the picture when the margin of the sentence is measured (``mitigation.prior_correction``).
    ``draws`` is the number of bootstrap samples.

    Raises:
        UserError: a value is outside its range.
    """

    failures: int | None = 120
    width: int = 1
    stride: int = 1
    layers: int = 9
    prior: str = "blank"
    draws: int = 2000

    def __post_init__(self) -> None:
        check_sizes(self, failures=1, width=1, stride=1, layers=2, draws=1)
        check_prior(self.prior, 1)

    def __call__(self, run: Run) -> None:
        """Answer what is missing, look into the model, and print a sentence for each question."""

        def pictured(validated: ValidatedRun) -> None:
            if all(sample.image is None for sample in validated.loaded.samples):
                raise UserError(
                    f"benchmark {run.benchmark.name} has no pictures. +exp=mechanism needs cases with pictures."
                )

        examine_baseline(run, NAME, "the mechanism was not examined", self._examined, pictured)

    def _examined(self, work: study.Study) -> list[RenderableType]:
        """Write rows, mechanism.json, figures and the report's section, and return what to print."""
        from experiments.studies.mechanism.examination import Examination
        from experiments.studies.mechanism.probes import UNTRAINED
        from experiments.studies.mechanism.tables import figures, tables

        options = asdict(self) | {"draws": min(self.draws, work.run.draws)}

        def present(details: dict[str, Any], results: Results) -> Presented:
            title = f"Why it fails: {work.model_title} on {work.run.benchmark.name}"
            notes = " ".join(lines(NAME, part="notes", results=results, details=details))
            told = [*sentences(details, results), *seen.notes]
            section = Section(title, told, tables(details, results), note=notes)
            return section, figures(details, results)

        def examine() -> tuple[dict[str, Any], list[Row]]:
            questions = Questions(NAME, work.store.path)
            settings = {**options, "seed": work.run.seed, "questions": questions}
            return Examination(work.vlm, seen.samples, seen.records, **settings).examine()

        status = "causal tools on failures and matched successes"
        with followed(work) as seen:
            return look_inside(
                work, NAME, options | {"untrained": UNTRAINED}, work.samples, examine, present, status=status
            )


def sentences(details: dict[str, Any], results: Results) -> list[str]:
    """Return a numbered sentence for each question; unanswered ones come last."""
    answered = lines(NAME, part="answers", results=results, details=details)
    untold = [conclusion == "cannot be told" for conclusion in details["conclusions"].values()]
    in_order = [line for _, line in sorted(zip(untold, answered, strict=True), key=lambda pair: pair[0])]
    return [f"{number}. {line}" for number, line in enumerate(in_order, start=1)]
