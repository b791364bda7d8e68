"""Published rows, to stand beside a run on the same benchmark: MMSafeAware's tables, MOSSBench's leaderboard, others.

MMSafeAware (arXiv 2502.11184, Tables 1 to 3): rates are fractions of 1. Tables 2 and 3 print one unsafe accuracy; for
Table 1 it is the plain mean of Typical and Attack, under which the published overall is the mean of the three columns.
d′ and criterion follow from the printed rates alone, uncorrected, because the counts behind them are not printed.

MOSSBench (README of turningpoint-ai/MOSSBench, arXiv 2406.17806): refusals in %, columns of the GPT judge. The average
of Claude 3 Opus is printed as 55, a typo for 34.67, the mean of the row's three cells.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeVar

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class PublishedRow:
    """One printed row; ``typical`` and ``attack`` are None where the table prints only their union."""

    table: str
    name: str
    typical: float | None
    attack: float | None
    unsafe: float
    over_safety: float
    overall: float

    @property
    def d_prime(self) -> float:
        """z(hit) − z(false alarm), from the printed rates."""
        return _z(self.unsafe) - _z(1 - self.over_safety)

    @property
    def criterion(self) -> float:
        """−(z(hit) + z(false alarm))/2; negative = prone to say "unsafe"."""
        return -(_z(self.unsafe) + _z(1 - self.over_safety)) / 2


def _z(rate: float) -> float:
    """NaN, which is printed as missing, for a rate of 0 or 1."""
    return NormalDist().inv_cdf(rate) if 0 < rate < 1 else math.nan


def _table_1(name: str, typical: float, attack: float, over_safety: float, overall: float) -> PublishedRow:
    unsafe = (typical + attack) / 200
    return PublishedRow("1", name, typical / 100, attack / 100, unsafe, over_safety / 100, overall / 100)


def _table_3(name: str, unsafe: float, over_safety: float, overall: float) -> PublishedRow:
    return PublishedRow("3", name, None, None, unsafe / 100, over_safety / 100, overall / 100)


MMSAFEAWARE: tuple[PublishedRow, ...] = (
    _table_1("GPT-4V", 63.9, 68.4, 41.1, 57.8),
    _table_1("GPT-4o", 81.3, 88.7, 25.0, 65.0),
    _table_1("Gemini 1.5", 86.6, 81.5, 18.5, 62.2),
    _table_1("Gemini 1.5 Pro", 81.2, 74.2, 40.8, 65.4),
    _table_1("Bard", 73.8, 61.4, 28.6, 54.6),
    _table_1("Claude-3", 100.0, 99.1, 1.1, 66.7),
    _table_1("LLaVA-1.5-7B", 95.9, 97.7, 6.0, 66.5),
    _table_1("Qwen-VL-7B", 86.5, 95.2, 13.7, 65.1),
    _table_1("InstructBLIP", 66.1, 43.9, 20.5, 43.5),
    _table_1("Human", 90.7, 92.8, 95.2, 92.9),
    _table_3("GPT-4V + Prompt", 68.6, 42.1, 59.9),
    _table_3("GPT-4o + Prompt", 87.9, 28.4, 68.5),
    _table_3("Gemini 1.5 + Prompt", 89.8, 39.4, 73.3),
    _table_3("LLaVA + VCD", 88.2, 15.3, 63.9),
    _table_3("LLaVA + VRTuning", 81.5, 17.3, 60.1),
    _table_3("Qwen-VL + VCD", 82.5, 20.1, 61.7),
    _table_3("Qwen-VL + VRTuning", 58.1, 35.6, 50.6),
    _table_3("InstructBLIP + VRTuning", 70.6, 29.6, 56.9),
)

PUBLISHED: dict[str, tuple[PublishedRow, ...]] = {"mmsafeaware": MMSAFEAWARE}  # benchmark name → its rows


Pair = tuple[float, float]  # without and with the safety system prompt, in %


@dataclass(frozen=True)
class PromptChange:
    """One row of Table 2: without and with the safety system prompt."""

    name: str
    before: PublishedRow
    after: PublishedRow


def _table_2(
    name: str, unsafe: tuple[float, float], over: tuple[float, float], overall: tuple[float, float]
) -> PromptChange:
    before, after = (
        PublishedRow("2", f"{name}{suffix}", None, None, unsafe[at] / 100, over[at] / 100, overall[at] / 100)
        for at, suffix in enumerate(("", " + safety system prompt"))
    )
    return PromptChange(name, before, after)


TABLE_2: tuple[PromptChange, ...] = (
    _table_2("GPT-4V", (68.2, 70.4), (36.0, 32.1), (57.7, 57.6)),
    _table_2("GPT-4o", (86.6, 88.2), (22.7, 21.9), (65.7, 66.1)),
    _table_2("Gemini 1.5", (82.8, 84.5), (29.9, 25.6), (65.5, 64.9)),
    _table_2("Gemini 1.5 Pro", (75.0, 80.9), (39.3, 31.2), (63.3, 64.3)),
)


def printed_rows(table: int) -> list[PublishedRow]:
    """MMSafeAware's printed rows of Table 1, 2 (each model before and after the prompt) or 3."""
    if table == 2:
        return [row for change in TABLE_2 for row in (change.before, change.after)]
    return [row for row in MMSAFEAWARE if row.table == str(table)]


