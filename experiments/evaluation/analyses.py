"""An analysis: a step of a study after its arms are measured. If it fails, the others still run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import RenderableType

from experiments.report.sections import Section, write_section
from experiments.runs import analyses as states
from interp.errors import UserError

NOTE = "note: "  # what an analysis' remarks begin with


Work = TypeVar("Work")


class NoMargin(UserError):
    """Refusals have no margin that tools may follow."""


@dataclass(frozen=True)
class Analysis(Generic[Work]):
    """``work`` adds to the run's directory and returns what to print; ``name`` is the name of its traceback.

    ``missing`` says what a reader misses if it fails: ``attention was not analysed``. All processes of a launch take
    part in an analysis that is done ``together``; the others are rank 0's. Sentences that it returns are printed, and
    with ``verbose=true`` tables and notes too. A ``detail`` is not what the study was run for; only the report shows
    it.
    """

    name: str
    missing: str
    work: Callable[[Work], Iterable[RenderableType]]
    together: bool = False
    detail: bool = False


def perform(study: Any, analyses: Sequence[Analysis[Any]]) -> bool:
    """Do the analyses, print what came of each, and return whether nothing failed.

    An exception becomes a sentence in terminal and report, and a traceback in a file. ``study`` is an
    ``experiments.evaluation.study.Study``.

    Raises:
        UserError: an analysis that is done together failed, so the processes of the launch are at different places.
    """
    if study.store.launch.first:
        done = [_done(study, analysis) for analysis in analyses]
        return all(done)
    for analysis in analyses:
        if analysis.together:
            list(analysis.work(study))
    return True


def _done(study: Any, analysis: Analysis[Any]) -> bool:
    """Do an analysis, print what came of it, and return whether it did not fail."""
    folder = study.store.path
    lines: list[RenderableType] = []
    with states.guarded(folder, analysis.name, analysis.missing) as outcome:
        try:
            lines = list(analysis.work(study))
        except NoMargin as error:
            lines = [f"{analysis.missing}: {error}"]
            write_section(folder, analysis.name, Section("Without a margin", [f"{analysis.missing}: {error}"]))
    if not study.run.verbose:
        brief = (line for line in lines if isinstance(line, str) and not line.startswith(NOTE))
        lines = [] if analysis.detail else list(brief)
    failed = [*filter(None, [outcome.failed, *states.missing(folder, analysis.name)])]
    for line in [*lines, *failed]:
        study.console.print(line, highlight=False, soft_wrap=isinstance(line, str), markup=False)
    if outcome.failed and analysis.together and study.store.launch.size > 1:
        raise UserError(outcome.failed)
    return not failed
