"""Human labels of a run's answers: a CSV sheet to fill in, and the filled sheets read back.

``task=human_labels run=<dir> task.export=labels.csv`` writes a sheet with one line per answer. People fill in
``annotator`` and ``label``, each in a copy. ``task=rejudge run=<dir> labels=[anna.csv,ben.csv]`` scores the run by
them. It says how far people agree with each other and with the run's judge. The report exports sheets too.

The sheet is blind: no arm, no verdict of the judge and no case id. If several arms gave the same answer to a case, it
is in the sheet once. Its ``id`` is a hash of case and answer.

A spreadsheet takes a cell that begins with = + - @ for a formula. It is written with an apostrophe in front.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from experiments.benchmarks.rows import read_file
from experiments.types import Status, Verdict
from interp.errors import UserError

LABELS = {
    "yes_no": (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT),
    "refusal": (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.PARTIAL, Verdict.REFUSED),
}
COLUMNS = ("id", "annotator", "label", "allowed", "question", "picture", "response", "note")
SKIPPED = 0.05  # of the labelled part of a sheet: answers that nobody could label
HUMAN = "human"  # the judge in records with a human verdict
GET = "a sheet of labels has the columns id and label; export one with task=human_labels task.export=<csv>"
_FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
Record = dict[str, Any]


class Label(NamedTuple):
    """One person's verdict on one answer (``answer_id``)."""

    answer: str
    annotator: str
    verdict: Verdict


class Labels(NamedTuple):
    """Labels read from sheets; ``notes`` say what was not read and why."""

    labels: tuple[Label, ...]
    notes: list[str]


class Applied(NamedTuple):
    """All records, the labelled ones with human verdicts; ``notes`` say which labels were not used and why."""

    records: list[Record]
    used: int  # records with a human verdict
    notes: list[str]


def safe_cell(value: str) -> str:
    """Escape a value so that no spreadsheet takes it for a formula; ``plain_cell`` undoes it."""
    return f"'{value}" if _FORMULA.match(value) else value


def plain_cell(cell: str) -> str:
    """Return the value that ``safe_cell`` escaped; any other cell as it is."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def kind_of(record: Mapping[str, Any]) -> str:
    """Return the kind of the record's benchmark: ``yes_no`` or ``refusal``."""
    return "yes_no" if record["gold"] in ("yes", "no") else "refusal"


def answer_id(record: Mapping[str, Any]) -> str:
    """Return a hash that is equal for equal answers to a case, whichever arm gave them.

    It begins with a letter, since a spreadsheet reads 12e34 as a number.
    """
    return f"a{_hashed(json.dumps([str(record[name]) for name in ('case', 'text', 'response')]))[:15]}"


def distinct_answers(records: Iterable[Record]) -> dict[str, Record]:
    """Return answer id → the first record with that answer, in an order that tells nothing.

    The answers of a case are together, so that the first lines of a sheet are the same cases under all arms. A request
    that the provider blocked has no answer.
    """
    distinct: dict[str, Record] = {}
    for record in records:
        if not _unlabelled(record):
            distinct.setdefault(answer_id(record), record)
    return dict(sorted(distinct.items(), key=lambda item: (_hashed(str(item[1]["case"])), item[0])))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _unlabelled(record: Record) -> str:
    """Return why a record has no answer to label; "" if it has one."""
    if not record.get("response"):
        return "there is no response"
    return "the provider blocked the request" if record.get("status") == Status.PROVIDER_BLOCKED else ""