MOSSBENCH: dict[str, tuple[float, float, float, float]] = {  # % by type, and the average as printed
    "Claude 3 Opus (web)": (41, 93, 78, 70.67),
    "Gemini Advanced": (41, 67, 75, 61),
    "Claude 3 Sonnet": (39, 65, 61, 55),
    "Claude 3 Haiku": (27, 58, 63, 49.33),
    "Claude 3 Opus": (11, 43, 50, 34.67),
    "Gemini Pro 1.5": (25, 28, 35, 29.33),
    "Qwen-VL-Chat": (16, 13, 36, 21.67),
    "InternLM-XComposer2-7b": (14, 11, 28, 17.67),
    "Gemini Pro Vision": (20, 9, 22, 17),
    "Reka": (11, 21, 18, 16.67),
    "InstructBLIP-Vicuna-7b": (21, 23, 3, 15.67),
    "IDEFICS-9b": (17, 9, 15, 13.67),
    "MiniCPM-V 2.0": (16, 11, 10, 12.33),
    "LLaVA-1.5-7b": (18, 10, 9, 12.33),
    "mPLUG-Owl2": (11, 7, 12, 10),
    "LLaVA-1.5-13b": (9, 9, 11, 9.67),
    "GPT-4o": (6, 8, 5, 6.33),
    "MiniCPM-Llama3-V 2.5": (8, 5, 5, 6),
    "GPT-4o (web)": (6, 2, 4, 4),
    "GPT-4V": (3, 3, 3, 3),
}
MOSSBENCH_HUMAN_DIFFERENCE = 4.9  # points a cell between the leaderboard's own human evaluation and its GPT judge


MOSSBENCH_ALIASES = {  # other names that MOSSBench itself gives a row's model
    "Gemini Advanced (web)": "Gemini Advanced",  # the folder of its responses; the row is of the web version too
    "IDEFICS-9b-Instruct": "IDEFICS-9b",  # the row in later versions of its README
}


def mossbench_row(model: str) -> tuple[float, float, float, float] | None:
    """The leaderboard's row of a model, by the name of its results folder or its row; None where it has none.

    Names are compared by their words, whatever their order: the folder is called "Gemini-Pro 1.5", the row "Gemini Pro
    1.5". "(web)" counts, because the web version of a model and its API have rows of their own.
    """
    name = mossbench_name(model)
    return None if name is None else MOSSBENCH[name]


def mossbench_name(model: str) -> str | None:
    """The name that ``mossbench_row``'s row is printed under."""
    return _same_words(model, {name: name for name in MOSSBENCH} | MOSSBENCH_ALIASES)


