"""An analysis: a step of a study that comes after its arms are measured, and fails alone."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console, RenderableType

from experiments.config import Run, digest
from experiments.metrics.claims import RULES
from experiments.report.build import build
from experiments.runs import analyses as states
from experiments.runs.store import RunStore
from interp.errors import UserError

NOTE = "note: "  # what an analysis' remarks begin with


class Measured(Protocol):
    """A study whose arms are measured, as ``perform`` sees it; ``experiments.evaluation.study.Study`` is one."""

    run: Run
    store: RunStore
    console: Console

    def records(self) -> list[dict[str, Any]]:
        """The records of its arms and cases."""
        ...


Work = TypeVar("Work", bound=Measured)


@dataclass(frozen=True)
class Analysis(Generic[Work]):
    """``work`` adds to the run's directory and returns what to print; ``name`` is that of its traceback.

    ``missing`` says what a reader misses where it fails: ``attention was not analysed``. One with ``settings`` says
    sentences alone and is not repeated when the run is continued with the same settings and records. In one that is
    done ``together`` all processes of a launch take part; the others are rank 0's. Of what it returns, sentences are
    printed, and with ``verbose=true`` tables and notes too; of a ``detail``, which is not what the study was run for,
    everything is left to the report.
    """

    name: str
    missing: str
    work: Callable[[Work], Iterable[RenderableType]]
    settings: str | None = None
    together: bool = False
    detail: bool = False


def perform(study: Work, analyses: Sequence[Analysis[Work]], *, again: bool = False, reported: bool = True) -> bool:
    """Does the analyses, printing what came of each; whether nothing failed.

    Whatever exception one raises becomes a sentence in terminal and report, with its traceback in a file. What was done
    before with the same settings and records is repeated only where that is asked for (``again``). Unless there is no
    report (``reported``), it is built at once where one fails, and where one ends the run (Ctrl-C).

    Raises:
        UserError: one was done together and failed, so that the processes of the launch are no longer at one place.
    """
    whole = True
    for analysis in analyses:
        if not study.store.launch.first:
            if analysis.together:
                list(analysis.work(study))
            continue
        of = None if analysis.settings is None else digest([RULES, analysis.settings, study.records()])
        known = None if again or of is None else states.finished_result(study.store.path, analysis.name, of)
        if known is not None:
            _say(study, _wanted(study, analysis, known))
            continue
        done = False
        try:
            done = _done(study, analysis, of)
        finally:
            if reported and not done:
                with suppress(UserError):  # the last one says why it cannot be written
                    build(study.store.path)
        whole = whole and done
    return whole


def _done(study: Work, analysis: Analysis[Work], of: str | None) -> bool:
    """Does one analysis, whose result is valid for ``of``, and prints what came of it; whether it did not fail."""
    folder = study.store.path
    lines: list[RenderableType] = []
    with states.apart(folder, analysis.name, analysis.missing, of=of) as outcome:
        lines = list(analysis.work(study))
        outcome.sentences = [] if of is None else [str(line) for line in lines]
    _say(study, _wanted(study, analysis, lines))
    failed = [*filter(None, [outcome.failed, *states.failures(folder, analysis.name)])]
    _say(study, failed)
    if outcome.failed and analysis.together and study.store.launch.size > 1:
        raise UserError(outcome.failed)
    return not failed


def _wanted(study: Work, analysis: Analysis[Work], lines: Iterable[RenderableType]) -> list[RenderableType]:
    if study.run.verbose:
        return list(lines)
    return [] if analysis.detail else [one for one in lines if isinstance(one, str) and not one.startswith(NOTE)]


def _say(study: Measured, lines: Iterable[RenderableType]) -> None:
    for line in lines:
        study.console.print(line, highlight=False, soft_wrap=isinstance(line, str), markup=False)
