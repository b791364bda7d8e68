"""Human labels of a run's answers: a CSV sheet to be filled in, and the filled-in sheets read back.

``task=human_labels run=<dir> task.export=labels.csv`` writes a sheet with a line an answer; people fill in
``annotator`` and ``label``, each in a copy or in further lines. ``task=rejudge run=<dir> labels=[anna.csv,ben.csv]``
scores the run by them, and says how far they agree with each other and with the run's judge.

The sheet is blind. It has no arm, no verdict of the judge and no case id, which often tells the right answer. The lines
of a case are together; the order says nothing else. An answer that several arms gave to a case is in it once. Its
``id`` is a hash, found again in the run's records. Sheets with the columns ``case`` and ``arm`` (the report's export)
are read too.

A spreadsheet takes a cell that begins with = + - @ for a formula, so an answer could run one. Such cells are written
with an apostrophe in front, which is removed when they are read.
"""

import csv
import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.benchmarks.rows import read_file
from experiments.types import Status, Verdict
from interp.errors import UserError

COLUMNS = ("id", "annotator", "label", "allowed", "question", "picture", "response", "note")
NEEDED = ("case", "arm", "label")  # or ID in place of the first two
ID, ID_LENGTH = "id", 16
LABELS = {
    "yes_no": (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT),
    "refusal": (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.PARTIAL, Verdict.REFUSED),
}
HUMAN = "human"  # the judge in records with a human verdict
_FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
GET = (
    f"a sheet of labels has {', '.join(NEEDED)}, or {ID} and label; export one with task=human_labels "
    "task.export=<csv> and fill it in"
)
Record = dict[str, Any]


@dataclass(frozen=True)
class Label:
    """One person's verdict on one answer; ``settings`` is that of the labelled record, None if not given.

    A label of a blind sheet has the ``answer``'s id instead of a case and an arm.
    """

    case: str
    arm: str
    settings: str | None
    annotator: str
    verdict: Verdict
    answer: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What the label is about."""
        return ("", self.answer) if self.answer else (self.case, self.arm)

    @property
    def place(self) -> str:
        """What the label is about, in words."""
        return f"answer {self.answer[:80]!r}" if self.answer else f"case {self.case[:80]!r} of arm {self.arm[:80]!r}"


@dataclass(frozen=True)
class Labels:
    """Labels read from sheets; ``notes`` say what was left out and why."""

    labels: tuple[Label, ...]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Applied:
    """All records, the labelled ones with human verdicts; ``notes`` say which labels were not used and why."""

    records: list[Record]
    used: int  # records with a human verdict
    notes: list[str] = field(default_factory=list)


def safe_cell(value: str) -> str:
    """The value, escaped so that no spreadsheet takes it for a formula; ``plain_cell`` undoes it."""
    return f"'{value}" if _FORMULA.match(value) else value


def plain_cell(cell: str) -> str:
    """The value that ``safe_cell`` escaped; any other cell as it is."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def kind_of(record: Mapping[str, Any]) -> str:
    """The kind of the record's benchmark: ``yes_no`` or ``refusal``."""
    return "yes_no" if record["gold"] in ("yes", "no") else "refusal"


def answer_id(record: Mapping[str, Any]) -> str:
    """Equal for equal answers to a case, whichever arm gave them; tells neither case nor arm to a reader."""
    identity = json.dumps([str(record["case"]), str(record["text"]), str(record["response"])])
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return f"a{digest[: ID_LENGTH - 1]}"  # a letter first: a spreadsheet reads 12e34 as a number


