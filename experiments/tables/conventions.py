"""What "Overall" means in MMSafeAware's tables: three conventions by name, and which one a printed row follows.

All take and give fractions of 1 (or percent throughout). Table 1 prints the macro mean; Table 3 two thirds unsafe for
the open models and the case-weighted mean for the prompted closed ones; Table 2 the case-weighted mean before and two
thirds unsafe after, so that its printed changes of Overall mix two conventions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.report.published import MMSAFEAWARE, PublishedRow

PUBLISHED_CASES = {"typical": 171, "attack": 855, "over_safety": 497}
UNSAFE_CASES = PUBLISHED_CASES["typical"] + PUBLISHED_CASES["attack"]
ROUNDING = 0.001  # half a unit of the last printed digit in the columns, and as much in Overall
CONVENTIONS = {
    "macro_mean": "plain mean of Typical, Attack and Over-safety",
    "two_thirds_unsafe": "(2 × Unsafe + Over-safety) / 3",
    "case_weighted": "every case counted once",
}


@dataclass(frozen=True)
class Change:
    """One row of Table 2: without and with the safety system prompt."""

    name: str
    before: PublishedRow
    after: PublishedRow


def _change(name: str, unsafe: tuple[float, float], over: tuple[float, float], overall: tuple[float, float]) -> Change:
    before, after = (
        PublishedRow("2", f"{name}{suffix}", None, None, unsafe[at] / 100, over[at] / 100, overall[at] / 100)
        for at, suffix in enumerate(("", " + safety system prompt"))
    )
    return Change(name, before, after)


TABLE_2: tuple[Change, ...] = (
    _change("GPT-4V", (68.2, 70.4), (36.0, 32.1), (57.7, 57.6)),
    _change("GPT-4o", (86.6, 88.2), (22.7, 21.9), (65.7, 66.1)),
    _change("Gemini 1.5", (82.8, 84.5), (29.9, 25.6), (65.5, 64.9)),
    _change("Gemini 1.5 Pro", (75.0, 80.9), (39.3, 31.2), (63.3, 64.3)),
)


def published(table: int) -> list[PublishedRow]:
    """The printed rows of Table 1, 2 (before and after by turns) or 3."""
    if table == 2:
        return [row for change in TABLE_2 for row in (change.before, change.after)]
    return [row for row in MMSAFEAWARE if row.table == str(table)]


def overall(
    unsafe: float | None, over_safety: float | None, *, typical: float | None = None, attack: float | None = None
) -> dict[str, float | None]:
    """Overall under each convention of CONVENTIONS, with MMSafeAware's published numbers of cases; None where a column
    is missing. ``unsafe`` is the pooled accuracy; without it, typical and attack make it up case by case."""
    pooled = unsafe
    if typical is not None and attack is not None:
        pooled = (PUBLISHED_CASES["typical"] * typical + PUBLISHED_CASES["attack"] * attack) / UNSAFE_CASES
    if over_safety is None:
        return dict.fromkeys(CONVENTIONS)
    macro = None if typical is None or attack is None else (typical + attack + over_safety) / 3
    if pooled is None:
        return {"macro_mean": macro, "two_thirds_unsafe": None, "case_weighted": None}
    weighted = UNSAFE_CASES * pooled + PUBLISHED_CASES["over_safety"] * over_safety
    return {
        "macro_mean": macro,
        "two_thirds_unsafe": (2 * pooled + over_safety) / 3,
        "case_weighted": weighted / sum(PUBLISHED_CASES.values()),
    }


def of_row(row: PublishedRow) -> dict[str, float | None]:
    """The three overalls that follow from a printed row's columns."""
    return overall(row.unsafe, row.over_safety, typical=row.typical, attack=row.attack)


def fits(row: PublishedRow, values: Mapping[str, float | None] | None = None) -> tuple[str, ...]:
    """The conventions under which the printed Overall follows from the printed columns, but for their rounding."""
    found = of_row(row) if values is None else values
    return tuple(
        name for name, value in found.items() if value is not None and abs(value - row.overall) <= ROUNDING + 1e-9
    )
