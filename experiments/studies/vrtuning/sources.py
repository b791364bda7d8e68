"""Sources of training rows for ``mitigation.vrtuning.data``. Imports neither torch nor transformers.

A user's table (``OwnTable``) first gives its rows as cases (``cases``). They are checked and compared with the
evaluated cases before any weights load.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.benchmarks.checks import Words, checked, disjoint
from experiments.benchmarks.iconworld.traces import PERCEPTION, Trace, Traces
from experiments.benchmarks.images import open_image
from experiments.benchmarks.table import Table, table
from experiments.types import Loaded, Problem, Sample
from interp.errors import UserError
from mitigation.vrtuning.data import VERDICT, Data, Row, Skipped, from_rows, refuse_path, refuse_record

OPTION = "task.data"
REASONING = "reasoning"
SKIP = "{way}, or train without them: task.data.skip_bad=true"
UNFIT = Words(OPTION, "rows cannot be trained on", SKIP.format(way="correct them"))
TESTED = Words(
    OPTION, "rows to train on are evaluated too", SKIP.format(way="keep each case, pair and cluster on one side")
)


@dataclass(frozen=True)
class OwnTable:
    """A table with the columns of ``benchmark=table``, and ``reasoning`` where there is any, each row with a picture.

    With a column ``split``, its rows of train and development are trained on. So one table can be both benchmark and
    training data. All checks are a benchmark's (``experiments.benchmarks.checks``).
    """

    table: Table
    skip_bad: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """Return the table's rows."""
        return self.table.name

    def cases(self) -> Loaded:
        """Return the checked rows.

        Raises:
            UserError: the table cannot be read, or is a benchmark that may not be trained on. It has unusable rows, and
                ``skip_bad`` is false.
        """
        given = self.table.to_train_on(_refuse_benchmarks)
        problems, samples = list(given.problems), []
        for sample in given.samples:
            if sample.image is None:
                problems.append(
                    Problem(sample.location, sample.id, "image: there is none; each row trained on has one")
                )
                continue
            for picture in sample.images:
                if isinstance(picture, Path):
                    refuse_path(picture)
            samples.append(sample)
        loaded = given._replace(samples=samples, problems=tuple(problems))
        return checked(loaded, kind="yes_no", name=self.name, skip_bad=self.skip_bad, words=UNFIT)


def own_table(
    path: str,
    images: str | None = None,
    columns: Mapping[str, Any] | None = None,
    template: str | None = None,
    skip_bad: bool = False,
) -> OwnTable:
    """Return the table by the options of the command line, which are as for ``benchmark=table``.

    Raises:
        UserError: an option has a value that it cannot have, or the table may not be trained on.
    """
    if not isinstance(skip_bad, bool):
        raise UserError(f"task.data.skip_bad={skip_bad!r}: must be true or false")
    for path_or_name in filter(None, (path, images)):
        refuse_path(Path(str(path_or_name)))
    given = table(path, images=images, columns=columns, template=template, further=(REASONING,),
                  option=OPTION)  # fmt: skip
    return OwnTable(given, skip_bad)


Source = Traces | OwnTable


def exclude_tested(source: OwnTable, cases: Loaded, tested: Sequence[Sample]) -> Loaded:
    """Return the ``cases`` of ``source`` that are not ``tested``, by id, picture and text, pair or cluster.

    Raises:
        UserError: some are, and ``skip_bad`` is false.
    """
    return disjoint(cases, tested, name=source.name, skip_bad=source.skip_bad, words=TESTED)


def build_data(
    source: Source, content: str, order: str, *, preferences: bool = False, cases: Loaded | None = None
) -> Data:
    """Return the dataset of one adapter. ``content`` other than ``reasoning`` is only known of IconWorld's traces.

    ``cases`` are the rows of a user's table to train on; None for all that can be.

    Raises:
        UserError: another content for a file, a file that cannot be read, or one that may not be trained on.
    """
    if isinstance(source, Traces):
        return from_rows(training_rows(source.write(content)), order=order, preferences=preferences)  # type: ignore[arg-type]
    if content != REASONING:
        raise UserError(
            f"content={content!r} for {source.name}: the controls are written from IconWorld's truth; a file only has "
            "'reasoning'"
        )
    given = source.cases() if cases is None else cases
    skipped = [
        Skipped(_line(case.rpartition("(")[2]), reason.removeprefix("skipped, "))  # the case is "its id (line 3)"
        for case, reason in given.missing.items()
    ]
    return from_rows([*skipped, *map(_as_row, given.samples)], order=order, preferences=preferences)


def _as_row(sample: Sample) -> Row:
    def opened(picture: Any) -> Any:
        return picture if isinstance(picture, str | Path) else open_image(picture)

    turns = [turn.mapped(opened) for turn in sample.turns]
    reasoning, line = sample.tags.get(REASONING, ""), _line(sample.location)
    verdict, other = ("Yes", "No") if sample.gold == "yes" else ("No", "Yes")
    return Row(opened(sample.image), sample.prompt, reasoning, verdict, rejected=other, line=line, about=sample.text,
               turns=turns)  # fmt: skip


def _refuse_benchmarks(row: Mapping[str, Any], where: str) -> None:
    """Refuse a row by its wording and fields; pictures in it are not read as words."""
    words = {name: value if isinstance(value, str) or name == "metadata" else "" for name, value in row.items()}
    refuse_record(words, where)


def _line(position: str) -> int:
    return int("".join(letter for letter in position if letter.isdigit()) or 0)


def training_rows(traces: Sequence[Trace]) -> Iterator[Row]:
    """Return the traces with their pictures, each with a rejected answer for preferences.

    A verdict is paired with its opposite. Each sentence has both verdicts, so a model that does not look is right half
    the time. A perception row is paired with another row's answer to the same question. If there is no other answer, it
    is paired with its own, which a preference skips.
    """
    answers: dict[str, list[str]] = {}
    for trace in traces:
        if trace.subset == PERCEPTION:
            answers.setdefault(trace.question, []).append(trace.verdict)
    for trace in traces:
        replay = trace.subset == PERCEPTION
        others = answers.get(trace.question, []) if replay else ["Yes.", "No."]
        rejected = next((answer for answer in others if answer != trace.verdict), trace.verdict)
        kind = PERCEPTION if replay else VERDICT
        yield Row(trace.scene.render(), trace.question, trace.reasoning, trace.verdict, kind, rejected=rejected)
