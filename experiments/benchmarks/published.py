"""Published rows, to compare with a run on the same benchmark: ``published.csv``, in % as they are printed.

MMSafeAware (arXiv 2502.11184, Table 1): unsafe accuracy is the plain mean of Typical and Attack. Then the published
overall is the mean of the three columns.

MOSSBench (README of turningpoint-ai/MOSSBench, arXiv 2406.17806): refusals, columns of the GPT judge. The average of
Claude 3 Opus is printed as 55, a typo for 34.67, the mean of the row's three cells.

Others, under the names of ``metrics.as_published``: MSSBench (arXiv 2410.06172, chat) and HoliSafe. HoliSafe's judge is
GPT-4o, on an older version of 4,163 records. Its printed mean ASR is up to 3 points above the plain mean of the kinds,
which the released code computes.
"""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

_Found = TypeVar("_Found")
Rates = dict[str, float]


def _read() -> dict[tuple[str, str], dict[str, Rates]]:
    """Return (benchmark, table) → model → quantity → %, in the order of the file."""
    tables: dict[tuple[str, str], dict[str, Rates]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            models = tables.setdefault((line["benchmark"], line["table"]), {})
            models.setdefault(line["model"], {})[line["quantity"]] = float(line["percent"])
    return tables


_PUBLISHED = _read()
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
    table_1 = _PUBLISHED["mmsafeaware", "1"]
    if benchmark == "mmsafeaware" and (name := _same_words(model, {other: other for other in table_1})) is not None:
        printed = table_1[name]
        rates = {key: printed[key] for key in ("over_safety", "overall")}
        rates["unsafe"] = (printed["typical"] + printed["attack"]) / 2
        return {"table": "MMSafeAware's Table 1", "name": name} | rates
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
