"""``+exp=localise``: which heads and MLPs carry the picture, and which the sentence; found on half, confirmed on half.

Beside the baseline's study the run's directory holds ``localise.json`` (all numbers), ``figures/localise_*.svg`` and a
section of the report. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.admission import admit
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, look_inside
from experiments.report.sections import Section
from experiments.report.sentences.localise import NOTE, TITLE, sentences
from experiments.studies.localise.cases import PICTURE, QUESTIONS, Cases, split
from experiments.types import Sample
from interp.errors import UserError

NAME = "localise"


@dataclass(frozen=True)
class Localise:
    """The task, on any yes/no benchmark with pairs of pictures.

    ``questions`` are those asked: what carries the ``picture``, the same said in ``words``, the ``sentence``, and what
    makes the picture's effect depend on the sentence (``join``). ``place`` is where parts are replaced: the verdict,
    where all effects are exact; elsewhere (``all``, ``user``, …) gradients rank the parts, and only ``picture`` can be
    asked, for other pairs do not align. ``pairs`` is how many pairs are used in both halves together, spread over
    the units (None: all). ``candidates`` are the best parts of each question that are confirmed one by one;
    ``random_sets`` the random sets for each k of the curves.
    """

    questions: list[str] = field(default_factory=lambda: list(QUESTIONS))
    place: str = "verdict"
    pairs: int | None = None
    candidates: int = 5
    random_sets: int = 20

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            UserError: a value is outside its range, or a question that cannot be asked at the place.
        """
        if unknown := [one for one in self.questions if one not in QUESTIONS]:
            raise UserError(
                f"task.questions: no question {unknown[0]!r}; known: {', '.join(QUESTIONS)}; choose among these"
            )
        if not self.questions or len(set(self.questions)) < len(self.questions):
            raise UserError(f"task.questions={list(self.questions)}: name at least one, each once")
        if self.place != "verdict" and list(self.questions) != [PICTURE]:
            raise UserError(
                f"task.place={self.place}: prompts with other words do not align there; ask task.questions=[{PICTURE}]"
            )
        for name, value, least in (("pairs", self.pairs, 2), ("candidates", self.candidates, 1),
                                   ("random_sets", self.random_sets, 2)):  # fmt: skip
            if value is not None and value < least:
                raise UserError(f"task.{name}={value}: must be at least {least}")

    def __call__(self, run: Run) -> None:
        """Answers what is missing, looks into the model, and prints what may be claimed.

        Raises:
            UserError: the benchmark has no margin or too few pairs, or the model cannot be used.
        """
        if run.benchmark.kind != "yes_no":
            raise UserError(f"benchmark {run.benchmark.name} asks for no Yes or No; the study follows that margin")
        _ = run.weights  # what looks inside needs them here
        alone = study.baseline_only(run)
        admitted = admit(alone)
        self._cases(admitted.complete.samples, run)  # refuses a benchmark without enough pairs
        with study.opened(alone, admitted=admitted) as work:
            from interp.tools.part_effects import check_precise

            check_precise(work.vlm)
            study.check_first_token(work.vlm, "+exp=localise")
            work.answer_all()
            work.conclude([Analysis(NAME, "no part was looked for", self._examined)])

    def _cases(self, samples: Sequence[Sample], run: Run) -> Cases:
        return split(samples, questions=self.questions, pairs=self.pairs, seed=run.seed)

    def _examined(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.localise import tables
        from experiments.studies.localise.examination import examine

        cases, seed = self._cases(work.samples, work.run), work.run.seed
        options = asdict(self) | {"draws": min(work.run.draws, MOST_DRAWS)}
        chosen = {name: value for name, value in options.items() if name != "pairs"}

        def present(result: dict[str, Any]) -> Presented:
            section = Section(TITLE, sentences(result, seed=seed), tables.tables(result), note=NOTE)
            return section, tables.figures(result, work.vlm, cases.confirm)

        return look_inside(
            work,
            NAME,
            options,
            [one for half in (cases.discover, cases.confirm) for one in (*half.unsafe, *half.safe)],
            lambda: examine(work.vlm, cases, seed=seed, **chosen) | {"of_pairs": cases.of},
            present,
            status="every head and MLP, one by one",
        )
