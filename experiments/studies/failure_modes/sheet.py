"""failure_modes.csv: a line a failure, to be edited by hand and read again. Knows no rules and no models."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.runs.labels import plain_cell, safe_cell
from experiments.studies.failure_modes.rules import Mode, ModeLabel
from interp.errors import UserError

COLUMNS = ("case", "arm", "subset", "scenario", "gold", "verdict", "label", "source", "reason", "hand", "note", "text",
           "response")  # fmt: skip
Key = tuple[str, str]  # case, arm
_MOST_CELL = 10_000_000


def write(path: Path, rows: Iterable[tuple[Mapping[str, Any], ModeLabel, Mapping[str, str]]]) -> None:
    """A line a (record, label, what a person wrote: ``hand`` and ``note``). The column ``hand`` is the one to fill in.

    Cells that a spreadsheet would take for a formula carry an apostrophe (``labels.safe_cell``).
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        for record, labelled, by_hand in rows:
            values = {name: record.get(name) for name in COLUMNS} | dict(by_hand)
            values |= {"label": labelled.mode.value, "source": labelled.source, "reason": labelled.reason}
            cells = ("" if values[name] is None else str(values[name]) for name in COLUMNS)
            writer.writerow([safe_cell(cell.encode("utf-8", "replace").decode()) for cell in cells])
    temporary.replace(path)


def read(path: Path) -> dict[Key, dict[str, str]]:
    """What people wrote: ``hand`` (a mode) and ``note`` by case and arm; empty where there is no file.

    Raises:
        UserError: the file is not such a CSV, or ``hand`` is no mode, naming the line.
    """
    if not path.is_file():
        return {}
    csv.field_size_limit(_MOST_CELL)
    found: dict[Key, dict[str, str]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if absent := [name for name in ("case", "arm", "hand") if name not in (reader.fieldnames or ())]:
                raise UserError(f"{path}: has no column {', '.join(absent)}; delete the file to have it written anew")
            for line in reader:
                by_hand = {name: plain_cell((line.get(name) or "").strip()) for name in ("hand", "note")}
                by_hand["hand"] = by_hand["hand"].lower()
                if by_hand["hand"] and by_hand["hand"] not in list(Mode):
                    raise UserError(f"{path}, line {reader.line_num}: {by_hand['hand']!r} is no failure mode; known: "
                                    f"{', '.join(Mode)}; write one of these or nothing")  # fmt: skip
                if any(by_hand.values()):
                    found[plain_cell(line["case"] or ""), plain_cell(line["arm"] or "")] = by_hand
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}); mend it, or delete it to have it written anew") from None
    return found
