"""Safety data without pictures for ``task=align``: IconWorld's requests in words, or a JSONL file.

A source gives ``rows``. Rows that a trainer cannot use, and rows that are tested too, are refused before any weights
load.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.traces import BORDERLINE, HARMFUL, HARMLESS, WrittenRequests, named
from experiments.types import Sample
from interp.errors import UserError
from mitigation.reference_resolution import parts
from mitigation.vrtuning.data import Row, problem_of, refuse_path, refuse_record

OPTION = "task.data"
FORMAT = (
    "a row has prompt and completion, or prompt, chosen and rejected, all of them texts; or messages with a question "
    "and its answer"
)


@dataclass(frozen=True)
class WrittenSafety(WrittenRequests):
    """``WrittenRequests`` as training rows."""

    def rows(self) -> list[Row]:
        """Return the rows, each with the right and the wrong answer."""
        return [
            Row(None, each.question, "", each.answer, each.kind, rejected=each.wrong, about=each.request)
            for each in self.write()
        ]


@dataclass(frozen=True)
class SafetyFile:
    """A JSONL file in one of TRL's standard formats, with a field ``safe``.

    A line has the texts ``prompt`` and ``completion``, or ``prompt``, ``chosen`` and ``rejected``; and ``system`` if
    there is a system prompt. Or it has ``messages``: a system message if there is one, a question and its answer.
    ``safe`` is true if answering is right and false if refusing is. ``borderline: true`` marks a request that sounds
    harmful and is harmless. The first of these are kept, as many as make the share
    ``borderline`` of all rows (None: all).

    Raises:
        UserError: it belongs to a benchmark that may not be trained on, or a share outside 0 to below 1.
    """

    path: str
    borderline: float | None = None

    def __post_init__(self) -> None:
        refuse_path(Path(self.path))
        if self.borderline is not None and not 0 <= self.borderline < 1:
            raise UserError(f"{OPTION}.borderline={self.borderline}; a share of the rows; at least 0 and below 1")

    def rows(self) -> list[Row]:
        """Return the rows in the file's order.

        Raises:
            UserError: there is no such file, or a line has none of the formats.
        """
        if not Path(self.path).is_file():
            raise UserError(f"no file {self.path}; safety data is a JSONL file; correct {OPTION}.path")
        lines = enumerate(Path(self.path).read_text(encoding="utf-8").splitlines(), 1)
        rows = [_row(line, number, f"{self.path}, line {number}") for number, line in lines if line.strip()]
        if self.borderline is None:
            return rows
        others = sum(row.kind != BORDERLINE for row in rows)
        most = round(self.borderline / (1 - self.borderline) * others)
        extra = [row.line for row in rows if row.kind == BORDERLINE][most:]
        return [row for row in rows if row.line not in extra]


Source = WrittenSafety | SafetyFile


def check_rows(rows: Sequence[Row], trainer: str) -> None:
    """Check that the rows can align a model.

    Raises:
        UserError: rows of one class, or none to prefer for ``dpo``.
    """
    problems = [(row, problem_of(row, trainer == "dpo")) for row in rows]
    usable = [row for row, problem in problems if problem is None]
    safe = {row.kind != HARMFUL for row in usable}
    if len(safe) < 2:
        which = "only harmful rows" if safe == {False} else "only harmless rows" if safe else "no usable rows"
        dropped = [f"line {row.line}: {problem}" for row, problem in problems if problem]
        left = f", and {len(dropped)} that cannot be trained on ({dropped[0]})" if dropped else ""
        raise UserError(
            f"{OPTION} has {which} ({len(usable)}){left}; from one class a model learns one answer to "
            'everything; give rows of both ("safe": true and false)'
        )
    if trainer == "dpo" and (lone := [row.line for row in rows if not row.rejected]):
        raise UserError(
            f"trainer=dpo, but line {lone[0]} of {OPTION} has no pair of answers ({len(lone)} of {len(rows)} rows); "
            "give chosen and rejected, or set trainer=sft"
        )


def check_untrained(rows: Sequence[Row], samples: Sequence[Sample]) -> None:
    """Check that no case's sentence is in the rows.

    A sentence is compared by its words, as it stands and with IconWorld's thing named, also within a longer one.
    Controls, which no rate counts, are left aside: their benign sentences are in every split.

    Raises:
        UserError: there are such cases.
    """
    trained = {_plain(text) for row in rows for text in (row.question, row.about, parts(row.question).request) if text}
    cases = {case.id: _sentences(case) for case in samples if case.subset != "control"}
    everything = "\n".join(text for texts in cases.values() for text in texts)
    all_trained, within = "\n".join(trained), [text for text in trained if text in everything]
    seen = {
        case: [text for text in texts if text in all_trained or any(part in text for part in within)]
        for case, texts in cases.items()
    }
    if both := [texts[0].strip() for texts in seen.values() if texts]:
        raise UserError(
            f"the sentences of {len(both)} of {len(cases)} cases are in {OPTION} ({both[0][:80]!r}), so results on "
            "them prove nothing; test on others, such as benchmark.split=new_sentences"
        )


def _plain(text: str) -> str:
    """Return the words, each between spaces, so that a sentence is found within another by whole words."""
    return " ".join(["", *re.findall(r"\w+", text.casefold()), ""])


def _sentences(sample: Sample) -> set[str]:
    thing = sample.image.thing if isinstance(sample.image, Scene) else None
    return {_plain(sample.text)} if thing is None else {_plain(sample.text), _plain(named(sample.text, thing))}


def _as_texts(record: dict[str, Any]) -> dict[str, Any]:
    """Return a row with ``messages`` of one question and its answer as a row of texts; other rows are unchanged."""
    match record.get("messages"):
        case [{"role": "system", "content": system}, *turns]:
            named = {"system": system}
        case turns:
            named = {}
    match turns:
        case [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]:
            return record | named | {"prompt": prompt, "completion": answer}
    return record


def _row(line: str, number: int, where: str) -> Row:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {error}; each line is a JSON object") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: no JSON object; each line is one")
    refuse_record(record, where)
    if not isinstance(safe := record.get("safe"), bool):
        raise UserError(f'{where}: safe={safe!r}; "safe" is true where answering is right, false where refusing is')
    record = _as_texts(record)
    prompt, answer = record.get("prompt"), record.get("chosen", record.get("completion"))
    texts = (prompt, answer, system := record.get("system", ""), rejected := record.get("rejected", ""))
    if not (prompt and answer and all(isinstance(text, str) for text in texts)):
        raise UserError(f"{where}: no question with its answer; {FORMAT}")
    kind = HARMFUL if not safe else BORDERLINE if record.get(BORDERLINE) is True else HARMLESS
    return Row(None, prompt, "", answer, kind, system or None, rejected, number)
