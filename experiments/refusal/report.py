"""What ``templates/refusal.html.j2`` prints of a refusal benchmark's metrics.json. Knows neither HTML nor the disk.

The template reads one variable, ``refusal`` (this module's ``section(metrics)``), and is to be included where it is not
None; with it come ``figures.safety_against_oversensitivity`` and ``figures.describe`` for the picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.refusal.rows import ArmRow, ComparisonRow, TypeRow, arm_rows, comparison_rows, rate_cell, type_rows
from experiments.report.tables import CEILING_MARK

DELTA_HEADINGS = {"benign": "benign", "contrast": "contrast", "difference": "apart", "d_prime": "d′"}
_MOST_TAGS = 12


@dataclass(frozen=True)
class Section:
    """All that the template names."""

    studied: str
    arms: list[ArmRow]
    types: list[TypeRow]
    comparisons: list[ComparisonRow]
    delta_headings: Mapping[str, str]
    tags: list[tuple[str, str, str, str, str]]  # tag, value, benign, contrast, n benign: of the studied arm
    outcomes: list[tuple[str, list[tuple[str, int]]]]  # arm → (status or verdict, count)
    empty_as_refusal: bool
    any_bounds: bool
    any_ceiling: bool
    ceiling_mark: str = CEILING_MARK


def section(metrics: Mapping[str, Any]) -> Section | None:
    """None for the metrics of any other kind of benchmark."""
    if metrics.get("kind") != "refusal":
        return None
    arms, types = arm_rows(metrics), type_rows(metrics)
    cells = [cell for row in arms for cell in (row.benign, row.contrast)]
    cells += [cell for row in types for cell in (row.benign, row.contrast)]
    studied = str(metrics["study"])
    return Section(
        studied=studied,
        arms=arms,
        types=types,
        comparisons=comparison_rows(metrics),
        delta_headings=DELTA_HEADINGS,
        tags=_tags(metrics["arms"][studied])[:_MOST_TAGS],
        outcomes=[(name, _outcomes(arm)) for name, arm in metrics["arms"].items()],
        empty_as_refusal=bool(metrics["method"]["empty_as_refusal"]),
        any_bounds=any(cell.bounds for cell in cells),
        any_ceiling=any(CEILING_MARK in row.d_prime.value for row in arms),
    )


def _tags(arm: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            name,
            value,
            rate_cell(cells.get("benign")).value,
            rate_cell(cells.get("contrast")).value,
            str((cells.get("benign") or {}).get("n", 0)),
        )
        for name, values in arm["by_tag"].items()
        for value, cells in values.items()
    ]


def _outcomes(arm: Mapping[str, Any]) -> list[tuple[str, int]]:
    counted = [(str(key), int(n)) for key, n in arm["outcomes"]["status"].items() if n]
    return counted + [(f"verdict {key}", int(n)) for key, n in arm["outcomes"]["verdict"].items() if n]
