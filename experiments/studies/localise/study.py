"""``+exp=localise``: which heads and MLPs carry the picture, and which the sentence; ranked and confirmed on halves.

The run's directory has the baseline's study. It also has rows of results.csv, ``localise.json`` (the slopes of all
parts), ``figures/localise_parts.svg`` and a section of the report. Importing this module loads neither torch nor
transformers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, followed, look_inside
from experiments.evaluation.validated_run import validate
from experiments.report.sections import Section
from experiments.report.text import lines
from experiments.runs.results_table import Results
from experiments.studies.localise.cases import QUESTIONS, Cases, split
from experiments.studies.questions import check_margins, check_sizes
from experiments.types import Sample
from interp.errors import UserError

NAME = "localise"


@dataclass(frozen=True)
class Localise:
    """The task, on any benchmark with pairs of pictures. Of answers in words, the decisive token is followed.

    ``questions`` asks what carries the ``picture``, the ``sentence``, and what makes the picture's effect depend on the
    sentence (``join``). ``pairs`` is how many pairs both halves use together (None: all). ``candidates`` are the best
    parts of each question, which are confirmed one by one.
    """

    questions: list[str] = field(default_factory=lambda: list(QUESTIONS))
    pairs: int | None = None
    candidates: int = 5

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserError: a value is outside its range, or a question is unknown.
        """
        if not self.questions or len(set(self.questions)) < len(self.questions) or set(self.questions) - set(QUESTIONS):
            raise UserError(
                f"task.questions={list(self.questions)}: name one or more of {', '.join(QUESTIONS)}, each once"
            )
        check_sizes(self, pairs=2, candidates=1)

    def __call__(self, run: Run) -> None:
        """Answer what is missing, look into the model, and print what is claimed.

        Raises:
            UserError: the benchmark has no margin or too few pairs, or the model cannot be used.
        """
        alone = study.baseline_only(check_margins(run))
        validated = validate(alone)
        self._cases(validated.complete.samples, run)  # refuse a benchmark without enough pairs
        with study.open_study(alone, validated=validated) as work:
            from interp.tools.part_effects import check_precise

            check_precise(work.vlm)
            study.check_first_token(work.vlm, "+exp=localise")
            work.answer_all()
            work.conclude([Analysis(NAME, "no part was looked for", self._examined)])

    def _cases(self, samples: Sequence[Sample], run: Run) -> Cases:
        return split(samples, questions=self.questions, pairs=self.pairs, seed=run.seed)

    def _examined(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.localise import tables
        from experiments.studies.localise.examination import Examination

        options = asdict(self)
        options |= {"draws": min(work.run.draws, MOST_DRAWS)}
        chosen = {name: value for name, value in options.items() if name != "pairs"}

        def present(details: dict[str, Any], results: Results) -> Presented:
            sentences, notes = (
                lines(NAME, part=part, details=details, results=results) for part in ("answers", "notes")
            )
            section = Section(
                tables.TITLE, [*sentences, *seen.notes], tables.tables(details, results), note=" ".join(notes)
            )
            return section, tables.figures(details, results)

        with followed(work, next_token=True) as seen:
            cases = self._cases(seen.samples, work.run)
            samples = [sample for half in (cases.discover, cases.confirm) for sample in (*half.unsafe, *half.safe)]
            examination = Examination(work.vlm, cases, seed=work.run.seed, **chosen)
            return look_inside(
                work, NAME, options, samples, examination.examine, present, status="every head and MLP, one by one"
            )
