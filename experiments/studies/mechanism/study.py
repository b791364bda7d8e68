"""``+exp=mechanism``: why the baseline fails, by causal tools on its failures and matched successes.

In the run's directory, beside the baseline's study: ``mechanism.json`` (all numbers and the sentences),
``figures/mechanism.svg`` and ``.png``, and a section of the report.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.looking_inside import Presented, look_inside
from experiments.report.sections import Section, SectionFigure
from experiments.report.sentences.mechanism import notes, sentences, told_first
from interp.errors import UserError
from mitigation.validation import check_prior

NAME = "mechanism"
ALT = ("Four panels: what linear probes read at each residual layer; the Yes/No margin that each layer "
       "would give, for failures and successes; how much of another picture's or sentence's answer each place brings "
       "at each layer; and the AUROC with what overrules the picture taken away.")  # fmt: skip
CAPTION = ("Probes by layer; the margin by layer (bands and bars: 95% intervals over clusters); failures run "
           "with another prompt's states, place by place and layer by layer; what is taken away.")  # fmt: skip


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
        with study.opened(study.baseline_only(run)) as work:
            study.check_first_token(work.vlm, "+exp=mechanism")
            work.answer_all()
            work.conclude([Analysis(NAME, "the mechanism was not examined", self._examined)])

    def _examined(self, work: study.Study) -> list[RenderableType]:
        """Writes mechanism.json, the figure and the report's section; what to print."""
        from experiments.studies.mechanism import figure, tables
        from experiments.studies.mechanism.controls import UNTRAINED
        from experiments.studies.mechanism.examination import Examination
        from experiments.studies.mechanism.findings import findings

        records = work.records()
        options = asdict(self) | {"draws": min(self.draws, work.run.draws)}
        settings = options | {"untrained": UNTRAINED}

        def examine() -> dict[str, Any]:
            result = Examination(work.vlm, work.samples, records, seed=work.run.seed, **options).examine()
            found = findings(result)
            texts = {"sentences": sentences(found), "notes": notes(result)}
            return result | {"findings": [finding.as_json() for finding in found]} | texts

        def present(result: dict[str, Any]) -> Presented:
            title = f"Why it fails: {work.model_title} on {work.run.benchmark.name}"
            numbered = [f"{number}. {sentence}" for number, sentence in enumerate(told_first(result), start=1)]
            figures = {NAME: SectionFigure(figure.draw(result), ALT, CAPTION)}
            section = Section(title, numbered, tables.tables(result), note=" ".join(result["notes"]))
            return section, figures

        answers = [(record["case"], record["verdict"]) for record in records]
        status = "causal tools on failures and matched successes"
        return look_inside(work, NAME, settings, work.samples, examine, present, status=status, of=answers)