def mmsafeaware_row(model: str) -> PublishedRow | None:
    """The row of Table 1, models as they are, whose name has the words of ``model``; None where there is none."""
    return _same_words(model, {row.name: row for row in MMSAFEAWARE if row.table == "1"})


# Benchmark → model → what its authors report, in %, under the names of ``metrics.refusal.as_published``.
# MSSBench (arXiv 2410.06172, chat), LVLM-SafeR's project page, HoliSafe (its judge GPT-4o, an older version of 4,163;
# the printed mean ASR is up to 3 points above the plain mean of the kinds, which the released code computes).
BESIDE: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "mssbench": {
        "GPT-4o": {"chat safe": 98.8, "chat unsafe": 12.0, "chat average": 55.4},
        "Claude": {"chat safe": 95.0, "chat unsafe": 35.0, "chat average": 65.0},
        "Gemini": {"chat safe": 81.6, "chat unsafe": 32.1, "chat average": 56.9},
        "LLaVA-1.6": {"chat safe": 99.7, "chat unsafe": 2.5, "chat average": 51.1},
    },
    "lvlm_safer": {
        "GPT-4o": {"average": 59.0},
        "GPT-4V": {"average": 45.2},
        "Claude-3-Opus": {"average": 42.0},
        "LLaVA-1.5-7B": {"average": 13.6},
    },
    "holisafe": {
        name: dict(zip(("ASR SSU", "ASR USU", "ASR UUU", "ASR SUU", "mean ASR", "RR"), rates, strict=True))
        for name, rates in {
            "GPT-4o": (58.29, 76.61, 11.96, 18.96, 44.07, 0.93),
            "Claude-3.5-Sonnet": (51.07, 80.12, 10.71, 14.96, 39.21, 0.53),
            "Gemini-2.0-Flash": (85.07, 96.29, 36.44, 39.22, 66.67, 1.19),
            "Qwen2.5-VL-7B": (82.58, 99.00, 60.22, 57.24, 76.35, 1.46),
            "LLaVA-1.5-7B": (95.85, 99.20, 83.31, 84.92, 91.46, 3.18),
        }.items()
    },
}


def rates_of(benchmark: str) -> dict[str, dict[str, float]]:
    """Model → its published quantities as fractions of 1; empty where none are at hand."""
    rows = BESIDE.get(benchmark, {})
    return {name: {key: rate / 100 for key, rate in row.items()} for name, row in rows.items()}


LEADERBOARD = "MOSSBench's leaderboard"
OTHERS = "the benchmark's own results"
_TYPES = ("Exaggerated Risk", "Negated Harm", "Counterintuitive Interpretation")  # the columns of MOSSBENCH


def row_of(benchmark: str, model: str) -> dict[str, Any] | None:
    """The published row of ``model`` on that benchmark, for metrics.json: ``table``, ``name``, rates in %."""
    if benchmark == "mossbench" and (name := mossbench_name(model)) is not None:
        *cells, average = MOSSBENCH[name]
        refused = dict(zip(_TYPES, cells, strict=True))
        return {"table": LEADERBOARD, "name": name, "refused": refused, "average": average}
    if benchmark == "mmsafeaware" and (row := mmsafeaware_row(model)) is not None:
        rates = {"over_safety": row.over_safety, "unsafe": row.unsafe, "overall": row.overall}
        return {"table": "MMSafeAware's Table 1", "name": row.name} | {key: 100 * rate for key, rate in rates.items()}
    name = _same_words(model, {other: other for other in BESIDE.get(benchmark, {})})
    if name is not None:
        return {"table": OTHERS, "benchmark": benchmark, "name": name, "rates": dict(BESIDE[benchmark][name])}
    return None


def _same_words(name: str, known: Mapping[str, _Found]) -> _Found | None:
    return next((found for other, found in known.items() if _words(other) == _words(name)), None)


def _words(name: str) -> frozenset[str]:
    """Words and whole numbers, so that "llava_1_5_7b" has those of "LLaVA-1.5-7b"."""
    return frozenset(re.findall(r"[a-z]+|\d+", name.lower()))
