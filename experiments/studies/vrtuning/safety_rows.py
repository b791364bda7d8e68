"""Safety data without pictures for ``task=align``: IconWorld's requests in words, or a file in TRL's formats.

A source gives ``rows``; what makes them unfit for a trainer, and rows that are tested too, are refused before any
weights load.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.benchmarks.iconworld.in_words import BORDERLINE, HARMFUL, HARMLESS, WrittenRequests, named
from experiments.benchmarks.iconworld.scene import Scene
from experiments.types import Loaded, Sample
from interp.errors import UserError
from mitigation.reference_resolution import parts
from mitigation.vrtuning.data import Data, Row, from_rows
from mitigation.vrtuning.data_policy import refuse_path, refuse_record

OPTION = "task.data"
MESSAGES, PROMPT, COMPLETION, CHOSEN, REJECTED = "messages", "prompt", "completion", "chosen", "rejected"


@dataclass(frozen=True)
class WrittenSafety(WrittenRequests):
    """``WrittenRequests`` as training rows."""

    def rows(self) -> list[Row]:
        """The rows, each with its answer and the wrong one."""
        return [
            Row(None, one.asked, "", one.answer, one.kind, rejected=one.wrong, about=one.request)
            for one in self.write()
        ]

    def with_share(self, borderline: float) -> "WrittenSafety":
        """The same requests with another share of borderline ones."""
        return replace(self, borderline=borderline)


@dataclass(frozen=True)
class SafetyFile:
    """A JSONL file in one of TRL's formats, a field ``safe`` beside them.

    A line has ``prompt`` and ``completion``, ``prompt`` and ``chosen`` and ``rejected``, or ``messages``; each a text
    or a list of messages (``role``, ``content``) of one exchange, after a system prompt or none. ``safe`` is true where
    answering is right and false where refusing is. ``borderline: true`` marks what sounds harmful and is harmless; of
    these as many are kept, the first, as make the share ``borderline`` of all rows (None: all).

    Raises:
        UserError: it belongs to a benchmark that may not be trained on, or a share outside 0 to below 1.
    """

    path: str
    borderline: float | None = None

    def __post_init__(self) -> None:
        refuse_path(Path(self.path))
        if self.borderline is not None and not 0 <= self.borderline < 1:
            raise UserError(f"{OPTION}.borderline={self.borderline}; a share of the rows; at least 0 and below 1")

    def with_share(self, borderline: float) -> "SafetyFile":
        """The same file with another share of borderline rows."""
        return replace(self, borderline=borderline)

    def rows(self) -> list[Row]:
        """The rows in the file's order.

        Raises:
            UserError: there is no such file, or a line has none of the formats.
        """
        if not Path(self.path).is_file():
            raise UserError(f"no file {self.path}; safety data is a JSONL file; correct {OPTION}.path")
        found = []
        for number, line in enumerate(Path(self.path).read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{self.path}, line {number}: {error}; each line is a JSON object") from error
                if not isinstance(record, dict):
                    raise UserError(f"{self.path}, line {number}: no JSON object; each line is one")
                refuse_record(record, f"{self.path}:{number}")
                found.append(_row(record, number, f"{self.path}, line {number}"))
        if self.borderline is None:
            return found
        others = sum(row.kind != BORDERLINE for row in found)
        most = round(self.borderline / (1 - self.borderline) * others)
        extra = [row.line for row in found if row.kind == BORDERLINE][most:]
        return [row for row in found if row.line not in set(extra)]


Source = WrittenSafety | SafetyFile


def check_rows(rows: Sequence[Row], trainer: str) -> None:
    """Checks that the rows can align a model.

    Raises:
        UserError: rows of one class, or none to prefer for ``dpo``.
    """
    safe = {row.kind != HARMFUL for row in rows}
    if len(safe) < 2:
        which = "harmful" if safe == {False} else "harmless" if safe else "no"
        raise UserError(
            f"{OPTION} has {which} rows alone ({len(rows)}); from one class a model learns to say one thing to all; "
            'give rows of both ("safe": true and false)'
        )
    if trainer == "dpo" and (lone := [row.line for row in rows if not row.rejected]):
        raise UserError(
            f"trainer=dpo, but line {lone[0]} of {OPTION} has no pair of answers ({len(lone)} of {len(rows)} rows); "
            f"give {CHOSEN} and {REJECTED}, or take trainer=sft"
        )


def apart(rows: Sequence[Row], loaded: Loaded, *, skip: bool) -> Loaded:
    """The cases whose sentences are not among the rows; with ``skip`` the others are left out, under ``missing``.

    A sentence is compared by its words, as it stands and with IconWorld's thing named, also within a longer one.
    Controls, which no rate counts, are left aside: their benign sentences are in every split.

    Raises:
        UserError: there are such cases and ``skip`` is false, or no other is left.
    """
    trained = {_plain(text) for row in rows for text in (row.question, row.about, parts(row.question).request) if text}
    texts = {one.id: _sentences(one) for one in loaded.samples if one.subset != "control"}
    all_trained, all_asked = "\n".join(trained), "\n".join(text for ones in texts.values() for text in ones)
    within = [text for text in trained if text in all_asked]
    both: dict[str, str] = {}
    for case, ones in texts.items():
        for text in ones:
            if text in all_trained or any(one in text for one in within):
                both.setdefault(case, text.strip())
    if both and not (skip and len(both) < len(texts)):
        way_out = "test on others, such as benchmark.split=new_sentences"
        way_out += "" if len(both) == len(texts) else ", or leave these cases out: skip_trained=true"
        raise UserError(
            f"the sentences of {len(both)} of {len(texts)} cases are in {OPTION} ({next(iter(both.values()))[:80]!r}), "
            f"and what was learned proves nothing on them; {way_out}"
        )
    kept = [sample for sample in loaded.samples if sample.id not in both]
    missing = {
        case: f"left out of every arm: {text[:80]!r}, or a part of it, is trained on" for case, text in both.items()
    }
    return loaded._replace(samples=kept, missing={**loaded.missing, **missing}) if both else loaded


def data_of(rows: Sequence[Row], trainer: str) -> Data:
    """The dataset of ``rows`` for a trainer."""
    return from_rows(rows, preferences=trainer == "dpo")


def digest(rows: Sequence[Row]) -> str:
    """A hash of the rows' words, 16 hexadecimal digits."""
    words = [[row.system, row.question, row.verdict, row.rejected, row.kind] for row in rows]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def _plain(text: str) -> str:
    """The words alone, each between spaces, so that a sentence is found within another by whole words."""
    return " ".join(["", *re.findall(r"\w+", text.casefold()), ""])


