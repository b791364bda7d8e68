"""metrics.json of a refusal benchmark → rows of text, the same for the terminal and the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.report.formatting import (
    MISSING,
    complete,
    fixed,
    fixed_interval,
    p_value,
    percent,
    percent_interval,
)
from experiments.report.tables import CEILING_MARK, Cell

CONCLUSIONS = {
    "fell": {"fell": "refuses less, benign and harmful alike", "same": "refuses benign requests less", "rose":
             "refuses benign requests less and harmful ones more", "none": "refuses benign requests less"},
    "same": {"fell": "refuses harmful requests less", "same": "no change found", "rose":
             "refuses harmful requests more", "none": "no change found"},
    "rose": {"fell": "refuses benign requests more and harmful ones less", "same": "refuses benign requests more",
             "rose": "refuses more, benign and harmful alike", "none": "refuses benign requests more"},
    "none": {"fell": "refuses harmful requests less", "same": "no change found", "rose":
             "refuses harmful requests more", "none": "cannot be told"},
}  # fmt: skip


@dataclass(frozen=True)
class ArmRow:
    """One arm: refusal rates with intervals and bounds, and the same answers by the two other conventions."""

    name: str
    n: int
    n_of: int
    benign: Cell
    contrast: Cell
    difference: Cell
    type_mean: Cell
    d_prime: Cell
    criterion: Cell
    without_partial: tuple[str, str]  # benign, contrast
    published: tuple[str, str]  # benign, contrast
    reason: str = ""  # why the arm has no numbers


@dataclass(frozen=True)
class TypeRow:
    """One arm's rates on one type of stimulus."""

    arm: str
    type: str
    benign: Cell
    contrast: Cell
    difference: Cell


@dataclass(frozen=True)
class ComparisonRow:
    """One arm's paired differences against ``against``."""

    name: str
    against: str
    n: int
    deltas: Mapping[str, Cell]
    by_type: Mapping[str, Mapping[str, Cell]]
    flips: Mapping[str, str]  # fixed/broken, by "all", "benign", "contrast"
    p_holm: str
    conclusion: str
    cases_needed: int | None


def arm_rows(metrics: Mapping[str, Any]) -> list[ArmRow]:
    """The arms in the order of metrics.json, then those that cannot enter, with the reason."""
    none = Cell(MISSING)
    blank = (MISSING, MISSING)
    apart = [
        ArmRow(name, 0, 0, none, none, none, none, none, none, blank, blank, str(reason))
        for name, reason in (metrics.get("not_applicable") or {}).items()
    ]
    return [_arm_row(name, arm) for name, arm in metrics["arms"].items()] + apart


def type_rows(metrics: Mapping[str, Any]) -> list[TypeRow]:
    """A row a type and arm, arms together."""
    return [
        TypeRow(
            arm=name,
            type=type_,
            benign=rate_cell(cells["benign"]),
            contrast=rate_cell(cells["contrast"]),
            difference=delta_cell(cells["difference"]),
        )
        for name, arm in metrics["arms"].items()
        for type_, cells in arm["by_type"].items()
    ]


def comparison_rows(metrics: Mapping[str, Any]) -> list[ComparisonRow]:
    """The compared arms in the order of metrics.json."""
    return [_comparison_row(name, comparison) for name, comparison in (metrics.get("comparisons") or {}).items()]


def rate_cell(cell: Mapping[str, Any] | None) -> Cell:
    """A rate with interval and, where cases are missing, the bounds they allow."""
    if cell is None:
        return Cell(MISSING)
    return Cell(
        percent(cell["rate"]),
        percent_interval(cell["interval"]),
        percent_interval(cell["bounds"], 1) if cell["n"] < cell["n_of"] else "",
        note=f"{cell['refused']} of {cell['n']}",
    )


def delta_cell(delta: Mapping[str, Any] | None, *, of_rates: bool = True) -> Cell:
    """A difference in points, or in plain numbers unless ``of_rates``, with its interval."""
    if delta is None:
        return Cell(MISSING)
    ends = (delta["low"], delta["high"])
    if not of_rates:
        return Cell(fixed(delta["value"], 2, sign=True), fixed_interval(ends))
    return Cell(percent(delta["value"], sign=True), percent_interval(ends, 1))


def _arm_row(name: str, arm: Mapping[str, Any]) -> ArmRow:
    rates, intervals = arm["refusal_rate"], arm["intervals"]
    d_prime = fixed(arm["d_prime"], 2)
    mark = CEILING_MARK if arm.get("near_ceiling") and d_prime != MISSING else ""

    def cell(subset: str) -> Cell:
        n, n_of = arm["n_by_subset"][subset]
        ends = complete(arm["bounds"][subset])
        return Cell(percent(rates[subset]), percent_interval(intervals[subset]),
                    percent_interval(ends, 1) if n < n_of else "")  # fmt: skip

    return ArmRow(
        name=name,
        n=arm["n"],
        n_of=arm["n_of"],
        benign=cell("benign"),
        contrast=cell("contrast"),
        difference=Cell(percent(rates["difference"], sign=True), percent_interval(intervals["difference"])),
        type_mean=Cell(percent(rates["type_mean"]), percent_interval(intervals["type_mean"])),
        d_prime=Cell(d_prime + mark, fixed_interval(intervals["d_prime"])),
        criterion=Cell(fixed(arm["criterion"], 2), fixed_interval(intervals["criterion"])),
        without_partial=_pair(arm["partial_as_compliance"]),
        published=_pair(arm["published"]),
    )


def _pair(rates: Mapping[str, Any]) -> tuple[str, str]:
    return percent(rates["benign"]), percent(rates["contrast"])


def _comparison_row(name: str, comparison: Mapping[str, Any]) -> ComparisonRow:
    test = comparison["mcnemar"]
    tables = {"all": test} | test["by_subset"]
    benign, contrast = comparison["conclusion"].split("_")
    return ComparisonRow(
        name=name,
        against=comparison["against"],
        n=comparison["n"],
        deltas={
            key: delta_cell(delta, of_rates=key not in ("d_prime", "criterion"))
            for key, delta in comparison["delta"].items()
        },
        by_type={
            type_: {key: delta_cell(delta) for key, delta in deltas.items()}
            for type_, deltas in comparison["by_type"].items()
        },
        flips={key: f"{table['fixed']}/{table['broken']}" for key, table in tables.items()},
        p_holm=p_value(test["p_holm"]),
        conclusion=CONCLUSIONS[benign][contrast],
        cases_needed=comparison["cases_needed_for_5_points"],
    )
