"""MMSafeAware's published rows (arXiv 2502.11184, Tables 1 and 3), to stand beside a run on the same benchmark.

Rates are fractions of 1. Table 3 prints one unsafe accuracy; for Table 1 it is the plain mean of Typical and Attack,
which is the convention under which the published overall is the mean of the three columns. d′ and criterion follow
from the printed rates alone, uncorrected, because the counts behind them are not printed.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist


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
