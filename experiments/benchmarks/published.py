"""Published rows, to compare with a run on the same benchmark: ``published.csv``, in % as they are printed.

MMSafeAware (arXiv 2502.11184, Tables 1 to 3): Tables 2 and 3 print one unsafe accuracy. For Table 1 it is the plain
mean of Typical and Attack. Then the published overall is the mean of the three columns. d′ and criterion follow from
the printed rates, uncorrected, because the counts are not printed.

MOSSBench (README of turningpoint-ai/MOSSBench, arXiv 2406.17806): refusals, columns of the GPT judge. The average of
Claude 3 Opus is printed as 55, a typo for 34.67, the mean of the row's three cells.

Others, under the names of ``metrics.as_published``: MSSBench (arXiv 2410.06172, chat) and HoliSafe. HoliSafe's judge is
GPT-4o, on an older version of 4,163 records. Its printed mean ASR is up to 3 points above the plain mean of the kinds,
which the released code computes.
"""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar

_Found = TypeVar("_Found")
Rates = dict[str, float]


@dataclass(frozen=True)
class PublishedRow:
    """One printed row of MMSafeAware, in fractions of 1; ``typical`` and ``attack`` are None where the table prints
    only their union."""

    table: str
    name: str
    typical: float | None
    attack: float | None
    unsafe: float
    over_safety: float
    overall: float

    @property
    def d_prime(self) -> float:
        """Return z(hit) − z(false alarm), from the printed rates."""
        return _z(self.unsafe) - _z(1 - self.over_safety)

    @property
    def criterion(self) -> float:
        """Return −(z(hit) + z(false alarm))/2; negative = prone to say "unsafe"."""
        return -(_z(self.unsafe) + _z(1 - self.over_safety)) / 2


def _z(rate: float) -> float:
    """Return NaN, which is printed as missing, for a rate of 0 or 1."""
    return NormalDist().inv_cdf(rate) if 0 < rate < 1 else math.nan


def _read() -> dict[tuple[str, str], dict[str, Rates]]:
    """Return (benchmark, table) → model → quantity → %, in the order of the file."""
    tables: dict[tuple[str, str], dict[str, Rates]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            models = tables.setdefault((line["benchmark"], line["table"]), {})
            models.setdefault(line["model"], {})[line["quantity"]] = float(line["percent"])
    return tables


def _row(table: str, name: str, rates: Rates) -> PublishedRow:
    typical, attack = (None if (rate := rates.get(side)) is None else rate / 100 for side in ("typical", "attack"))
    unsafe = rates["unsafe"] / 100 if "unsafe" in rates else (rates["typical"] + rates["attack"]) / 200
    return PublishedRow(table, name, typical, attack, unsafe, rates["over_safety"] / 100, rates["overall"] / 100)


_PUBLISHED = _read()
_TABLES = {
    table: tuple(_row(table, name, rates) for name, rates in models.items())
    for (benchmark, table), models in _PUBLISHED.items()
    if benchmark == "mmsafeaware"
}
MOSSBENCH = {name: tuple(rates.values()) for name, rates in _PUBLISHED["mossbench", ""].items()}  # by type, average
MOSSBENCH_HUMAN_DIFFERENCE = 4.9  # points a cell between the leaderboard's own human evaluation and its GPT judge
MOSSBENCH_ALIASES = {  # other names that MOSSBench itself gives a row's model
    "Gemini Advanced (web)": "Gemini Advanced",  # the folder of its responses; the row is of the web version too
    "IDEFICS-9b-Instruct": "IDEFICS-9b",  # the row in later versions of its README
}
# Benchmark → model → what its authors report, in %.
BESIDE: Mapping[str, Mapping[str, Rates]] = {
    benchmark: models for (benchmark, _), models in _PUBLISHED.items() if benchmark not in ("mmsafeaware", "mossbench")
}


def printed_rows(table: int) -> list[PublishedRow]:
    """Return MMSafeAware's printed rows of Table 1, 2 (each model before and after the prompt) or 3."""
    return list(_TABLES[str(table)])


def mossbench_row(model: str) -> tuple[float, ...] | None:
    """Return the leaderboard's row of a model, by the name of its results folder or its row; None without a row.

    Names are compared by their words, in any order: the folder is called "Gemini-Pro 1.5", the row "Gemini Pro
    1.5". "(web)" counts, because the web version of a model and its API have rows of their own.
    """
    name = _mossbench_name(model)
    return None if name is None else MOSSBENCH[name]


def _mossbench_name(model: str) -> str | None:
    return _same_words(model, {name: name for name in MOSSBENCH} | MOSSBENCH_ALIASES)


def row_of(benchmark: str, model: str) -> dict[str, Any] | None:
    """Return the published row of ``model`` on that benchmark, for metrics.json: ``table``, ``name``, rates in %."""
    if benchmark == "mossbench" and (name := _mossbench_name(model)) is not None:
        refused = dict(_PUBLISHED["mossbench", ""][name])
        return {"table": "MOSSBench's leaderboard", "name": name, "average": refused.pop("average"), "refused": refused}
    if benchmark == "mmsafeaware" and (row := _same_words(model, {row.name: row for row in _TABLES["1"]})) is not None:
        rates = {"over_safety": row.over_safety, "unsafe": row.unsafe, "overall": row.overall}
        return {"table": "MMSafeAware's Table 1", "name": row.name} | {key: 100 * rate for key, rate in rates.items()}
    name = _same_words(model, {other: other for other in BESIDE.get(benchmark, {})})
    if name is not None:
        rates = dict(BESIDE[benchmark][name])
        return {"table": "the benchmark's own results", "benchmark": benchmark, "name": name, "rates": rates}
    return None


def _same_words(name: str, names: Mapping[str, _Found]) -> _Found | None:
    return next((tables for other, tables in names.items() if _words(other) == _words(name)), None)


def _words(name: str) -> frozenset[str]:
    """Return words and whole numbers, so that "llava_1_5_7b" equals "LLaVA-1.5-7b"."""
    return frozenset(re.findall(r"[a-z]+|\d+", name.lower()))
