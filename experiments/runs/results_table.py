"""The results table of a run: one row per quantity, written as ``results.csv`` (``docs/metrics.md``).

Every table, figure and sentence of a report is read from these rows.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.runs.store import write_text
from interp.errors import UserError

FILE = "results.csv"
Number = float | None


class Row(NamedTuple):
    """One value with its uncertainty. A level has no ``against``; a difference is ``arm`` minus ``against``.

    ``subset`` names the kind of case, ``group`` a scenario, tag or layer ("tag:category=food"), ``rule`` the scoring
    convention ("" is ours). ``low`` and ``high`` are the ends of an interval at ``level``; for a claim it is the
    interval that decides. ``n`` of ``n_of`` cases have an answer, in ``clusters`` independent clusters.
    ``bound_low`` and ``bound_high`` are the values that missing answers allow. ``needed`` is how many sentences (or
    cases) a difference of 5 points needs. ``claim`` is one of ``claims.CLAIMS``, ``not tested`` or "".
    """

    run: str
    arm: str
    against: str
    quantity: str
    subset: str
    group: str
    rule: str
    value: Number
    low: Number
    high: Number
    level: Number
    n: Number
    n_of: Number
    clusters: Number
    bound_low: Number
    bound_high: Number
    p: Number
    needed: Number
    claim: str

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The values that missing answers allow, or None."""
        return None if self.bound_low is None or self.bound_high is None else (self.bound_low, self.bound_high)

    def part(self, name: str) -> str:
        """Return one part of a ``group_of`` several, or ""."""
        return dict(piece.partition("=")[::2] for piece in self.group.split("; ")).get(name, "")


COLUMNS = Row._fields
TEXTS = ("run", "arm", "against", "quantity", "subset", "group", "rule", "claim")
KEY = slice(1, 7)  # arm, against, quantity, subset, group, rule


def group_of(**parts: object) -> str:
    """Return a ``group`` of several parts: ``position=verdict; layer=3``."""
    return "; ".join(f"{name}={value}" for name, value in parts.items())


def row(quantity: str, *, arm: str = "", entry: Mapping[str, Any] | None = None, **values: Any) -> Row:
    """Return a row; ``entry`` gives value, low, high, n, clusters, bounds and claim, and ``values`` override it."""
    entry = entry or {}
    ends = entry.get("bounds") or (None, None)
    cells: dict[str, Any] = {name: "" if name in TEXTS else None for name in COLUMNS}
    cells |= {name: entry[name] for name in COLUMNS if name in entry and entry[name] is not None}
    cells |= {"bound_low": ends[0], "bound_high": ends[1], "quantity": quantity, "arm": arm, **values}
    if cells["low"] is not None and cells["level"] is None:
        cells["level"] = 0.95
    return _row_of(cells[name] for name in COLUMNS)


def _row_of(cells: Iterable[Any]) -> Row:
    named = zip(COLUMNS, cells, strict=True)
    return Row._make(cell if name in TEXTS else _number(cell) for name, cell in named)


def _number(value: Any) -> Number:
    return None if value is None or not math.isfinite(float(value)) else float(value)


class Results:
    """The rows of one or several runs, with look-ups by key."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self._by_key: dict[Any, Row] = {entry[KEY]: entry for entry in self.rows}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def get(
        self, arm: str, quantity: str, *, against: str = "", subset: str = "", group: str = "", rule: str = ""
    ) -> Row | None:
        """Return the row with this key, or None."""
        return self._by_key.get((arm, against, quantity, subset, group, rule))

    def select(self, **wanted: Any) -> list[Row]:
        """Return the rows whose columns have these values; a value may be a tuple of alternatives.

        A column that is not named may have any value.
        """
        tests = [(COLUMNS.index(name), value) for name, value in wanted.items()]
        return [
            entry
            for entry in self.rows
            if all(entry[at] in value if isinstance(value, tuple) else entry[at] == value for at, value in tests)
        ]

    @property
    def arms(self) -> list[str]:
        """The arms in the order of the rows."""
        return list(dict.fromkeys(entry.arm for entry in self.rows))

    def frame(self) -> pd.DataFrame:
        """Return the rows as a DataFrame with numeric columns."""
        frame = pd.DataFrame(self.rows, columns=list(COLUMNS))
        return frame.astype({name: float for name in COLUMNS if name not in TEXTS})

    def write(self, folder: Path) -> Path:
        """Write ``results.csv`` into ``folder`` and return its path. Numbers keep all their digits."""
        path = folder / FILE
        name = f"{folder.absolute().parent.name}/{folder.absolute().name}"
        text = self.frame().assign(run=name).to_csv(index=False, lineterminator="\n")
        write_text(path, text)
        return path


def rebuild(folder: Path) -> str:
    """Return the sentence that says how to make the table of a run from its records."""
    return f"Rebuild it from its predictions.jsonl: task=rejudge run={folder}"


def read_results(folder: Path) -> Results:
    """Read ``results.csv`` of a run.

    Raises:
        UserError: the file is missing, or is not a results table.
    """
    path = folder / FILE
    if not path.is_file() and (folder / "predictions.jsonl").is_file():
        raise UserError(
            f"{folder} has no {FILE}; an earlier version made this run, or it is unfinished. {rebuild(folder)}"
        )
    try:
        blank = {name: [""] for name in COLUMNS if name not in TEXTS}
        kinds = dict.fromkeys(TEXTS, str)
        frame = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=blank, float_precision="round_trip")
        return Results(map(_row_of, frame[list(COLUMNS)].itertuples(index=False)))
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a results table ({error}). Finish the run, or repeat it.") from None


OF_A_STUDY = "study: "  # how the rule of rows begins that a study compares in a family of its own


def write_results(folder: Path, rows: Iterable[Row], *, replaced: Iterable[str] = ()) -> Results:
    """Write rows into the table of a run, and return the table.

    Earlier rows of the same quantities, and of the quantities ``replaced``, are replaced. Rows of a study's own family
    (``OF_A_STUDY``) only replace rows with the same rule. So the arms and each study can be measured again without each
    other.
    """
    new = list(rows)
    quantities = {(entry.quantity, _family(entry)) for entry in new} | {(name, "") for name in replaced}
    earlier = read_results(folder).rows if (folder / FILE).is_file() else []
    results = Results([*(entry for entry in earlier if (entry.quantity, _family(entry)) not in quantities), *new])
    results.write(folder)
    return results


def _family(entry: Row) -> str:
    return entry.rule if entry.rule.startswith(OF_A_STUDY) else ""
