"""Sources of training rows for ``mitigation.vrtuning.data``. Imports neither torch nor transformers.

A source of one's own (``OwnTable``, ``LlavaCot``) gives its rows as cases first (``cases``), so that they can be
checked and compared with those that are evaluated before any weights load.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.benchmarks.checks import Words, checked
from experiments.benchmarks.disjoint import disjoint
from experiments.benchmarks.iconworld.traces import PERCEPTION, Trace, Traces
from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.rows import Unfit, need
from experiments.benchmarks.table import Table, table
from experiments.types import Loaded, Problem, Sample
from interp.errors import UserError
from mitigation.vrtuning.data import VERDICT, Data, Row, Skipped, from_rows
from mitigation.vrtuning.data_policy import refuse_path, refuse_record

OPTION = "task.data"
REASONING, CONCLUSION = "reasoning", "conclusion"
STAGES = ("SUMMARY", "CAPTION", "REASONING", "CONCLUSION")
SKIP = "{way}, or train without them: task.data.skip_bad=true"
UNFIT = Words(OPTION, "rows cannot be trained on", SKIP.format(way="correct them"))
TESTED = Words(
    OPTION, "rows to train on are evaluated too", SKIP.format(way="keep each case, pair and cluster on one side")
)


@dataclass(frozen=True)
class LlavaCot:
    """A JSONL file in the form of LLaVA-CoT-100k (Xu et al. 2024, arXiv 2411.10440), and the folder of its pictures.

    Written from the published description, without access to the data set: ``image`` is a path under ``images`` (by
    default the file's own folder), ``conversations`` are turns with ``from`` (``human`` or ``gpt``) and ``value``. A
    gpt turn holds the stages in tags, ``<SUMMARY>``, ``<CAPTION>``, ``<REASONING>``, ``<CONCLUSION>``. The conclusion
    is the answer, in free text; the other stages are the reasoning. Each exchange of a dialogue is a row. Lines that
    cannot be used are left out and listed; with ``skip_bad`` also rows that are evaluated too.
    """

    path: str
    images: str | None = None
    skip_bad: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        for place in filter(None, (self.path, self.images)):
            refuse_path(Path(place))

    @property
    def name(self) -> str:
        """The file's."""
        return Path(self.path).name

    def cases(self, folder: Path) -> Loaded:
        """The rows that can be read, as cases without an id; ``folder`` as in ``OwnTable.cases``.

        Raises:
            UserError: there is no such file or folder, or it is a benchmark that may not be trained on.
        """
        path = Path(self.path)
        root = path.parent if self.images is None else Path(self.images)
        if not path.is_file():
            raise UserError(f"no file {path}; training data is a JSONL file; correct task.data.path")
        if not root.is_dir():
            raise UserError(f"no folder {root}; the pictures of {path.name} lie in it; correct task.data.images")
        samples: list[Sample] = []
        missing = {}
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                place = f"line {number}"
                try:
                    record = json.loads(line)
                    if isinstance(record, dict):
                        refuse_record(record, f"{path}:{number}")
                    samples += _exchanges(record, root, place)
                except (Unfit, BadImage) as error:
                    missing[f"({place})"] = str(error)
                except (ValueError, RecursionError) as error:
                    missing[f"({place})"] = f"cannot be read ({error})"
        return Loaded(samples, missing, "")


def _exchanges(record: Any, root: Path, place: str) -> Iterator[Sample]:
    turns = need(record, "conversations", list)
    pairs = [(one, two) for one, two in pairwise(turns) if (need(one, "from"), need(two, "from")) == ("human", "gpt")]
    if not pairs:
        raise Unfit("no exchange between human and gpt")
    picture = (root / need(record, "image")).resolve()
    refuse_path(picture)
    open_image(picture, root=root)
    for human, gpt in pairs:
        found = {name: re.search(rf"<{name}>(.*?)</{name}>", need(gpt, "value"), re.DOTALL) for name in STAGES}
        stages = {name: " ".join(match[1].split()) if match else "" for name, match in found.items()}
        reasoning = " ".join(stages[name] for name in STAGES[:-1] if stages[name])
        question = need(human, "value").replace("<image>", "").strip()
        yield Sample(
            id="", subset="own", scenario="", gold="unknown", text=question, prompt=question, image=picture, cluster="",
            tags={REASONING: reasoning, CONCLUSION: stages["CONCLUSION"]}, place=place,
        )  # fmt: skip


@dataclass(frozen=True)
class OwnTable:
    """A table with the columns of ``benchmark=table``, and ``reasoning`` where there is any, each row with a picture.

    With a column ``split``, its rows of train and development are trained on, so that one table can be given both as
    benchmark and as training data. All checks are those of a benchmark (``experiments.benchmarks.checks``).
    """

    table: Table
    skip_bad: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """The table's."""
        return self.table.name

    def cases(self, folder: Path) -> Loaded:
        """The checked rows; ``folder`` takes the list of problems where they are many.

        Raises:
            UserError: the table cannot be read, is a benchmark that may not be trained on, or has rows that cannot be
                trained on though ``skip_bad`` is false.
        """
        given = self.table.to_train_on(_refuse_benchmarks)
        problems, samples = list(given.problems), []
        for sample in given.samples:
            if sample.image is None:
                problems.append(Problem(sample.place, sample.id, "image: there is none; each row trained on has one"))
                continue
            if isinstance(sample.image, Path):
                refuse_path(sample.image)
            samples.append(sample)
        loaded = given._replace(samples=samples, problems=tuple(problems))
        return checked(loaded, kind="yes_no", name=self.name, skip_bad=self.skip_bad, folder=folder, words=UNFIT)


def own_table(
    path: str,
    images: str | None = None,
    columns: Mapping[str, Any] | None = None,
    template: str | None = None,
    split: str = "train",
    configuration: str | None = None,
    revision: str | None = None,
    skip_bad: bool = False,
) -> OwnTable:
    """The table as the command line gives it; options as of ``benchmark=table``.

    Raises:
        UserError: an option has a value that it cannot have, or the table may not be trained on.
    """
    if not isinstance(skip_bad, bool):
        raise UserError(f"task.data.skip_bad={skip_bad!r}: must be true or false")
    given = table(path, images=images, columns=columns, template=template, split=split, configuration=configuration,
                  revision=revision, further=(REASONING,), option=OPTION)  # fmt: skip
    for place in filter(None, (given.path, given.images)):
        refuse_path(Path(place))
    return OwnTable(given, skip_bad)


Source = Traces | LlavaCot | OwnTable


def apart(source: LlavaCot | OwnTable, cases: Loaded, tested: Sequence[Sample], folder: Path) -> Loaded:
    """The ``cases`` of ``source`` that are not ``tested``, by id, picture and text, pair or cluster.

    Raises:
        UserError: some are, and ``skip_bad`` is false.
    """
    return disjoint(cases, tested, name=source.name, skip_bad=source.skip_bad, folder=folder, words=TESTED)


def build_data(
    source: Source, content: str, order: str, *, preferences: bool = False, cases: Loaded | None = None
) -> Data:
    """The dataset of one adapter. ``content`` other than ``reasoning`` is known of IconWorld's traces alone.

    ``cases`` are those of a source of one's own that are to be trained on; None for all that can be.

    Raises:
        UserError: such a content for a file, a file that cannot be read, or one that may not be trained on.
    """
    if isinstance(source, Traces):
        return from_rows(training_rows(source.write(content)), order=order, preferences=preferences)  # type: ignore[arg-type]
    if content != REASONING:
        raise UserError(
            f"content={content!r} for {source.name}: the controls are written from IconWorld's truth; of a file there "
            "is only 'reasoning'"
        )
    if preferences and isinstance(source, LlavaCot):
        raise UserError(f"trainer=dpo needs rejected verdicts, which {source.name} has not; take trainer=sft")
    found = source.cases(Path()) if cases is None else cases
    skipped = [
        Skipped(_line(case.rpartition("(")[2]), reason.removeprefix("skipped, "))  # the case is "its id (line 3)"
        for case, reason in found.missing.items()
    ]
    return from_rows([*skipped, *map(_as_row, found.samples)], order=order, preferences=preferences)


def _as_row(sample: Sample) -> Row:
    assert sample.image is not None
    image = sample.image if isinstance(sample.image, Path) else open_image(sample.image)
    reasoning, line = sample.tags.get(REASONING, ""), _line(sample.place)
    if (conclusion := sample.tags.get(CONCLUSION)) is not None:
        return Row(image, sample.prompt, reasoning, conclusion, kind="cot", line=line, about=sample.text)
    verdict, other = ("Yes", "No") if sample.gold == "yes" else ("No", "Yes")
    return Row(image, sample.prompt, reasoning, verdict, rejected=other, line=line, about=sample.text)


def _refuse_benchmarks(row: Mapping[str, Any], where: str) -> None:
    """Refuses a row by its wording and fields; pictures in it are not read as words."""
    words = {name: value if isinstance(value, str) or name == "metadata" else "" for name, value in row.items()}
    refuse_record(words, where)


def _line(place: str) -> int:
    return int("".join(letter for letter in place if letter.isdigit()) or 0)


def training_rows(traces: Sequence[Trace]) -> Iterator[Row]:
    """The traces with their pictures drawn, each with an answer that a preference is taught against.

    A verdict is paired with its opposite: each sentence occurs with both verdicts, so that a model which does not look
    is wrong as often as right. A perception row is paired with another row's answer to the same question, or with its
    own answer where no other is known, which a preference cannot use.
    """
    known: dict[str, list[str]] = {}
    for trace in traces:
        if trace.subset == PERCEPTION:
            known.setdefault(trace.question, []).append(trace.verdict)
    for trace in traces:
        replay = trace.subset == PERCEPTION
        others = known.get(trace.question, []) if replay else ["Yes.", "No."]
        rejected = next((answer for answer in others if answer != trace.verdict), trace.verdict)
        kind = PERCEPTION if replay else VERDICT
        yield Row(trace.scene.render(), trace.question, trace.reasoning, trace.verdict, kind, rejected=rejected)
