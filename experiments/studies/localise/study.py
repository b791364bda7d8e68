"""``+exp=localise``: which heads and MLPs carry the picture, and which the sentence; ranked and confirmed on halves.

The run's directory has the baseline's study. It also has rows of results.csv, ``localise.json`` (the slopes of all
parts), ``figures/localise_parts.svg`` and a section of the report. Importing this module loads neither torch nor
transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, followed, look_inside
from experiments.metrics.estimates import NOT_TESTED
from experiments.report.figures import Guide, Mark, points
from experiments.report.sections import Section, SectionFigure
from experiments.report.tables import lines, pivot, unit
from experiments.runs.results_table import Results, Row
from experiments.studies.localise.cases import JOIN, PICTURE, QUESTIONS, SENTENCE, Cases, split
from experiments.studies.questions import check_sizes, examine_baseline
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
        examine_baseline(run, NAME, "no part was looked for", self._examined,
                         lambda validated: self._cases(validated.complete.samples, run), precise=True)  # fmt: skip

    def _cases(self, samples: Sequence[Sample], run: Run) -> Cases:
        return split(samples, questions=self.questions, pairs=self.pairs, seed=run.seed)

    def _examined(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.localise.examination import Examination

        options = asdict(self)
        options |= {"draws": min(work.run.draws, MOST_DRAWS)}
        chosen = {name: value for name, value in options.items() if name != "pairs"}

        def present(details: dict[str, Any], results: Results) -> Presented:
            told, notes = (lines(NAME, part=part, details=details, results=results) for part in ("answers", "notes"))
            section = Section(TITLE, [*told, *seen.notes], tables(details, results), " ".join(notes))
            return section, figures(details, results)

        with followed(work, next_token=True) as seen:
            cases = self._cases(seen.samples, work.run)
            samples = [sample for half in (cases.discover, cases.confirm) for sample in (*half.unsafe, *half.safe)]
            examination = Examination(work.vlm, cases, seed=work.run.seed, **chosen)
            return look_inside(
                work, NAME, options, samples, examination.examine, present, status="every head and MLP, one by one"
            )


NAMES = {PICTURE: "picture", SENTENCE: "sentence", JOIN: "what joins them"}
MORE = ("part_direct", "part_splits_held", "part_power")  # of the first question
TITLE = "Which part does it?"
for _quantity in ("part_slope", "part_straight", "part_direct", "margin_gap", "margin_gap_rms"):
    unit(_quantity, 2)


def tables(details: Mapping[str, Any], results: Results) -> list[pd.DataFrame]:
    """Return the table with a line for each candidate of any question."""
    first = results.select(quantity=MORE, subset=details["questions"][0])
    parts = [*results.select(quantity="part_slope"), *sorted(first, key=lambda each: MORE.index(each.quantity))]
    more = f"From direct to power: {NAMES[details['questions'][0]]}. Splits held and power in %."
    return [pivot(parts, {"part": "arm"}, _heading, title="Candidates of all questions, one by one", note=more)]


def figures(details: Mapping[str, Any], results: Results) -> dict[str, SectionFigure]:
    """Return each question's candidates with their intervals."""
    tested = [each for each in results.select(quantity="part_slope") if each.claim != NOT_TESTED]
    marks = [Mark(f"{NAMES[each.subset]}: {each.arm}", each.value, each.interval) for each in tested]
    return {
        "localise_parts": SectionFigure(
            points(marks, x="slope: share of the gap", guides=[Guide((0,), (0,))], digits=2),
            "How much of each question's difference goes through each of its candidates.",
            "Candidates on the half that did not choose them, with 95% intervals.",
        )
    }


def _heading(each: Row) -> str:
    slope = each.quantity == "part_slope"
    return NAMES[each.subset] if slope else each.quantity.removeprefix("part_").replace("_", " ")
