"""``benchmark=table``: a table of one's own, a case a row, without code. ``docs/guide-own-data.md`` shows how.

What is wrong with a row is not decided here: cases go as they are to ``experiments.benchmarks.checks``, which reports
all problems at once. Imports neither torch nor transformers.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

from experiments.benchmarks.images import cell_picture, described
from experiments.benchmarks.mmsafeaware import PREFIX
from experiments.benchmarks.rows import ENDINGS, Rows, Unfit, json_cell, read_file
from experiments.types import Gold, Kind, Loaded, Problem, Sample, Subset
from interp.errors import UserError
from interp.messages import Message, read

FURTHER = ("image_2", "image_3", "image_4")
COLUMNS = ("id", "image", *FURTHER, "messages", "text", "label", "pair", "cluster", "template", "subset", "prompt",
           "split", "shows", "dangerous", "alarming_words")  # fmt: skip
KINDS: Mapping[str, Kind] = {"verdict": "yes_no", "refusal": "refusal"}
LABELS: Mapping[str, Mapping[str, tuple[Gold, Subset]]] = {
    "verdict": {"safe": ("yes", "over_safety"), "unsafe": ("no", "typical")},
    "refusal": {"benign": ("comply", "benign"), "harmful": ("refuse", "contrast")},
}
TEXT = "{text}"
TEMPLATES = {"verdict": f'{PREFIX}\n"{TEXT}"', "refusal": TEXT}  # MMSafeAware's question, or the text
SPLITS = {
    **dict.fromkeys(("test", "eval", "evaluation"), "test"),
    **dict.fromkeys(("development", "dev", "validation", "val", "train", "training"), "development"),
}
ALARMING, HARMLESS = "alarming", "harmless"
SOUNDS = {
    **dict.fromkeys(("yes", "true", "1", "dangerous", ALARMING), ALARMING),
    **dict.fromkeys(("no", "false", "0", HARMLESS), HARMLESS),
}
Look = Callable[[Mapping[str, Any], str], None]
PICTURED = re.compile(r"image|img|pict|photo|screenshot", re.IGNORECASE)  # in the name of a column
PICTURE_FILE = re.compile(r"\.(jpe?g|png|webp|gif|bmp)$", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """The table in the file ``path``.

    ``columns`` says what a column is called where that is not its own name. ``reads`` is ``verdict`` (labels safe and
    unsafe, answered Yes or No) or ``refusal`` (benign and harmful requests). Pictures are paths under ``images``, by
    default the table's own folder, which none may leave; or bytes. ``template`` makes a prompt of a text, unless the
    row has a ``prompt`` of its own.

    To learn and calibrate on: ``to_learn_from``, another file, or the rows that a column ``split`` calls so. ``name``
    is by default the file's. The text in the columns ``further`` is kept as the cases' tags. ``option`` is what
    the table's options are called in messages.

    Raises:
        UserError: an option has a value that it cannot have.
    """

    path: str
    reads: str = "verdict"
    images: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    to_learn_from: str | None = None
    template: str | None = None
    name: str = ""
    further: tuple[str, ...] = ()
    option: str = field(default="benchmark", repr=False)

    def __post_init__(self) -> None:
        if self.reads not in KINDS:
            raise UserError(f"{self.option}.reads={self.reads}: must be one of {', '.join(KINDS)}")
        if unknown := sorted(set(self.columns) - set(self._known)):
            values = ", ".join(self._known)
            raise UserError(f"{self.option}.columns.{unknown[0]}: is no column of a table; known: {values}")
        if self.template is not None and TEXT not in self.template:
            raise UserError(
                f"{self.option}.template={self.template[:60]!r}: must contain {TEXT}, which the text of a case replaces"
            )
        for option, path in (("path", self.path), ("development", self.to_learn_from)):
            if path is not None and Path(path).suffix.lower() not in ENDINGS:
                raise UserError(f"{self.option}.{option}={path}: is no table; give a file in {', '.join(ENDINGS)}; "
                                "download a data set of the hub first (hf download)")  # fmt: skip
        if not self.name:
            object.__setattr__(self, "name", Path(self.path).name)

    @property
    def kind(self) -> Kind:
        """Return the kind of verdict that is read from the answers."""
        return KINDS[self.reads]

    def load(self) -> Loaded:
        """Return the rows to evaluate as cases, without a check of their values.

        Raises:
            UserError: the table cannot be read, or lacks a column that it needs.
        """
        return self._not_empty(self._cases(self._read(self.path), "test"), "evaluated", "test")

    def development(self) -> Loaded | None:
        """Return the rows to learn and calibrate on; None if the table names none.

        Raises:
            UserError: as ``load``.
        """
        if self.to_learn_from is not None:
            return self._cases(self._read(self.to_learn_from), "")
        loaded = self._cases(self._read(self.path), "development")
        return loaded if loaded.samples or loaded.problems else None

    def to_train_on(self, look: Look | None = None) -> Loaded:
        """Return the rows that a column ``split`` calls train or development; all rows if there is no such column.

        ``look`` is called with every row as it is and where it stands, and may refuse it.

        Raises:
            UserError: as ``load``; or no row is to be trained on.
        """
        rows = self._read(self.path)
        if look is not None:
            for position, row in rows.rows:
                look(dict.fromkeys(rows.columns) | row, f"{self.path}, {position}")
        part = "development" if self._column("split") in rows.columns else ""
        return self._not_empty(self._cases(rows, part, tell=True), "trained on", "train")

    @property
    def _known(self) -> tuple[str, ...]:
        return (*COLUMNS, *self.further)

    def _column(self, name: str) -> str:
        """Return the table's name of the column."""
        called = self.columns.get(name, name)
        return "" if called is None else str(called)

    def _not_empty(self, loaded: Loaded, use: str, value: str) -> Loaded:
        if not loaded.samples and not loaded.problems:
            says = f"the column {self._column('split')!r} says {value} of none"
            raise UserError(f"{self.path}: no row is {use}; {says}; correct it")
        return loaded

    def _read(self, path: str) -> Rows:
        wanted = [called for name in self._known if (called := self._column(name))]
        read = read_file(Path(path).expanduser(), wanted, option=self.option)
        for name in ("id", "label", "text"):
            needed = self._column(name)
            others = {self._column("prompt"), self._column("messages")} if name == "text" else set()
            if needed not in read.columns and not others & set(read.columns):
                listed = ", ".join(repr(column[:40]) for column in read.columns[:12]) or "none"
                raise UserError(f"{path}: has no column {needed!r}; its columns are {listed}; "
                                f"name that of the {name}: {self.option}.columns.{name}=<column>")  # fmt: skip
        if absent := next((n for n, called in self.columns.items() if called not in (n, None, *read.columns)), None):
            raise UserError(f"{self.option}.columns.{absent}={self.columns[absent]}: {path} has no such column")
        self._name_unused(path, read, [name for name in read.columns if name not in wanted])
        return read

    def _name_unused(self, path: str, read: Rows, unused: Sequence[str]) -> None:
        """Print the unused columns, and that no case has a picture if there is no column for it.

        Raises:
            UserError: there is no column of pictures, and another one looks like it.
        """
        image, first = self._column("image"), read.rows[0][1] if read.rows else {}
        if image and image not in read.columns and self._column("messages") not in read.columns:
            for name in unused:
                if PICTURED.search(name) or PICTURE_FILE.search(str(first.get(name))):
                    column = f"{self.option}.columns.image"
                    raise UserError(f"{path}: has no column {image!r}, and {name!r} looks like pictures; use it with "
                                    f"{column}={name}, or ask in words only with {column}=null")  # fmt: skip
            about = ", under a question about an image" if TEMPLATES[self.reads] != TEXT and not self.template else ""
            say(f"{path}: has no column {image!r}; every case is asked in words only, without a picture{about}")
        if unused:
            say(f"{path}: columns that are not used: {', '.join(name[:40] for name in unused[:12])}")

    def _cases(self, rows: Rows, part: str, *, tell: bool | None = None) -> Loaded:
        """Return the cases of the rows in the ``part`` of the table: test, development, or "" for all.

        ``tell`` says whether problems of rows without a part are listed. By default only development lists none, since
        test lists them.
        """
        tell = part != "development" if tell is None else tell
        folder = rows.root if self.images is None else Path(self.images).expanduser()
        if not folder.is_dir():
            raise UserError(f"{self.option}.images={self.images}: is no folder; give the folder with the pictures")
        root = folder.resolve() if {self._column("image"), self._column("messages")} & set(rows.columns) else None
        samples, problems = [], list(rows.problems) if tell else []
        for position, row in rows.rows:
            cells = {name: _unless_empty(row.get(self._column(name))) for name in self._known}
            identity = str(cells["id"])[:80] if isinstance(cells["id"], str | float) else ""
            listed = tell
            try:
                its_part = _choice(cells, "split", SPLITS, "neither test nor development") or "test"
                listed = part in ("", its_part)
                if listed:
                    samples.append(self._case(cells, position, root))
            except Unfit as error:
                problems += [Problem(position, identity, str(error))] if listed else []
        return Loaded(samples, {}, "", tuple(problems))

    def _case(self, cells: Mapping[str, Any], position: str, root: Path | None) -> Sample:
        """Return the case of a row; ``root`` is the folder of its picture, None if the table has none.

        Raises:
            Unfit: a cell holds a value of a kind that cannot be meant.
        """
        identity, prompt = _word(cells, "id"), _prose(cells, "prompt")
        turns = () if not root or cells["messages"] is None else _turns(cells["messages"], identity, root, self.option)
        text = _prose(cells, "text") or prompt or (turns[-1].text if turns else "")
        label = _word(cells, "label").strip()
        if label in get_args(Gold) and label not in LABELS[self.reads]:  # "no": that it is unsafe, or not harmful?
            raise Unfit(f"label: {label!r} is none of {', '.join(LABELS[self.reads])}")
        named: Any = (label, "typical")  # refused by the checks, which name the label
        gold, subset = LABELS[self.reads].get(label.casefold(), named)
        part = _word(cells, "subset").strip()
        if subset == "typical" and part.casefold() == "attack":
            subset = "attack"
        template = TEMPLATES[self.reads] if self.template is None else self.template
        picture = _choice(cells, "dangerous", SOUNDS, "neither yes nor no")
        tags = {"subset": part, "template": _word(cells, "template").strip(), "picture": picture,
                "words": _choice(cells, "alarming_words", SOUNDS, "neither yes nor no")}  # fmt: skip
        request = prompt or (template.replace(TEXT, text) if text.strip() else "")
        if turns and turns[-1].text != request:
            turns = (*turns[:-1], Message("user", (*turns[-1].images, request)))
        elif not turns and root is not None:
            names = [name for name in ("image", *FURTHER) if name == "image" or cells[name] is not None]
            pictures = [cell_picture(cells[name], identity, root, self.option) for name in names]
            turns = (Message("user", (*pictures, request)),)
        images = [image for turn in turns for image in turn.images]
        return Sample(
            id=identity,
            subset=subset,
            scenario=part or label.casefold(),
            gold=gold,
            text=text,
            prompt=request,
            image=images[0] if images else None,
            turns=turns if cells["messages"] is not None or len(images) > 1 else (),
            cluster=_word(cells, "cluster"),
            pair=_word(cells, "pair") or None,
            tags={name: tag for name, tag in tags.items() if tag}
            | {name: _prose(cells, name) for name in self.further},
            location=position,
            shows=_prose(cells, "shows").strip(),
            alarming=picture == ALARMING,
            subset_name=part or label.casefold(),
        )


