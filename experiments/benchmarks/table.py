"""``benchmark=table``: a table of one's own, a case a row, without code. ``docs/guide-own-data.md`` shows how.

What is wrong with a row is not decided here: cases go as they are to ``experiments.benchmarks.checks``, which reports
all problems at once. Imports neither torch nor transformers.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from experiments.benchmarks.images import EncodedImage, Fault, ImageProblem, UnusableImage
from experiments.benchmarks.mmsafeaware import PREFIX
from experiments.benchmarks.rows import ENDINGS, Rows, Unfit, read_file, read_hub
from experiments.types import Drawable, Gold, Kind, Loaded, Problem, Sample, Subset
from interp.errors import UserError

COLUMNS = ("id", "image", "text", "label", "pair", "cluster", "template", "subset", "prompt", "split", "shows",
           "dangerous", "alarming_words")  # fmt: skip
KINDS: Mapping[str, Kind] = {"verdict": "yes_no", "refusal": "refusal"}
PICTURE = "picture"  # questions about what is in it, for ``guard``: no benchmark of safety reads so
LABELS: Mapping[str, Mapping[str, tuple[Gold, Subset]]] = {
    "verdict": {"safe": ("yes", "over_safety"), "unsafe": ("no", "typical")},
    "refusal": {"benign": ("comply", "benign"), "harmful": ("refuse", "contrast")},
    PICTURE: {"yes": ("yes", "over_safety"), "no": ("no", "typical")},
}
TEXT = "{text}"
TEMPLATES = {"verdict": f'{PREFIX}\n"{TEXT}"', "refusal": TEXT, PICTURE: TEXT}  # MMSafeAware's question, or the text
SPLITS = {
    **dict.fromkeys(("", "test", "eval", "evaluation"), "test"),
    **dict.fromkeys(("development", "dev", "validation", "val", "train", "training"), "development"),
}
ALARMING, HARMLESS = "alarming", "harmless"
SOUNDS = {
    **dict.fromkeys(("yes", "true", "1", "dangerous", ALARMING), ALARMING),
    **dict.fromkeys(("no", "false", "0", HARMLESS), HARMLESS),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
Look = Callable[[Mapping[str, Any], str], None]
DATA_URI = re.compile(r"data:image/[\w.+-]{1,40};base64,")


@dataclass(frozen=True)
class Table:
    """The table at ``path``: a file, or ``owner/name`` of a data set on the hub (``configuration``, ``revision``).

    ``columns`` says what a column is called where that is not its own name. ``reads`` is ``verdict`` (labels safe and
    unsafe, answered Yes or No) or ``refusal`` (benign and harmful requests). Pictures are paths under ``images``, by
    default the table's own folder, which none may leave; or bytes. ``template`` makes a prompt of a text, unless the
    row has a ``prompt`` of its own.

    To learn and calibrate on: ``to_learn_from``, another file, or on the hub another split than the ``split`` that is
    evaluated; or the rows that a column ``split`` calls so. ``name`` is by default that of the file. The text in the
    columns ``further`` is kept as the cases' tags. ``option`` is what the table's options are called in messages.

    Raises:
        UserError: an option has a value that it cannot have.
    """

    path: str
    reads: str = "verdict"
    images: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    to_learn_from: str | None = None
    template: str | None = None
    split: str = "test"
    configuration: str | None = None
    revision: str | None = None
    name: str = ""
    further: tuple[str, ...] = ()
    option: str = field(default="benchmark", repr=False)

    def __post_init__(self) -> None:
        if self.reads not in KINDS and (self.reads, self.option) != (PICTURE, "guard"):
            raise UserError(f"{self.option}.reads={self.reads}: must be one of {', '.join(KINDS)}")
        if unknown := sorted(set(self.columns) - set(self._known)):
            known = ", ".join(self._known)
            raise UserError(f"{self.option}.columns.{unknown[0]}: is no column of a table; known: {known}")
        if self.template is not None and TEXT not in self.template:
            raise UserError(
                f"{self.option}.template={self.template[:60]!r}: must hold {TEXT}, in whose place the text goes"
            )
        for option, path in (("path", self.path), ("development", self.to_learn_from)):
            if path is not None and not self._on_hub(path) and Path(path).suffix.lower() not in ENDINGS:
                known = f"a file in {', '.join(ENDINGS)}, or owner/name of a data set on the hub"
                if option == "path" or not self._on_hub(self.path):
                    raise UserError(f"{self.option}.{option}={path}: is no table; give {known}")
        if not self.name:
            object.__setattr__(self, "name", self.path if self._on_hub(self.path) else Path(self.path).name)

    @property
    def kind(self) -> Kind:
        """What the answers are read for."""
        return KINDS.get(self.reads, "yes_no")

    def load(self) -> Loaded:
        """The rows to evaluate, as cases, whatever may be wrong with them.

        Raises:
            UserError: the table cannot be read, or lacks a column that it needs.
        """
        rows = self._read(self.path, self.split)
        loaded = self._cases(rows, "test")
        if not loaded.samples and not loaded.problems:
            split = self._column("split")
            raise UserError(f"{self.path}: no row is to be evaluated; the column {split!r} says test of none; mend it")
        return loaded

    def development(self) -> Loaded | None:
        """The rows to learn and calibrate on; None where the table names none.

        Raises:
            UserError: as ``load``.
        """
        if self.to_learn_from is None:
            loaded = self._cases(self._read(self.path, self.split), "development")
            return loaded if loaded.samples or loaded.problems else None
        if self._on_hub(self.path) and Path(self.to_learn_from).suffix.lower() not in ENDINGS:
            return self._cases(self._read(self.path, self.to_learn_from), "")
        return self._cases(self._read(self.to_learn_from, self.split), "")

    def to_train_on(self, look: Look | None = None) -> Loaded:
        """The rows to train on: those that a column ``split`` calls train or development, all where there is none.

        ``look`` is called with every row as it is and where it stands, and may refuse it.

        Raises:
            UserError: as ``load``; or no row is to be trained on.
        """
        rows = self._read(self.path, self.split)
        if look is not None:
            for place, row in rows.rows:
                look(dict.fromkeys(rows.columns) | row, f"{self.path}, {place}")
        divided = (split := self._column("split")) in rows.columns
        loaded = self._cases(rows, "development" if divided else "", tell=True)
        if not loaded.samples and not loaded.problems:
            raise UserError(
                f"{self.path}: no row is to be trained on; the column {split!r} says train of none; mend it"
            )
        return loaded

    @property
    def _known(self) -> tuple[str, ...]:
        return (*COLUMNS, *self.further)

    @staticmethod
    def _on_hub(path: str) -> bool:
        """Whether ``path`` names a data set of the hub, or a folder laid out as one: a file on this disk never does."""
        here = Path(path).expanduser()
        return here.suffix.lower() not in ENDINGS and HUB_NAME.fullmatch(path) is not None and not here.is_file()

    def _column(self, name: str) -> str:
        """What the table calls the column."""
        called = self.columns.get(name, name)
        return "" if called is None else str(called)

    def _read(self, path: str, split: str) -> Rows:
        wanted = [called for name in self._known if (called := self._column(name))]
        if self._on_hub(path):
            options = ", ".join(f"{self.option}.{name}" for name in ("path", "configuration", "split", "revision"))
            get = f"look at {options}, or download it and give a file"
            found = read_hub(path, self.configuration, self.revision, split, get=get)
        else:
            found = read_file(Path(path).expanduser(), wanted, option=self.option)
        for name in ("id", "label", "text"):
            needed = self._column(name)
            if needed not in found.columns and not (name == "text" and self._column("prompt") in found.columns):
                shown = ", ".join(repr(column[:40]) for column in found.columns[:12]) or "none"
                raise UserError(f"{path}: has no column {needed!r}; its columns are {shown}; "
                                f"name that of the {name}: {self.option}.columns.{name}=<column>")  # fmt: skip
        if asked := next((n for n, called in self.columns.items() if called not in (n, None, *found.columns)), None):
            raise UserError(f"{self.option}.columns.{asked}={self.columns[asked]}: {path} has no such column")
        return found

    def _cases(self, rows: Rows, part: str, *, tell: bool | None = None) -> Loaded:
        """The cases of the rows in the ``part`` of the table: test, development, or "" for all.

        ``tell`` says whether rows that are of no part are told of; by default not with those of development, since they
        are with those of test.
        """
        tell = part != "development" if tell is None else tell
        images = None if self.images is None else Path(self.images).expanduser().absolute()
        if images is not None and not images.is_dir():
            raise UserError(f"{self.option}.images={self.images}: is no folder; give the one that holds the pictures")
        root = None if (folder := images or rows.root) is None else folder.resolve()
        pictured = self._column("image") in rows.columns
        samples, problems = [], list(rows.problems) if tell else []
        for place, row in rows.rows:
            cells = {name: row.get(self._column(name)) for name in self._known}
            identity = str(cells["id"])[:80] if isinstance(cells["id"], str | float) else ""
            try:
                its_part = _part(cells)
            except Unfit as error:
                problems += [Problem(place, identity, str(error))] if tell else []
                continue
            if part not in ("", its_part):
                continue
            try:
                samples.append(self._case(cells, place, root, pictured=pictured))
            except Unfit as error:
                problems.append(Problem(place, identity, str(error)))
        return Loaded(samples, {}, "", tuple(problems))

    def _case(self, cells: Mapping[str, Any], place: str, root: Path | None, *, pictured: bool) -> Sample:
        """One row as a case.

        Raises:
            Unfit: a cell holds a value of a kind that cannot be meant.
        """
        identity, prompt = _word(cells, "id") or "", _prose(cells, "prompt")
        text = _prose(cells, "text") or prompt or ""
        label = (_word(cells, "label") or "").strip()
        if label in get_args(Gold) and label not in LABELS[self.reads]:  # "no": that it is unsafe, or not harmful?
            raise Unfit(f"label: {label!r} is none of {', '.join(LABELS[self.reads])}")
        named: Any = (label, "typical")  # refused by the checks, which name the label
        gold, subset = LABELS[self.reads].get(label.casefold(), named)
        own = (_word(cells, "subset") or "").strip()
        if subset == "typical" and own.casefold() == "attack":
            subset = "attack"
        template = TEMPLATES[self.reads] if self.template is None else self.template
        family = (_word(cells, "template") or "").strip()
        return Sample(
            id=identity,
            subset=subset,
            scenario=own or label.casefold(),
            gold=gold,
            text=text,
            prompt=prompt or (template.replace(TEXT, text) if text.strip() else ""),
            image=_image(cells["image"], identity, root, self.option) if pictured else None,
            cluster=_word(cells, "cluster") or "",
            pair=_word(cells, "pair") or None,
            tags=({"subset": own} if own else {})
            | ({"template": family} if family else {})
            | _sounds(cells, "dangerous", "picture")
            | _sounds(cells, "alarming_words", "words")
            | {name: _prose(cells, name) or "" for name in self.further},
            place=place,
            shows=(_prose(cells, "shows") or "").strip(),
            alarming=_sounds(cells, "dangerous", "picture") == {"picture": ALARMING},
            subset_name=own or label.casefold(),
        )


def table(
    path: str,
    reads: str = "verdict",
    images: str | None = None,
    columns: Mapping[str, Any] | None = None,
    development: str | None = None,
    template: str | None = None,
    split: str = "test",
    configuration: str | None = None,
    revision: str | None = None,
    name: str = "",
    further: tuple[str, ...] = (),
    option: str = "benchmark",
) -> Table:
    """The table as the command line gives it: ``development`` is ``Table.to_learn_from``, values may be numbers.

    Raises:
        UserError: see ``Table``.
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise UserError(f"{option}.columns={columns}: takes columns one by one, as {option}.columns.text=question")
    given = {"path": path, "reads": reads, "images": images, "to_learn_from": development, "template": template,
             "split": split, "configuration": configuration, "revision": revision, "name": name}  # fmt: skip
    plain: dict[str, Any] = {option: None if value is None else str(value) for option, value in given.items()}
    return Table(columns=dict(columns or {}), further=further, option=option, **plain)


