"""``+exp=mechanism``: why the baseline fails, by causal tools on its failures and matched successes.

In the run's directory: rows in ``results.csv``, ``mechanism.json`` (settings, counts and conclusions),
``figures/mechanism_*.svg`` and ``.png``, and a section of the report.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.looking_inside import Presented, look_inside
from experiments.report.sections import Section
from experiments.report.text import lines
from experiments.runs.results_table import Results, Row
from experiments.studies.questions import Questions
from interp.errors import UserError
from mitigation.validation import check_prior

NAME = "mechanism"


@dataclass(frozen=True)
class Mechanism:
    """The task. Everything is done on the test cases; nothing is chosen on them but what needs no labels.

    ``failures`` is how many of those are cut and patched, best matched first (None: all), beside all successes matched
    to them and the twins of both. ``width`` is the layers in a window of a knockout, one of which begins every
    ``stride`` layers. ``layers`` is how many layers of the residual stream are looked at, evenly from first to last.
    ``prior`` is what stands for the picture where the sentence's own say is measured (``mitigation.prior_correction``).
    ``draws`` are those of the intervals here.
    """

    failures: int | None = 120
    width: int = 1
    stride: int = 1
    layers: int = 9
    prior: str = "blank"
    draws: int = 2000

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            UserError: a value is outside its range.
        """
        for name, value, least in (("failures", self.failures, 1), ("width", self.width, 1), ("stride", self.stride, 1),
                                   ("layers", self.layers, 2), ("draws", self.draws, 1)):  # fmt: skip
            if value is not None and value < least:
                raise UserError(f"task.{name}={value}: must be at least {least}")
        check_prior(self.prior, 1)

    def __call__(self, run: Run) -> None:
        """Answers what is missing, looks into the model, and prints what is found, a sentence a question."""
        if run.benchmark.kind != "yes_no":
            raise UserError(f"benchmark {run.benchmark.name} asks for no Yes or No; the tools here follow that margin")
        _ = run.weights  # what looks inside needs them here
        with study.open_study(study.baseline_only(run)) as work:
            study.check_first_token(work.vlm, "+exp=mechanism")
            work.answer_all()
            work.conclude([Analysis(NAME, "the mechanism was not examined", self._examined)])

    def _examined(self, work: study.Study) -> list[RenderableType]:
        """Write rows, mechanism.json, figures and the report's section, and return what to print."""
        from experiments.studies.mechanism.examination import Examination
        from experiments.studies.mechanism.figure import figures
        from experiments.studies.mechanism.probes import UNTRAINED
        from experiments.studies.mechanism.tables import tables

        records = work.records()
        options = asdict(self) | {"draws": min(self.draws, work.run.draws)}

        def present(details: dict[str, Any], results: Results) -> Presented:
            title = f"Why it fails: {work.model_title} on {work.run.benchmark.name}"
            notes = " ".join(lines(NAME, part="notes", results=results, details=details))
            section = Section(title, sentences(details, results), tables(details, results), note=notes)
            return section, figures(details, results)

        def examine() -> tuple[dict[str, Any], list[Row]]:
            questions = Questions(NAME, work.store.path)
            settings = {**options, "seed": work.run.seed, "questions": questions}
            return Examination(work.vlm, work.samples, records, **settings).examine()

        answers = [(record["case"], record["verdict"]) for record in records]
        status = "causal tools on failures and matched successes"
        return look_inside(work, NAME, options | {"untrained": UNTRAINED}, work.samples, examine, present,
                           status=status, of=answers)  # fmt: skip


def sentences(details: dict[str, Any], results: Results) -> list[str]:
    """Return a numbered sentence for each question; those that cannot be told come last."""
    answered = lines(NAME, part="answers", results=results, details=details)
    untold = [conclusion == "cannot be told" for conclusion in details["conclusions"].values()]
    in_order = [line for _, line in sorted(zip(untold, answered, strict=True), key=lambda pair: pair[0])]
    return [f"{number}. {line}" for number, line in enumerate(in_order, start=1)]