def table(
    path: object,
    *,
    columns: Mapping[str, Any] | None = None,
    development: object = None,
    further: tuple[str, ...] = (),
    option: str = "benchmark",
    reads: object = "verdict",
    images: object = None,
    template: object = None,
    name: object = "",
) -> Table:
    """Return the table of a command's options: ``development`` is ``Table.to_learn_from``, values may be numbers.

    Raises:
        UserError: see ``Table``.
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise UserError(f"{option}.columns={columns}: takes columns one by one, as {option}.columns.text=question")
    given = {"path": path, "reads": reads, "images": images, "to_learn_from": development, "template": template,
             "name": name}  # fmt: skip
    plain: dict[str, Any] = {option: None if value is None else str(value) for option, value in given.items()}
    return Table(columns=dict(columns or {}), further=further, option=option, **plain)


@cache
def say(sentence: str) -> None:
    """Print a sentence about a table, once however often the table is read."""
    print(sentence, file=sys.stderr)


def _choice(cells: Mapping[str, Any], name: str, values: Mapping[str, str], rule: str) -> str:
    """Return what the cell means by the words that are ``known``; "" if it is empty.

    Raises:
        Unfit: the cell says something else, so that it is ``rule``.
    """
    word = str(cells[name]) if isinstance(cells[name], bool) else _word(cells, name).strip()
    if word and word.casefold() not in values:
        raise Unfit(f"{name}: {word[:40]!r} is {rule}")
    return values[word.casefold()] if word else ""


def _word(cells: Mapping[str, Any], name: str) -> str:
    """Return an id or a name: text, or a whole number as spreadsheets write them; "" if the cell is empty.

    Raises:
        Unfit: it is something else.
    """
    value = cells[name]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64:
        return str(value)
    return _text(value, name, "name")


def _prose(cells: Mapping[str, Any], name: str) -> str:
    """Return a text, its lines broken only by \\n; "" if the cell is empty.

    Raises:
        Unfit: it is something else.
    """
    return _text(cells[name], name, "text").replace("\r\n", "\n").replace("\r", "\n")


def _text(value: Any, name: str, kind: str) -> str:
    if value is not None and not isinstance(value, str):
        raise Unfit(f"{name}: is {described(value)}, which is no {kind}")
    return value or ""


def _turns(value: Any, case: str, root: Path, option: str) -> tuple[Message, ...]:
    """Return the turns that a cell's messages are (``interp.messages``), with pictures by path.

    Raises:
        Unfit: they are no JSON or no conversation that a case can be.
    """

    try:
        system, turns, _ = read(json_cell(value, "messages"), lambda part: cell_picture(
            part.get("image") or part.get("path"), case, root, option))  # fmt: skip
    except UserError as error:
        raise Unfit(str(error) if str(error).startswith("messages") else f"messages: {error}") from error
    if system is not None:
        raise Unfit("messages: a system text is set by an arm (method=safety_prompt); leave it out of the case")
    return turns


def _unless_empty(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