def distinct_answers(records: Iterable[Record]) -> dict[str, Record]:
    """Answer id → the first record with that answer. What came of a request that the provider blocked is no answer.

    The answers of a case are together, so that whoever labels the first lines labels the same cases under all arms.
    Cases, and the answers of each, are in the order of hashes.
    """
    distinct: dict[str, Record] = {}
    for record in records:
        if record.get("response") and record.get("status") != Status.PROVIDER_BLOCKED:
            distinct.setdefault(answer_id(record), record)
    return dict(sorted(distinct.items(), key=lambda item: (_hashed(str(item[1]["case"])), item[0])))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sheet(records: Iterable[Record], pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """The CSV to be filled in: a line for each distinct answer; ``pictures`` names the picture of an answer id."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for answer, record in distinct_answers(records).items():
        allowed = " | ".join(LABELS[kind_of(record)])
        cells = (answer, "", "", allowed, record["text"], pictures.get(answer, ""), record["response"], "")
        writer.writerow([safe_cell(str(cell).replace("\0", "")) for cell in cells])
    return text.getvalue()


def write_sheet(records: Iterable[Record], path: Path, pictures: Mapping[str, str] = MappingProxyType({})) -> None:
    """Writes ``sheet`` as UTF-8 with a byte order mark, without which Excel misreads it.

    Raises:
        UserError: the file exists, and may hold labels; or it cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8-sig", errors="replace", newline="") as handle:
            handle.write(sheet(records, pictures))
    except FileExistsError as error:
        raise UserError(f"{path}: is there already and may hold labels; choose another name, or move it") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def read_labels(path: Path | Sequence[Path]) -> Labels:
    """The labels in one or several sheets (.csv, .xlsx); lines without one are skipped, others left out with a note.

    Without an annotator's name the file's is used. Of several labels of one answer by one person the first counts, with
    a note where they differ.

    Raises:
        UserError: no such file, not UTF-8, or a needed column is missing.
    """
    first: dict[Any, Label] = {}
    notes: list[str] = []
    for file in [path] if isinstance(path, Path) else path:
        for where, label in _read(file, notes):
            earlier = first.setdefault((label.key, label.annotator), label)
            if earlier.verdict is not label.verdict:
                notes.append(f"{where}: {label.annotator} labelled {label.place} twice, as {earlier.verdict} and "
                             f"{label.verdict}; the first counts")  # fmt: skip
    return Labels(tuple(first.values()), notes)


def _read(path: Path, notes: list[str]) -> Iterable[tuple[str, Label]]:
    table = read_file(path, ("label",), get=GET)
    blind = ID in table.columns and "case" not in table.columns
    if absent := [name for name in NEEDED if name not in table.columns and not blind]:
        raise UserError(f"{path}: has no column {absent[0]!r}; {GET}")
    notes += [f"{path.name}, {problem.place}: {problem.reason}; left out" for problem in table.problems]
    verdicts_by_name = {verdict.value: verdict for verdicts in LABELS.values() for verdict in verdicts}
    for row_name, row in table.rows:
        cells = {name: plain_cell(str(cell or "").strip()) for name, cell in row.items()}
        where = f"{path.name}, {row_name}"
        if not (label := cells["label"].lower().replace(" ", "_")):
            continue
        if label not in verdicts_by_name:
            what = f"answer {cells[ID][:80]!r}" if blind else f"case {cells['case'][:80]!r}"
            notes.append(
                f"{where}: label {label[:40]!r} of {what} is not one of {', '.join(verdicts_by_name)}; left out"
            )
            continue
        annotator = cells.get("annotator") or path.stem
        if blind:
            yield where, Label("", "", None, annotator, verdicts_by_name[label], cells[ID])
        else:
            yield (
                where,
                Label(cells["case"], cells["arm"], cells.get("settings") or None, annotator, verdicts_by_name[label]),
            )


def apply(records: Sequence[Record], labels: Labels) -> Applied:
    """Return the records with human verdicts if there are labels: the verdict of most annotators.

    A record keeps the judge's verdict under ``judged_before`` and all labels under ``labels``. If annotators are evenly
    split, the judge's verdict stays. ``notes`` lists the labels that were not used: their case or arm is not in the
    run, the answer changed since, or the benchmark is of the other kind.
    """
    notes, by_key = list(labels.notes), defaultdict(list)
    for label in labels.labels:
        by_key[label.key].append(label)
    after, keys = [], set()
    for record in records:
        here = [(record["case"], record["arm"]), *([("", answer_id(record))] if record.get("response") else [])]
        keys.update(here)
        usable = [label for key in here for label in by_key.get(key, []) if _fits(label, record, notes)]
        counts = Counter(label.verdict for label in usable).most_common(2)
        if len(counts) == 2 and counts[0][1] == counts[1][1]:
            notes.append(f"annotators are evenly split on case {record['case']} of arm {record['arm']}; the judge's "
                         "verdict stays")  # fmt: skip
        elif counts:
            after.append(_labelled(record, counts[0][0], usable))
            continue
        after.append(record)
    for key in sorted(by_key.keys() - keys):
        notes.append(f"label of {by_key[key][0].place} by {by_key[key][0].annotator}, which the run does not hold, or "
                     "which has changed since; left out")  # fmt: skip
    return Applied(after, sum(new is not old for new, old in zip(after, records, strict=True)), notes)


def _fits(label: Label, record: Record, notes: list[str]) -> bool:
    kind = kind_of(record)
    reason = ""
    if label.verdict not in LABELS[kind]:
        reason = f"{label.verdict} is no verdict of this benchmark ({', '.join(LABELS[kind])})"
    elif label.settings is not None and label.settings != record["settings"]:
        reason = "it was given to an answer under other settings"
    elif not record.get("response"):
        reason = "there is no response"
    elif record.get("status") == Status.PROVIDER_BLOCKED:
        reason = "the provider blocked the request"
    if reason:
        notes.append(f"label of case {record['case']} in arm {record['arm']} by {label.annotator}: {reason}; left out")
    return not reason


def _labelled(record: Record, verdict: Verdict, labels: Sequence[Label]) -> Record:
    before = {"verdict": record["verdict"], "judge": record.get("judge")}
    by_annotator = {label.annotator: label.verdict.value for label in labels}
    others: Mapping[str, Any] = {k: v for k, v in record.items() if k not in ("explanation", "votes")}
    return {**others, "verdict": verdict.value, "judge": HUMAN, "judged_before": before, "labels": by_annotator}