def write_sheet(records: Iterable[Record], path: Path, pictures: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write the sheet: a line for each distinct answer, with its picture's name from ``pictures`` (by answer id).

    It is UTF-8 with a byte order mark, which Excel needs.

    Raises:
        UserError: the file exists, and may hold labels; or it cannot be written.
    """
    lines = []
    for answer, record in distinct_answers(records).items():
        allowed = " | ".join(LABELS[kind_of(record)])
        cells = (answer, "", "", allowed, record["text"], pictures.get(answer, ""), record["response"], "")
        lines.append([safe_cell(str(cell).replace("\0", "")) for cell in cells])
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    try:
        with path.open("x", encoding="utf-8-sig", errors="replace", newline="") as handle:
            frame.to_csv(handle, index=False, quoting=1, lineterminator="\r\n")
    except FileExistsError as error:
        raise UserError(f"{path}: exists and may have labels; choose another name, or move it") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another path") from error


def read_labels(paths: Sequence[Path]) -> Labels:
    """Read the labels of sheets (.csv, .xlsx). Lines without a label are skipped; bad ones become notes.

    Without an annotator's name the file's is used. Of several labels of one answer by one person the first counts.

    Raises:
        UserError: no such file, not UTF-8, or a needed column is missing.
    """
    first: dict[tuple[str, str], Label] = {}
    notes: list[str] = []
    allowed = {verdict.value: verdict for verdicts in LABELS.values() for verdict in verdicts}
    for path in paths:
        table = read_file(path, ("id", "label"), get=GET)
        notes += [f"{path.name}, {problem.location}: {problem.reason}; left out" for problem in table.problems]
        for line, row in table.rows:
            cells = {name: plain_cell(str(cell or "").strip()) for name, cell in row.items()}
            where, answer = f"{path.name}, {line}", cells["id"]
            if not (word := cells["label"].lower().replace(" ", "_")):
                continue
            if word not in allowed:
                notes.append(f"{where}: label {word[:40]!r} is not one of {', '.join(allowed)}; ignored")
                continue
            label = Label(answer, cells.get("annotator") or path.stem, allowed[word])
            earlier = first.setdefault((answer, label.annotator), label)
            if earlier.verdict is not label.verdict:
                notes.append(
                    f"{where}: {label.annotator} labelled answer {answer[:80]!r} twice, as {earlier.verdict} and "
                    f"{label.verdict}; the first counts"
                )
    return Labels(tuple(first.values()), notes)


def apply(records: Sequence[Record], labels: Labels) -> Applied:
    """Return the records with human verdicts where there are labels: the verdict of most annotators.

    A record keeps the judge's verdict under ``judged_before`` and all labels under ``labels``. If annotators are evenly
    split, the judge's verdict stays. ``notes`` lists the labels that were not used.
    """
    notes, by_answer = list(labels.notes), defaultdict(list)
    for label in labels.labels:
        by_answer[label.answer].append(label)
    after, seen = [], set()
    for record in records:
        answer = answer_id(record)
        seen.add(answer)
        usable = [label for label in by_answer.get(answer, []) if _fits(label, record, notes)]
        counts = Counter(label.verdict for label in usable).most_common(2)
        split = len(counts) == 2 and counts[0][1] == counts[1][1]
        if split:
            notes.append(f"case {record['case']}, arm {record['arm']}: annotators disagree; the judge's verdict stays")
        after.append(_labelled(record, counts[0][0], usable) if counts and not split else record)
    notes += [
        f"label of answer {label.answer[:80]!r} by {label.annotator}: the run has no such answer (now); left out"
        for answer in sorted(by_answer.keys() - seen)
        for label in by_answer[answer]
    ]
    return Applied(after, sum(new is not old for new, old in zip(after, records, strict=True)), notes)


def random_part(records: Sequence[Record], labels: Labels) -> set[str] | None:
    """Return the cases that labels decide on; None if the labelled answers are not a random part of the run.

    A sheet is in an order that tells nothing. So the labelled answers are a random part if they are all answers, or the
    first ones of the sheet. At most ``SKIPPED`` of them may have no label. The cases returned have all answers
    labelled. Any other part was chosen by somebody, maybe by the answers, and then rates of it are biased.
    """
    answers = distinct_answers(records)
    labelled = {label.answer for label in labels.labels}
    marks = [answer in labelled for answer in answers]
    first = len(marks) - marks[::-1].index(True) if any(marks) else 0
    if not first or sum(marks) < (1 - SKIPPED) * first:
        return None
    cases = {str(record["case"]) for record in answers.values()}
    cases -= {str(record["case"]) for answer, record in answers.items() if answer not in labelled}
    unlabelled = {str(record["case"]) for record in records} - {str(record["case"]) for record in answers.values()}
    return cases | (unlabelled if all(marks) else set())


def _fits(label: Label, record: Record, notes: list[str]) -> bool:
    allowed = LABELS[kind_of(record)]
    reason = _unlabelled(record)
    if label.verdict not in allowed:
        reason = f"{label.verdict} is no verdict of this benchmark ({', '.join(allowed)})"
    if reason:
        notes.append(f"label of case {record['case']} in arm {record['arm']} by {label.annotator}: {reason}; left out")
    return not reason


def _labelled(record: Record, verdict: Verdict, labels: Sequence[Label]) -> Record:
    before = {"verdict": record["verdict"], "judge": record.get("judge")}
    by_annotator = {label.annotator: label.verdict.value for label in labels}
    others = {name: value for name, value in record.items() if name not in ("explanation", "votes")}
    return {**others, "verdict": verdict.value, "judge": HUMAN, "judged_before": before, "labels": by_annotator}
