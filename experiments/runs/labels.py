"""Human labels of a run's answers: a CSV sheet to be filled in, and the filled-in sheets read back.

``task=human_labels run=<dir> task.export=labels.csv`` writes a sheet with a line an answer; people fill in
``annotator`` and ``label``, each in a copy or in further lines; ``task.read=[anna.csv,ben.csv]`` reads them and
measures the agreement between annotators and with the run's judge, and ``task=rejudge run=<dir> labels=<csv>``
scores the run by them.

A spreadsheet takes a cell that begins with = + - @ for a formula, so an answer could run one. Such cells are written
with an apostrophe in front, which is removed when they are read.
"""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.types import Verdict
from interp.errors import UserError

COLUMNS = ("case", "arm", "settings", "annotator", "label", "judged", "question", "response", "note")
NEEDED = ("case", "arm", "label")
LABELS = {
    "yes_no": (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT),
    "refusal": (Verdict.COMPLIED, Verdict.PARTIAL, Verdict.REFUSED),
}
HUMAN = "human"  # the judge in records with a human verdict
_FORMULA = re.compile(r"'*[=+\-@\t\r＝＋－＠]")
_MOST_BYTES = 500_000_000
_MOST_CELL = 10_000_000
Record = dict[str, Any]


@dataclass(frozen=True)
class Label:
    """One person's verdict on one answer; ``settings`` is that of the labelled record, None where not given."""

    case: str
    arm: str
    settings: str | None
    annotator: str
    verdict: Verdict


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


def sheet(records: Iterable[Record]) -> str:
    """The CSV to be filled in: one line per record that has a response."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for record in records:
        if record.get("response"):
            cells = (record["case"], record["arm"], record["settings"], "", "", record["verdict"] or "",
                     record["text"], record["response"], "")  # fmt: skip
            writer.writerow([safe_cell(str(cell).replace("\0", "")) for cell in cells])
    return text.getvalue()


def write_sheet(records: Iterable[Record], path: Path) -> None:
    """Writes ``sheet`` as UTF-8 with a byte order mark, without which Excel misreads it.

    Raises:
        UserError: the file exists, and may hold labels; or it cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8-sig", errors="replace", newline="") as handle:
            handle.write(sheet(records))
    except FileExistsError as error:
        raise UserError(f"{path}: is there already and may hold labels; choose another name, or move it") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def read_labels(path: Path | Sequence[Path]) -> Labels:
    """The labels in one or several CSV files; lines without a label are skipped, wrong ones left out with a note.

    Without an annotator's name the file's is used. Of several labels of one answer by one person the first counts, with
    a note where they differ.

    Raises:
        UserError: no such file, not UTF-8, or a needed column is missing.
    """
    found: dict[tuple[str, str, str], Label] = {}
    notes: list[str] = []
    for one in [path] if isinstance(path, Path) else path:
        for where, label in _read(one, notes):
            earlier = found.setdefault((label.case, label.arm, label.annotator), label)
            if earlier.verdict is not label.verdict:
                notes.append(f"{where}: {label.annotator} labelled case {label.case} of arm {label.arm} twice, as "
                             f"{earlier.verdict} and {label.verdict}; the first counts")  # fmt: skip
    return Labels(tuple(found.values()), notes)


def _read(path: Path, notes: list[str]) -> Iterable[tuple[str, Label]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{path}: larger than {_MOST_BYTES:,} bytes; a sheet of labels is not; split it")
        text = path.read_text(encoding="utf-8-sig").replace("\0", "")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 ({error}); save the sheet as CSV in UTF-8") from error
    csv.field_size_limit(_MOST_CELL)
    head = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=";" if head.count(";") > head.count(",") else ",")
    columns = [plain_cell((name or "").strip()).lower() for name in rows.fieldnames or ()]
    if absent := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: has no column {absent[0]!r}; labels need {', '.join(NEEDED)}; export a sheet with "
                        "task=human_labels task.export=<csv> and fill it in")  # fmt: skip
    rows.fieldnames = columns
    known = {verdict.value: verdict for verdicts in LABELS.values() for verdict in verdicts}
    for line in _lines(rows, path):
        cells = {name: plain_cell(cell.strip()) for name, cell in line.items() if name and isinstance(cell, str)}
        where = f"{path.name}, line {rows.line_num}"
        if not (said := cells.get("label", "").lower().replace(" ", "_")):
            continue
        if said not in known:
            notes.append(f"{where}: label {said[:40]!r} of case {cells.get('case', '')[:80]!r} is not one of "
                         f"{', '.join(known)}; left out")  # fmt: skip
            continue
        annotator = cells.get("annotator") or path.stem
        label = Label(
            cells.get("case", ""), cells.get("arm", ""), cells.get("settings") or None, annotator, known[said]
        )
        yield where, label


def _lines(rows: "csv.DictReader[str]", path: Path) -> Iterable[dict[str, Any]]:
    try:
        yield from rows
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: not CSV ({error}); save the sheet as CSV again") from error


def apply(records: Sequence[Record], labels: Labels) -> Applied:
    """The records with human verdicts where there are labels: the verdict of most annotators.

    A record keeps the judge's verdict under ``judged_before`` and all labels under ``labels``. Where annotators are
    evenly split the judge's verdict stays. ``notes`` lists the labels that were not used: of cases or arms that are not
    in the run, of answers that have changed since, and of the other kind of benchmark.
    """
    notes = list(labels.notes)
    by_answer: dict[tuple[str, str], list[Label]] = defaultdict(list)
    for label in labels.labels:
        by_answer[label.case, label.arm].append(label)
    after = []
    used = 0
    for record in records:
        given = by_answer.get((record["case"], record["arm"]), [])
        usable = [label for label in given if _fits(label, record, notes)]
        said = Counter(label.verdict for label in usable).most_common(2)
        if len(said) == 2 and said[0][1] == said[1][1]:
            notes.append(f"annotators are evenly split on case {record['case']} of arm {record['arm']}; the judge's "
                         "verdict stays")  # fmt: skip
        elif said:
            used += 1
            record = _labelled(record, said[0][0], usable)
        after.append(record)
    for case, arm in sorted(by_answer.keys() - {(record["case"], record["arm"]) for record in records}):
        notes.append(f"labels of case {case[:80]!r} in arm {arm[:80]!r}, which the run does not hold; left out")
    return Applied(after, used, notes)


def _fits(label: Label, record: Record, notes: list[str]) -> bool:
    kind = "yes_no" if record["gold"] in ("yes", "no") else "refusal"
    reason = ""
    if label.verdict not in LABELS[kind]:
        reason = f"{label.verdict} is no verdict of this benchmark ({', '.join(LABELS[kind])})"
    elif label.settings is not None and label.settings != record["settings"]:
        reason = "it was given to an answer under other settings"
    elif not record.get("response"):
        reason = "there is no response"
    if reason:
        notes.append(f"label of case {record['case']} in arm {record['arm']} by {label.annotator}: {reason}; left out")
    return not reason


def _labelled(record: Record, verdict: Verdict, labels: Sequence[Label]) -> Record:
    before = {"verdict": record["verdict"], "judge": record.get("judge")}
    said = {label.annotator: label.verdict.value for label in labels}
    kept: Mapping[str, Any] = {k: v for k, v in record.items() if k not in ("explanation", "votes")}
    return {**kept, "verdict": verdict.value, "judge": HUMAN, "judged_before": before, "labels": said}
