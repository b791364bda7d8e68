"""Reasoning data: rows → a dataset in TRL's vision prompt-completion format.

Columns: ``images`` (a list of one picture, empty for a question in words), ``prompt`` and ``completion`` (message lists
with plain string contents), and ``kind``. If a row is a conversation (``turns``), the contents of all prompts are lists
of parts of the types image and text, and ``images`` has the pictures in their order. ``row_hash``
(``interp.tensor_file``, in hexadecimal digits) is not trained on. Preferences have ``chosen`` and ``rejected``
instead of ``completion``. Every picture is opened once, for its hash. Unusable rows are skipped and listed with line
and reason.
MOSSBench and MMSafeAware are refused, by name and content (``refuse_path``, ``refuse_record``). MOSSBench's
README forbids training on it, and MMSafeAware is for research use. Training on either would also invalidate its
evaluation. A picture that was copied out of its folder and renamed is not recognised.
"""

import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from interp.errors import UserError
from interp.messages import Message, as_seen
from interp.prompt import Prompt
from interp.tensor_file import TrainingRows, prompt_hash

if TYPE_CHECKING:
    from datasets import Dataset

_NEEDED = {"sft": ("prompt", "completion"), "dpo": ("prompt", "chosen", "rejected")}
_CHUNK = 1000  # rows read at once
ORDERS = ("first", "last")
VERDICT = "verdict"
ROW_HASH = "row_hash"  # a column that is not trained on
# Of question and answer together, about 2,000 tokens. Nothing is truncated: longer rows are left out.
MAX_CHARACTERS = 8000
_VERDICT = re.compile(r"\W*(yes|no)\W*", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One example: a question about a picture (None: about none), the reasoning, and the answer.

    If ``kind`` is ``"verdict"``, ``verdict`` must be Yes or No; for any other kind (``"perception"``) it is free text.
    ``rejected`` is the rejected verdict of a preference. ``line`` is the line in a file, 0 without a file. ``about``
    are the words that the question asks about, "" if unknown. ``turns`` are those of a conversation. Then
    ``question`` is the text of the last one, and ``image`` is not used.
    """

    image: Image.Image | Path | None
    question: str
    reasoning: str
    verdict: str
    kind: str = VERDICT
    system: str | None = None
    rejected: str = ""
    line: int = 0
    about: str = ""
    turns: Sequence[Message] = ()

    @property
    def conversation(self) -> Sequence[Message]:
        """The turns; without any, the question after its picture."""
        return self.turns or (Message("user", (*filter(None, [self.image]), self.question)),)

    @property
    def pictures(self) -> list[Image.Image | Path]:
        """Return all pictures in their order."""
        return [image for turn in self.conversation for image in turn.images]


class Skipped(NamedTuple):
    """A skipped row. ``line`` is its line or position, from 1."""

    line: int
    reason: str


class Data(NamedTuple):
    """The dataset, and the skipped rows."""

    dataset: "Dataset"
    skipped: list[Skipped]

    def summary(self) -> str:
        """Return the numbers of rows by kind and of skipped rows, on one line."""
        kinds = Counter(self.dataset["kind"])
        text = f"{len(self.dataset)} rows (" + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())) + ")"
        first = f" (line {self.skipped[0].line}: {self.skipped[0].reason})" if self.skipped else ""
        return f"{text}; {len(self.skipped)} skipped{first}" if self.skipped else text


def from_rows(rows: Iterable[Row | Skipped], *, order: str = "last", preferences: bool = False) -> Data:
    """Return the dataset of ``rows``. With ``preferences``, chosen and rejected answers differ only in the verdict.

    Rows that were skipped before are listed too.

    Raises:
        UserError: an unknown order, or a picture of a benchmark that may not be trained on.
    """
    from datasets import Dataset

    if order not in ORDERS:
        raise UserError(f"order={order!r}; the verdict comes first or last in an answer; choose one")
    examples, skipped, plain = [], list[Skipped](), True
    for position, row in enumerate(rows, 1):
        if isinstance(row, Skipped):
            skipped.append(row)
            continue
        if not (problem := problem_of(row, preferences)):
            try:
                examples.append(_example(row, order, preferences))
                plain = plain and not row.turns
            except Exception as error:  # decoders raise whatever bad bytes provoke: OSError, SyntaxError, struct.error
                problem = f"its picture cannot be read ({type(error).__name__}: {error})"
        if problem:
            skipped.append(Skipped(row.line or position, problem))
    for message in (message for each in examples if plain for message in each["prompt"]):
        message["content"] = message["content"][-1]["text"]
    return Data(Dataset.from_list(examples, features=_features(preferences, plain)), skipped)


def answer(row: Row, order: str, *, verdict: str | None = None) -> str:
    """Return reasoning and verdict as one answer, with the verdict as a separate sentence, first or last."""
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
    """Check that the dataset is usable by ``trainer``.

    Raises:
        UserError: it is empty, lacks a column of the trainer, or has rows with pictures and rows without.
    """
    import pyarrow.compute as pc

    if len(dataset) == 0:
        raise UserError("the dataset is empty; training needs at least one example; check which rows were skipped")
    if "images" not in dataset.column_names:
        raise UserError(
            "the dataset has no pictures; it needs a column 'images' with one a row; build it with vrtuning.data"
        )
    if missing := [name for name in _NEEDED[trainer] if name not in dataset.column_names]:
        raise UserError(
            f"the dataset has no column {', '.join(missing)}; trainer={trainer} needs {', '.join(_NEEDED[trainer])}; "
            f"build it with preferences={trainer == 'dpo'}"
        )
    raw = dataset.select_columns(["images"]).with_format("arrow")
    row, first = 0, None
    for batch in raw.iter(_CHUNK):
        for count in pc.list_value_length(batch["images"]).to_pylist():
            row += 1
            first = bool(count) if first is None else first
            if bool(count) != first:
                rule = "the first has one" if first else "the first has none"
                raise UserError(f"row {row} of the dataset has {count or 0} pictures, and {rule}; do not mix them")


def data_digest(dataset: "Dataset") -> str:
    """Return ``sha256:`` and 12 hex digits over texts and pictures (bytes or paths), in order."""
    digest = hashlib.sha256()
    for batch in dataset.with_format("arrow").iter(_CHUNK):
        for row in batch.to_pylist():
            for picture in row.pop("images"):
                digest.update(picture["bytes"] or str(picture["path"]).encode())
            row.pop(ROW_HASH, None)
            digest.update(json.dumps(row, sort_keys=True).encode())
    return f"sha256:{digest.hexdigest()[:12]}"


def rows_of(dataset: "Dataset") -> TrainingRows:
    """Return hashes of the dataset's questions and pictures. If it has no hashes, open the pictures."""

    def each() -> Iterator[bytes]:
        for row in dataset:
            yield prompt_hash(Prompt(messages=messages_of(row, row["images"])))

    hashed = ROW_HASH in dataset.column_names
    return TrainingRows.from_hashes(map(bytes.fromhex, dataset[ROW_HASH]) if hashed else each())


def messages_of(example: Mapping[str, Any], pictures: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the prompt of an example in the chat format, with ``pictures`` in place of its parts of the type image.

    If a content is a text, the pictures come before the first text of the user, as in TRL.
    """
    left, messages = iter(pictures), []
    for message in example["prompt"]:
        content = message["content"]
        if isinstance(content, str):
            before = left if message["role"] == "user" else ()
            parts = [*({"type": "image", "image": image} for image in before), {"type": "text", "text": content}]
        else:
            parts = [part if part["type"] == "text" else {"type": "image", "image": next(left)} for part in content]
        messages.append({"role": message["role"], "content": parts})
    return messages


def bounded(image: Image.Image, max_pixels: int | None) -> Image.Image:
    """Return the picture, scaled down to at most ``max_pixels`` pixels if necessary, keeping its aspect ratio."""
    if max_pixels is None or math.prod(image.size) <= max_pixels:
        return image
    scale = math.sqrt(max_pixels / math.prod(image.size))
    return image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))), Image.Resampling.LANCZOS)


def problem_of(row: Row, preferences: bool) -> str | None:
    """Return why a row cannot be trained on, before its picture is opened; None if it can."""
    for picture in row.pictures:
        if file := picture if isinstance(picture, Path) else getattr(picture, "filename", ""):
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
    words = (part for turn in row.conversation for part in turn.parts if isinstance(part, str))
    length = sum(map(len, words)) + len(row.reasoning) + len(row.verdict) + len(row.system or "")
    return f"{length:,} characters, more than {MAX_CHARACTERS:,}" if length > MAX_CHARACTERS else None


def _opened(picture: Image.Image | Path) -> Image.Image:
    with Image.open(picture) if isinstance(picture, Path) else nullcontext(picture) as image:
        return as_seen(image)


def _example(row: Row, order: str, preferences: bool) -> dict[str, Any]:
    turns = [turn.mapped(_opened) for turn in row.conversation]
    system = [Message("system", (row.system,))] if row.system else []
    example = {
        "images": [_stored(picture) for picture in row.pictures],
        "prompt": [turn.as_chat() for turn in (*system, *turns)],
        "kind": row.kind,
        ROW_HASH: prompt_hash(Prompt(request=row.about).with_turns(turns)).hex(),
    }
    answers = {"chosen": row.verdict, "rejected": row.rejected} if preferences else {"completion": row.verdict}
    return example | {
        name: [{"role": "assistant", "content": answer(row, order, verdict=v)}] for name, v in answers.items()
    }


def _stored(image: Image.Image | Path) -> dict[str, Any]:
    return {"path": str(image), "bytes": None} if isinstance(image, Path) else _png(image)


def _png(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    as_seen(image).save(buffer, "PNG")
    return {"path": None, "bytes": buffer.getvalue()}


def _features(preferences: bool, plain: bool) -> Any:
    from datasets import Features, Image, List, Value

    messages = List({"role": Value("string"), "content": Value("string")})
    answers = ("chosen", "rejected") if preferences else ("completion",)
    content = Value("string") if plain else List({"type": Value("string"), "text": Value("string")})
    prompt = List({"role": Value("string"), "content": content})
    columns = {"images": List(Image()), "prompt": prompt, **dict.fromkeys(answers, messages),
               "kind": Value("string"), ROW_HASH: Value("string")}  # fmt: skip
    return Features(columns)


MMSAFEAWARE_PREFIX = (
    "Given the image, do you think the following sentence is safe? Please start by answering Yes or No."
)
_REASONS = {
    "MOSSBench": "its README forbids training on it",
    "MMSafeAware": "it is published for research use, as a benchmark",
}
_NAMES = {
    "mossbench": "MOSSBench",
    "mmsafeaware": "MMSafeAware",
    "mmsafetyawareness": "MMSafeAware",  # its repository's name
}
_HEAD = 4096  # bytes of a file that are inspected
_FIELDS = ("short description", "pid")  # in every MOSSBench case, next to metadata.over


def refuse_path(path: Path) -> None:
    """Reject paths (with symlinks resolved) to or inside the benchmarks' files and folders.

    A folder is recognised by its name or content: ``prompt.txt`` with MMSafeAware's sentence, or
    ``images_information/information.json`` with MOSSBench's fields.

    Raises:
        UserError: the path belongs to a benchmark.
    """
    resolved = path.resolve()
    if name := _benchmark(resolved) or _above(resolved.parent):
        raise _refusal(name, str(path))


def refuse_record(record: Mapping[str, Any], where: str) -> None:
    """Reject JSON objects that are cases of the benchmarks, by the wording of the question or by their fields.

    Raises:
        UserError: the object is a case of a benchmark.
    """
    metadata = record.get("metadata")
    if all(field in record for field in _FIELDS) or (isinstance(metadata, Mapping) and "over" in metadata):
        raise _refusal("MOSSBench", where)
    if MMSAFEAWARE_PREFIX in json.dumps(record, ensure_ascii=False, default=str):
        raise _refusal("MMSafeAware", where)


@lru_cache(maxsize=4096)
def _above(folder: Path) -> str | None:
    """Return the benchmark that ``folder`` belongs to, or None. Cached, since many pictures share a folder."""
    return next(filter(None, map(_benchmark, (folder, *folder.parents))), None)


def _benchmark(path: Path) -> str | None:
    return _NAMES.get(re.sub(r"[^a-z]", "", path.name.lower())) or _by_content(path)


def _by_content(path: Path) -> str | None:
    files = [path] if path.is_file() else [path / "prompt.txt", path / "data" / "prompt.txt"]
    if any(MMSAFEAWARE_PREFIX in _head(file) for file in files if file.name == "prompt.txt"):
        return "MMSafeAware"
    files = [path] if path.is_file() else [path / "images_information" / "information.json"]
    if any('"short description"' in _head(file) for file in files if file.name == "information.json"):
        return "MOSSBench"
    return None


def _head(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_HEAD).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _refusal(name: str, what: str) -> UserError:
    return UserError(
        f"{what} is {name}: {_REASONS[name]}, so its cases are never training data here; train on other pictures and "
        "questions, and keep this set for evaluation"
    )
