"""Safety against oversensitivity: refusal of harmful twins over refusal of benign requests. Saves nothing.

metrics.json of a refusal benchmark → rows of text, the same for the terminal and the page.

What ``templates/refusal.html.j2`` prints of a refusal benchmark's metrics.json. Knows neither HTML nor the disk.

The template reads one variable, ``refusal`` (this module's ``section(metrics)``), and is to be included where it is not
None; with it come ``figures.safety_against_oversensitivity`` and ``figures.describe`` for the picture.

The result of a refusal study as rich tables that fit 80 columns. Knows nothing of files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.report.figures import GREY, SCREEN, Format, arm_styles
from experiments.report.numbers import MISSING, complete, fixed, fixed_interval, p_value, percent, percent_interval
from experiments.report.terminal import CEILING, arm_table, said
from experiments.report.yes_no import CEILING_MARK, Cell

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


LEGEND = (
    "Refusals in %, partial ones included; below each number its 95% interval, and in braces the lowest and highest "
    "value that unknown cases allow. benign: requests that should be answered; contrast: their harmful twins, which "
    "should be refused; apart: contrast − benign, in points; type mean: plain mean of the benign types; d′: how well "
    "harmful and benign are told apart, c: readiness to refuse (negative = ready). without partial, published: benign "
    "and contrast by two other conventions (partial refusals as compliance; no response as refusal). fixed/broken: "
    "cases gone from wrong to right and back; p: McNemar’s test on them, after Holm’s correction."
)
_DELTAS = {"benign": "benign", "contrast": "con-\ntrast", "difference": "apart", "d_prime": "d′"}


def results(metrics: Mapping[str, Any]) -> Group:
    """What a terminal shows at the end of a refusal study: arms, types, paired differences, legend, summary."""
    parts: list[RenderableType] = [arms_table(metrics), "", types_table(metrics), ""]
    if metrics.get("comparisons"):
        parts += [comparisons_table(metrics), ""]
    ceiling = any(arm.get("near_ceiling") for arm in metrics["arms"].values())
    parts.append(Text(f"{LEGEND} {CEILING}" if ceiling else LEGEND, style="dim"))
    return Group(*parts, *said(metrics))


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm."""
    table = arm_table("Refusals by arm")
    for heading in ("known\nof N", "benign", "con-\ntrast", "apart", "type\nmean", "d′", "c", "without\npartial",
                    "pub-\nlished"):  # fmt: skip
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in arm_rows(metrics):
        if row.reason:
            table.add_row(Text(row.name), Text("n/a"), *(Text(MISSING) for _ in range(8)))
            continue
        shown = (row.benign, row.contrast, row.difference, row.type_mean, Cell(row.d_prime.value),
                 Cell(row.criterion.value))  # fmt: skip
        table.add_row(
            Text(row.name),
            Text(f"{row.n}\nof {row.n_of}"),
            *map(stacked, shown),
            Text("\n".join(row.without_partial)),
            Text("\n".join(row.published)),
        )
    return table


def types_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm and type of stimulus."""
    table = arm_table("Refusals by type of stimulus")
    table.add_column(Text("type"), max_width=32, overflow="fold")
    for heading in ("benign", "refused of n", "contrast", "apart"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    last = None
    for row in type_rows(metrics):
        name, last = ("" if row.arm == last else row.arm), row.arm
        table.add_row(
            Text(name),
            Text(row.type),
            beside(row.benign),
            Text(row.benign.note),
            beside(row.contrast),
            beside(row.difference),
        )
    return table


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, flips, Holm's p."""
    rows = comparison_rows(metrics)
    against = ", ".join(dict.fromkeys(row.against for row in rows))
    table = arm_table(f"Paired differences against {against}")
    for heading in _DELTAS.values():
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for heading in ("fixed/broken\nbenign", "\ncontrast", "p\n"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        deltas = (stacked(row.deltas[key]) for key in _DELTAS)
        flips = (Text(row.flips["benign"]), Text(row.flips["contrast"]), Text(row.p_holm))
        table.add_row(Text(row.name), *deltas, *flips)
    return table


def stacked(cell: Cell) -> Text:
    """Number over interval over bounds."""
    text = Text(cell.value)
    for line in (cell.interval, f"{{{cell.bounds}}}" if cell.bounds else ""):
        if line:
            text.append("\n").append(line, style="dim")
    return text


def beside(cell: Cell) -> Text:
    """Number and interval in one line."""
    text = Text(cell.value)
    if cell.interval:
        text.append(f" {cell.interval}", style="dim")
    return text


class Point(NamedTuple):
    """One model or arm: two rates (fractions of 1) with their intervals, None where there is none."""

    name: str
    benign: float
    contrast: float
    benign_interval: tuple[float, float] | None = None
    contrast_interval: tuple[float, float] | None = None


def points(metrics: Mapping[str, Any]) -> list[Point]:
    """The arms of a metrics.json that have both rates."""
    return [
        Point(
            name,
            arm["refusal_rate"]["benign"],
            arm["refusal_rate"]["contrast"],
            complete(arm["intervals"]["benign"]),
            complete(arm["intervals"]["contrast"]),
        )
        for name, arm in metrics["arms"].items()
        if arm["refusal_rate"]["benign"] is not None and arm["refusal_rate"]["contrast"] is not None
    ]


def safety_against_oversensitivity(shown: Sequence[Point], *, title: str = "", form: Format = SCREEN) -> Figure:
    """A point each with its 95% intervals; on the dotted line harmful and benign are refused alike."""
    figure = Figure(figsize=(form.width, form.width), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(-3, 103), ylim=(-3, 103), aspect="equal", xticks=range(0, 101, 20), yticks=range(0, 101, 20))
    axes.set_xlabel("oversensitivity: benign requests refused (%)", fontsize=form.text)
    axes.set_ylabel("safety: harmful requests refused (%)", fontsize=form.text)
    axes.tick_params(labelsize=form.label)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", linewidth=1, label="harmful and benign refused alike")
    styles = arm_styles([point.name for point in shown])
    for point in shown:
        style, x, y = styles[point.name], 100 * point.benign, 100 * point.contrast
        if point.benign_interval:
            axes.plot([100 * end for end in point.benign_interval], [y, y], color=style.colour, linewidth=1.5)
        if point.contrast_interval:
            axes.plot([x, x], [100 * end for end in point.contrast_interval], color=style.colour, linewidth=1.5)
        label = point.name if len(point.name) <= form.name_length else f"{point.name[: form.name_length - 1]}…"
        axes.plot(x, y, style.marker, color=style.colour, markersize=8, markeredgecolor="white", linestyle="",
                  label=label.replace("$", r"\$"))  # fmt: skip
    if title:
        axes.set_title(title.replace("$", r"\$"), fontsize=form.label)
    figure.legend(loc="outside lower center", ncols=form.legend_columns, fontsize=form.label, frameon=False)
    return figure


def describe(shown: Sequence[Point]) -> str:
    """The figure in words, for those who do not see it."""
    listed = "; ".join(f"{p.name}: benign {percent(p.benign)}%, harmful {percent(p.contrast)}%" for p in shown)
    return f"Refusal of harmful requests against refusal of benign ones. {listed}."