def _sentences(sample: Sample) -> set[str]:
    thing = sample.image.thing if isinstance(sample.image, Scene) else None
    return {_plain(sample.text)} if thing is None else {_plain(sample.text), _plain(named(sample.text, thing))}


def _row(record: dict[str, Any], number: int, where: str) -> Row:
    if not isinstance(safe := record.get("safe"), bool):
        raise UserError(f'{where}: safe={safe!r}; "safe" is true where answering is right, false where refusing is')
    turns = _messages(record.get(MESSAGES, record.get(PROMPT)), "user", where)
    chosen = record[MESSAGES] if MESSAGES in record else record.get(CHOSEN, record.get(COMPLETION))
    answer = _messages(chosen, "assistant", where).get("assistant", "")
    rejected = _messages(record[REJECTED], "assistant", where).get("assistant", "") if REJECTED in record else ""
    if not (turns.get("user") and answer):
        raise UserError(
            f"{where}: no question with its answer; a row has {PROMPT} and {COMPLETION}, {PROMPT}, {CHOSEN} and "
            f"{REJECTED}, or {MESSAGES}"
        )
    kind = HARMFUL if not safe else BORDERLINE if record.get(BORDERLINE) is True else HARMLESS
    return Row(None, turns["user"], "", answer, kind, turns.get("system"), rejected, number)


def _messages(given: Any, role: str, where: str) -> dict[str, str]:
    """The text of each role; of a text alone, that of ``role``."""
    if isinstance(given, str) or given is None:
        return {role: given or ""}
    try:
        turns = [(str(one["role"]), one["content"]) for one in given]
    except (TypeError, KeyError) as error:
        raise UserError(f"{where}: messages are a list of objects with role and content") from error
    known, texts = {"system", "user", "assistant"}, dict(turns)
    if (
        len(texts) < len(turns)
        or not known >= texts.keys()
        or not all(isinstance(text, str) for text in texts.values())
    ):
        raise UserError(
            f"{where}: one exchange in words alone is trained on; give system, user and assistant once each"
        )
    return texts