def _part(cells: Mapping[str, Any]) -> str:
    """Whether a row is to be evaluated (test) or learned from (development).

    Raises:
        Unfit: it says something else.
    """
    split = (_word(cells, "split") or "").strip()
    if split.casefold() not in SPLITS:
        raise Unfit(f"split: {split[:40]!r} is neither test nor development")
    return SPLITS[split.casefold()]


def _sounds(cells: Mapping[str, Any], name: str, tag: str) -> dict[str, str]:
    """Whether the picture looks dangerous, or the words sound so, as a tag; none where the cell is empty.

    Raises:
        Unfit: the cell says something else.
    """
    value = _unless_empty(cells[name])
    said = str(value).casefold() if isinstance(value, bool) else (_word(cells, name) or "").strip().casefold()
    if said and said not in SOUNDS:
        raise Unfit(f"{name}: {said[:40]!r} is neither yes nor no")
    return {tag: SOUNDS[said]} if said else {}


def _word(cells: Mapping[str, Any], name: str) -> str | None:
    """An id or a name: text, or a whole number as spreadsheets write them; None where the cell is empty.

    Raises:
        Unfit: it is something else.
    """
    value = _unless_empty(cells[name])
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64:
        return str(value)
    if value is not None and not isinstance(value, str):
        raise Unfit(f"{name}: is {_shown(value)}, which is no name")
    return value


