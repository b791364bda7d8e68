"""Reasoning data: rows, or JSONL with local pictures, → a dataset in TRL's vision prompt-completion format.

Columns: ``images`` (a list of one picture), ``prompt`` and ``completion`` (message lists with plain string contents),
and ``kind``; for preferences ``chosen`` and ``rejected`` instead of ``completion``. Unusable rows are left out and
listed with line and reason. Picture files are untrusted: they must be inside a folder, are limited in pixels, and are
decoded in full. Benchmarks that may not be trained on are rejected as a whole (``data_policy``).
"""

import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from interp.errors import UserError
from interp.prompt import to_rgb
from mitigation.vrtuning.data_policy import refuse_path, refuse_record

if TYPE_CHECKING:
    from datasets import Dataset

_NEEDED = {"sft": ("prompt", "completion"), "dpo": ("prompt", "chosen", "rejected")}
_CHUNK = 1000  # rows read at once
MAX_PIXELS = 50_000_000
# Decoders that only parse bytes; some of Pillow's others start external programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
ORDERS = ("first", "last")
VERDICT = "verdict"
# Of question and answer together, about 2,000 tokens. Nothing is truncated: longer rows are left out.
MAX_CHARACTERS = 8000
STAGES = ("SUMMARY", "CAPTION", "REASONING", "CONCLUSION")
_VERDICT = re.compile(r"\W*(yes|no)\W*", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One example: a question about a picture, the reasoning, and the answer.

    If ``kind`` is ``"verdict"``, ``verdict`` must be Yes or No; for any other kind (``"perception"``) it is free text.
    ``rejected`` is the rejected verdict of a preference.
    """

    image: Image.Image | Path
    question: str
    reasoning: str
    verdict: str
    kind: str = VERDICT
    system: str | None = None
    rejected: str = ""


class Skipped(NamedTuple):
    """A row that was left out. ``line`` is its line or position, from 1."""

    line: int
    reason: str


class Data(NamedTuple):
    """The dataset, and the rows left out of it."""

    dataset: "Dataset"
    skipped: list[Skipped]

    def summary(self) -> str:
        """The numbers of rows by kind and of rows left out by reason, on one line."""
        kinds = Counter(self.dataset["kind"])
        text = f"{len(self.dataset)} rows (" + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())) + ")"
        return f"{text}; {len(self.skipped)} skipped" if self.skipped else text


def from_rows(
    rows: Iterable[Row], *, order: str = "last", preferences: bool = False, max_characters: int = MAX_CHARACTERS
) -> Data:
    """The dataset of ``rows``; with ``preferences``, chosen and rejected answers that differ only in the verdict.

    Raises:
        UserError: an unknown order, or a picture of a benchmark that may not be trained on.
    """
    numbered = ((line, row) for line, row in enumerate(rows, 1))
    return build(numbered, order=order, preferences=preferences, max_characters=max_characters)


def reasoned_jsonl(
    path: Path,
    image_root: Path | None = None,
    *,
    order: str = "last",
    preferences: bool = False,
    max_characters: int = MAX_CHARACTERS,
) -> Data:
    """Reads a JSONL file with ``image``, ``question``, ``reasoning``, ``verdict`` (optional: ``kind``, ``rejected``).

    ``image`` is a path under ``image_root``, by default the file's own folder.
    """
    rows = read_jsonl(Path(path), image_root, "reasoned")
    return build(rows, order=order, preferences=preferences, max_characters=max_characters)


def llava_cot(path: Path, image_root: Path, *, order: str = "last", max_characters: int = MAX_CHARACTERS) -> Data:
    """Reads a JSONL file in the format of LLaVA-CoT-100k (Xu et al. 2024, arXiv 2411.10440), with its pictures on disk.

    Written from the published description, without access to the data set: ``image`` is a path under ``image_root``,
    ``conversations`` are turns with ``from`` (``human`` or ``gpt``) and ``value``. A gpt turn holds the stages in tags,
    ``<SUMMARY>``, ``<CAPTION>``, ``<REASONING>``, ``<CONCLUSION>``. The conclusion becomes the verdict as free text
    (kind ``"cot"``), the other stages become the reasoning, without tags. Each exchange of a dialogue is a row.
    """
    return build(read_jsonl(Path(path), image_root, "llava_cot"), order=order, max_characters=max_characters)


def read_jsonl(path: Path, image_root: Path | None, form: str) -> Iterator[tuple[int, Row | str]]:
    """Line and row of a JSONL file in the form ``reasoned`` or ``llava_cot``; in place of a row why there is none.

    Raises:
        UserError: there is no such file or folder, or it is a benchmark that may not be trained on.
    """
    return _read(path, image_root, {"reasoned": _reasoned, "llava_cot": _exchanges}[form])


def build(
    rows: Iterable[tuple[int, Row | str]],
    *,
    order: str = "last",
    preferences: bool = False,
    max_characters: int = MAX_CHARACTERS,
) -> Data:
    """The dataset of numbered rows; a text in place of a row says why it is left out. Otherwise as ``from_rows``."""
    from datasets import Dataset

    if order not in ORDERS:
        raise UserError(f"order={order!r}; the verdict comes first or last in an answer; choose one")
    examples, skipped = [], []
    for line, row in rows:
        problem = row if isinstance(row, str) else _problem(row, preferences, max_characters)
        if isinstance(row, str) or problem:
            skipped.append(Skipped(line, problem or ""))
        else:
            examples.append(_example(row, order, preferences))
    return Data(Dataset.from_list(examples, features=_features(preferences)), skipped)


def answer(row: Row, order: str, *, verdict: str | None = None) -> str:
    """Reasoning and verdict as one answer, with the verdict as a separate sentence, first or last."""
    verdict = row.verdict if verdict is None else verdict
    if row.kind == VERDICT and (match := _VERDICT.fullmatch(verdict)):
        verdict = f"{match[1].capitalize()}."
    verdict, reasoning = verdict.strip(), row.reasoning.strip()
    if not reasoning:
        return verdict
    if reasoning[-1] not in ".!?":
        reasoning += "."  # the verdict parser needs a final sentence of only Yes or No
    return f"{verdict} {reasoning}" if order == "first" else f"{reasoning} {verdict}"


def check_dataset(dataset: "Dataset", trainer: str) -> None:
    """Checks that the dataset is usable by ``trainer``.

    Raises:
        UserError: it is empty, lacks a column of the trainer, or has a row without exactly one picture.
    """
    import pyarrow.compute as pc

    if len(dataset) == 0:
        raise UserError("the dataset is empty; training needs at least one example; check which rows were skipped")
    if "images" not in dataset.column_names:
        raise UserError("the dataset has no pictures; a column 'images' holds one a row; build it with vrtuning.data")
    if missing := [name for name in _NEEDED[trainer] if name not in dataset.column_names]:
        raise UserError(
            f"the dataset has no column {', '.join(missing)}; trainer={trainer} needs {', '.join(_NEEDED[trainer])}; "
            f"build it with preferences={trainer == 'dpo'}"
        )
    raw = dataset.select_columns(["images"]).with_format("arrow")
    row = 0
    for batch in raw.iter(_CHUNK):
        for count in pc.list_value_length(batch["images"]).to_pylist():
            row += 1
            if count != 1:
                raise UserError(f"row {row} of the dataset has {count or 0} pictures; each has one; leave it out")


def data_digest(dataset: "Dataset") -> str:
    """``sha256:`` and 12 hex digits over texts and pictures (bytes or paths), in order."""
    digest = hashlib.sha256()
    for batch in dataset.with_format("arrow").iter(_CHUNK):
        for row in batch.to_pylist():
            for picture in row.pop("images"):
                digest.update(picture["bytes"] or str(picture["path"]).encode())
            digest.update(json.dumps(row, sort_keys=True).encode())
    return f"sha256:{digest.hexdigest()[:12]}"


def bounded(image: Image.Image, max_pixels: int | None) -> Image.Image:
    """The picture, scaled down to at most ``max_pixels`` pixels if necessary, keeping its aspect ratio."""
    if max_pixels is None or math.prod(image.size) <= max_pixels:
        return image
    scale = math.sqrt(max_pixels / math.prod(image.size))
    return image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))), Image.Resampling.LANCZOS)


class Unusable(Exception):
    """Why a picture cannot be used, as part of a sentence."""


def usable(name: str, root: Path) -> Path:
    """The absolute path of the picture ``name`` under ``root``, after decoding it in full.

    Raises:
        Unusable: the path or the picture cannot be used.
    """
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            raise Unusable(f"image {name} leads outside {root}")
        if not path.exists():
            raise Unusable(f"image {name} is missing")
        if not path.is_file():  # reading a pipe or a device could block
            raise Unusable(f"image {name} is not a regular file")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of symlinks, or a NUL character in the name
        raise Unusable(f"image {name!r} cannot be opened ({error})") from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            if math.prod(image.size) > MAX_PIXELS:
                raise Unusable(f"image {name} has {math.prod(image.size):,} pixels, more than the {MAX_PIXELS:,} read")
            image.load()
    except Unusable:
        raise
    except Exception as error:  # decoders raise many types for corrupt files
        raise Unusable(f"image {name} is not a complete {', '.join(FORMATS)} ({type(error).__name__})") from error
    return path


_Parse = Callable[[dict[str, Any], Path], Iterator[Row]]


class _Invalid(Exception):
    """Why a row is left out."""


def _read(path: Path, image_root: Path | None, parse: _Parse) -> Iterator[tuple[int, Row | str]]:
    root = Path(image_root) if image_root is not None else path.parent
    for place in (path, root):
        refuse_path(place)
    if not path.is_file():
        raise UserError(f"no file {path}; training data is a JSONL file; correct the path")
    if not root.is_dir():
        raise UserError(f"no folder {root}; the pictures of {path.name} lie in it; correct image_root")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield from ((number, found) for found in _parsed(line, root, parse, f"{path}:{number}"))


def _parsed(line: bytes, root: Path, parse: _Parse, where: str) -> Iterator[Row | str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        yield f"bad JSON ({error})"
        return
    if not isinstance(record, dict):
        yield "not a JSON object"
        return
    refuse_record(record, where)
    try:
        yield from parse(record, root)
    except (_Invalid, Unusable) as error:
        yield str(error)


def _reasoned(record: dict[str, Any], root: Path) -> Iterator[Row]:
    texts = {name: _text(record, name, default="" if name == "rejected" else None) for name in
             ("question", "reasoning", "verdict", "rejected")}  # fmt: skip
    yield Row(_picture(record, root), **texts, kind=_text(record, "kind", default=VERDICT))


def _exchanges(record: dict[str, Any], root: Path) -> Iterator[Row]:
    turns = record.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _Invalid("no conversations")
    picture = _picture(record, root)
    pairs = [(human, gpt) for human, gpt in pairwise(turns) if (human.get("from"), gpt.get("from")) == ("human", "gpt")]
    if not pairs:
        raise _Invalid("no exchange between human and gpt")
    for human, gpt in pairs:
        stages = _stages(_text(gpt, "value"))
        reasoning = " ".join(stages[name] for name in STAGES[:-1] if stages[name])
        question = _text(human, "value").replace("<image>", "").strip()
        yield Row(picture, question, reasoning, stages["CONCLUSION"], kind="cot")


def _stages(text: str) -> dict[str, str]:
    found = {name: re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in STAGES}
    return {name: " ".join(match[1].split()) if match else "" for name, match in found.items()}


def _text(record: dict[str, Any], name: str, default: str | None = None) -> str:
    value = record.get(name, default)
    if not isinstance(value, str):
        raise _Invalid(f"{name} is {'absent' if value is None else 'not a text'}")
    return value


def _picture(record: dict[str, Any], root: Path) -> Path:
    name = _text(record, "image")
    if not name:
        raise _Invalid("no image")
    path = usable(name, root)
    refuse_path(path)
    return path


def _problem(row: Row, preferences: bool, max_characters: int) -> str | None:
    file = row.image if isinstance(row.image, Path) else getattr(row.image, "filename", "")
    if file:
        refuse_path(Path(file))
    if not row.question.strip():
        return "no question"
    if not row.verdict.strip():
        return "no verdict"
    for name in ("verdict", "rejected") if preferences else ("verdict",):
        if row.kind == VERDICT and not _VERDICT.fullmatch(getattr(row, name)):
            return f"{name} {getattr(row, name)!r} is neither Yes nor No"
    if preferences and answer(row, "last") == answer(row, "last", verdict=row.rejected):
        return "the rejected verdict is the chosen one"
    length = len(row.question) + len(row.reasoning) + len(row.verdict) + len(row.system or "")
    return f"{length:,} characters, more than {max_characters:,}" if length > max_characters else None


def _example(row: Row, order: str, preferences: bool) -> dict[str, Any]:
    system = [_message("system", row.system)] if row.system else []
    example = {
        "images": [{"path": str(row.image), "bytes": None} if isinstance(row.image, Path) else _png(row.image)],
        "prompt": [*system, _message("user", row.question)],
        "kind": row.kind,
    }
    if preferences:
        rejected = answer(row, order, verdict=row.rejected)
        return example | {
            "chosen": [_message("assistant", answer(row, order))],
            "rejected": [_message("assistant", rejected)],
        }
    return example | {"completion": [_message("assistant", answer(row, order))]}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _png(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    to_rgb(image).save(buffer, "PNG")
    return {"path": None, "bytes": buffer.getvalue()}


def _features(preferences: bool) -> Any:
    from datasets import Features, Image, List, Value

    messages = List({"role": Value("string"), "content": Value("string")})
    answers = ("chosen", "rejected") if preferences else ("completion",)
    columns = {"images": List(Image()), "prompt": messages, **dict.fromkeys(answers, messages), "kind": Value("string")}
    return Features(columns)