def _prose(cells: Mapping[str, Any], name: str) -> str | None:
    """A text, its lines broken by \\n alone; None where the cell is empty.

    Raises:
        Unfit: it is something else.
    """
    value = _unless_empty(cells[name])
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unfit(f"{name}: is {_shown(value)}, which is no text")
    return value.replace("\r\n", "\n").replace("\r", "\n")  # line breaks as spreadsheets write them


def _unless_empty(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _shown(value: Any) -> str:
    """A value of a foreign file for a message, whatever it is."""
    kind = type(value).__name__
    return (
        f"a {kind}"
        if isinstance(value, dict | list | bytes | int) and not isinstance(value, bool)
        else f"{value!r:.40}"
    )


def _image(value: Any, case: str, root: Path | None, option: str) -> Path | Drawable:
    """The picture that a cell names or holds; where there is none that may be opened, what says so when it is."""
    value = _unless_empty(value)
    held = value if not isinstance(value, dict) else value.get("bytes") or value.get("path")
    if isinstance(held, str) and (uri := DATA_URI.match(held)):
        try:
            held = base64.b64decode(held[uri.end() :], validate=True)
        except (binascii.Error, ValueError):
            return _unusable("data:image", Fault.UNREADABLE, "is no base64; write the picture's bytes again")
    if isinstance(held, bytes | bytearray | memoryview):
        return EncodedImage(f"the picture of {case[:60]!r}", bytes(held))
    if held is None or held == "":
        return _unusable("", Fault.MISSING, "the cell is empty; name a file, or leave the column out of the table")
    if not isinstance(held, str):
        return _unusable("", Fault.UNREADABLE, f"the cell holds {_shown(held)}; give a path or the bytes")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", held):
        return _unusable(held, Fault.UNREADABLE, "is an address; download it, and give the file's path")
    if root is None:
        return _unusable(held, Fault.MISSING, f"is a path; say in which folder it lies with {option}.images")
    return _inside(held, root, option)


def _inside(name: str, root: Path, option: str) -> Path | Drawable:
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a NUL character, a loop of links, a name too long
        return _unusable(name, Fault.UNREADABLE, f"cannot be opened ({type(error).__name__})")
    if not path.is_relative_to(root):
        rule = f"leads out of {root}; only files in it are read; copy the file, or set {option}.images"
        return _unusable(name, Fault.OUTSIDE_ROOT, rule)
    return path


def _unusable(file: str, fault: Fault, reason: str) -> UnusableImage:
    return UnusableImage(ImageProblem(file[:200], fault, reason))
