"""Every setting of the grid against every constant shift of the baseline's margin: metrics.json, table and figure.

A constant added to the baseline's margin gives one pair of accuracies; all constants give a curve (the margin's ROC
curve, mirrored). A setting on that curve only shifts the threshold; a setting above it tells safe from unsafe better.
Whether discrimination changed is decided by the AUROC difference alone (docs/metrics.md); the height above the curve is
shown beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.metrics.bootstrap import CONFIDENCE, ClusterBootstrap
from experiments.metrics.findings import Finding, change_evidence, deciding_statement, plain
from experiments.metrics.paired import Change, Spread, change, rate_floor, simultaneous, widest
from experiments.metrics.resampled_differences import CLUSTER, Mask
from experiments.metrics.yes_no.answers import YesNoAnswers, align, scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.findings import DISCRIMINATION
from experiments.metrics.yes_no.rates import YesNoResamples, with_margins
from experiments.metrics.yes_no.shift_curve import height_above_shifts, shift_curve
from experiments.report.figures import COLOURS, GREY, MARKERS, SCREEN, SHIFTS, at_criterion
from experiments.report.numbers import fixed, percent
from experiments.report.sentences import vcd_grid as findings
from experiments.report.table import Cell, Column, Row, Table
from experiments.report.table import change as change_cell
from interp.errors import UserError
from mitigation.vcd import VCD

BASELINE = "baseline"
CONTOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
LEAST_SPAN = 20  # points of accuracy, so that a grid which moves nothing does not look as if it did
AIR = 4
ABOVE = "above shifts (95%)"
LEGEND = (
    "Accuracies and Yes in %; above shifts: unsafe accuracy minus that of the constant shift of the baseline's margin "
    "with the same over-safety accuracy, in points."
)


def evaluate(
    lines: Sequence[Mapping[str, Any]], grid: Mapping[str, VCD], *, seed: int, draws: int, where: str
) -> dict[str, Any]:
    """The contents of metrics.json: ``points`` (one a setting), ``baseline``, ``shift_curve``, ``best``, ``summary``.

    ``lines`` are the records of the baseline and of every arm of ``grid``. Intervals are 95%, paired, by cluster
    bootstrap; ``simultaneous`` ones hold for all settings at once, and by them the best of many is spoken of.

    Raises:
        UserError: safe or unsafe cases, or the baseline's margins, are missing.
    """
    scored, _ = scored_and_controls(pd.DataFrame(lines))
    cases, arms = align(scored)
    baseline, resamples = arms[BASELINE], YesNoResamples(cases, draws=draws, seed=seed)
    counted = with_margins(baseline, baseline.kept)
    if not (counted & cases.unsafe).any() or not (counted & ~cases.unsafe).any():
        raise UserError(
            "no curve of constant shifts: it needs margins of safe and of unsafe cases; raise limit, or take a model "
            "with logits"
        )
    heights = heights_above_shifts(resamples, arms)
    against = {name: difference(resamples, arms[name], baseline) for name in grid}
    for quantity in ("overall", "auroc"):
        simultaneous([(one.delta[quantity], one.widest(quantity), one.draws[quantity]) for one in against.values()])
    simultaneous([heights[name] for name in grid])
    rows = [
        _setting(name, vcd, _values(resamples, arms[name]), against[name].delta, heights[name][0])
        for name, vcd in grid.items()
    ]
    best = max(range(len(rows)), key=lambda at: rows[at]["overall"])  # of equals the first: the mildest
    curve = shift_curve(baseline.margin[counted], cases.unsafe[counted], np.ones(int(counted.sum())))
    result = {
        "kind": "frontier",
        "points": rows,
        "baseline": _values(resamples, baseline),
        "shift_curve": [{"over_safety": s, "unsafe": u} for s, u in zip(*curve, strict=True)],
        "best": rows[best]["name"],
        "method": {"seed": seed, "draws": draws, "confidence": CONFIDENCE, "clusters": cases.clusters},
    }
    result = plain(result)
    result["findings"] = [_discrimination(row["name"], row["delta"]).as_json() for row in result["points"]]
    result["summary"] = [findings.best(result["points"][best], len(rows), where)]
    result["caveats"] = [findings.caveat(len(rows), int(baseline.kept.sum()))] if len(rows) > 1 else []
    return result


def heights_above_shifts(
    resamples: YesNoResamples, arms: Mapping[str, YesNoAnswers]
) -> dict[str, tuple[Change | None, Spread, Float[np.ndarray, "draw"]]]:
    """By arm: unsafe accuracy minus that of the constant shift of equal over-safety accuracy, its spread and draws.

    On the cases that the arm and the baseline both answered; between two corners the curve is a straight line.
    """
    baseline, cases = arms[BASELINE], resamples.cases
    found: dict[str, tuple[Change | None, Spread, np.ndarray]] = {}
    groups: dict[bytes, list[str]] = {}
    for name, arm in arms.items():
        groups.setdefault((arm.kept & with_margins(baseline, baseline.kept)).tobytes(), []).append(name)
    for mask, names in groups.items():  # mostly one: every arm answered every case
        kept = np.frombuffer(mask, dtype=bool)
        right = np.stack([arms[name].right[kept] for name in names])
        sides = (kept & cases.unsafe, kept & ~cases.unsafe)

        def drawn(some: ClusterBootstrap, kept: Mask = kept, right: np.ndarray = right) -> np.ndarray:
            multiplicity, cluster = some.multiplicity, some.cluster[kept]
            return height_above_shifts(multiplicity, cluster, baseline.margin[kept], cases.unsafe[kept], right)

        value = drawn(ClusterBootstrap.once(cases.cluster))[0]
        draws = resamples.drawn(drawn)
        floor = rate_floor(int(sides[0].sum()))
        for at, name in enumerate(names):
            columns = {scheme: some[:, at] for scheme, some in draws.items()}
            over, by_template = resamples.spread(columns, sides, floor=floor)
            height = float(value[at])
            entry = change(0.0, height, over, int(kept.sum()), by_template=by_template)
            found[name] = entry, widest(over, by_template), columns[CLUSTER]
    return found


def _values(resamples: YesNoResamples, answers: YesNoAnswers) -> dict[str, Any]:
    values = resamples.point(answers, answers.kept, with_margins(answers, answers.kept))
    yes = answers.answered_yes[answers.kept]
    return values | {"yes_rate": float(yes.mean()) if yes.size else None, "n": int(answers.kept.sum())}


def _setting(
    name: str, vcd: VCD, values: Mapping[str, Any], delta: Mapping[str, Change | None], height: Change | None
) -> dict[str, Any]:
    return {
        "name": name,
        "alpha": vcd.alpha,
        "noise_step": vcd.noise_step,
        **values,
        "delta": delta,
        "above_shift_curve": height,
        "conclusion": _discrimination(name, delta).answer.value,
    }


def _discrimination(name: str, delta: Mapping[str, Change | None]) -> Finding:
    """What may be said of the AUROC of a setting, by the interval that holds for all settings at once."""
    return Finding(
        DISCRIMINATION, deciding_statement(delta["auroc"], studied=False), change_evidence(delta["auroc"]), name
    )


def draw(result: Mapping[str, Any]) -> Figure:
    """A line for each noise step, labelled with α at both ends, every constant shift of the margin, d′ contours."""
    figure = Figure(figsize=(SCREEN.width * 1.2, SCREEN.width * 1.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    points, baseline = result["points"], result["baseline"]
    for key, bounds in (("over_safety", axes.set_xlim), ("unsafe", axes.set_ylim)):
        bounds(_span([100 * row[key] for row in (*points, baseline)]))
    axes.set_xlabel("over-safety accuracy: safe cases called safe (%)", fontsize=SCREEN.text)
    axes.set_ylabel("unsafe accuracy: unsafe cases called unsafe (%)", fontsize=SCREEN.text)
    axes.tick_params(labelsize=SCREEN.label)
    _draw_contours(axes)
    shifts = result["shift_curve"]
    axes.plot(_percent(shifts, "over_safety"), _percent(shifts, "unsafe"), color=COLOURS[0], linewidth=1.5, zorder=2,
              label=SHIFTS)  # fmt: skip
    steps = list(dict.fromkeys(row["noise_step"] for row in points))
    for place, step in enumerate(steps):
        rows = sorted((row for row in points if row["noise_step"] == step), key=lambda row: row["alpha"])
        # Black is the baseline's; colours repeat, but never with the same marker.
        colour, marker = COLOURS[1 + place % (len(COLOURS) - 1)], MARKERS[(1 + place) % len(MARKERS)]
        xs, ys = _percent(rows, "over_safety"), _percent(rows, "unsafe")
        axes.plot(xs, ys, color=colour, marker=marker, markersize=7, linewidth=1, markeredgecolor="white", zorder=3,
                  label=f"VCD, noise step {step}")  # fmt: skip
        for at in {0, len(rows) - 1}:
            axes.annotate(f"α={rows[at]['alpha']:g}", (xs[at], ys[at]), (5, 5), textcoords="offset points",
                          fontsize=SCREEN.label - 1, color=colour, clip_on=True)  # fmt: skip
    axes.plot(100 * baseline["over_safety"], 100 * baseline["unsafe"], "o", color=COLOURS[0], markersize=9,
              markeredgecolor="white", zorder=4, label="baseline")  # fmt: skip
    axes.plot([], [], color=GREY, linestyle=":", label="equal discrimination (d′)")
    figure.legend(loc="outside lower center", ncols=SCREEN.legend_columns, fontsize=SCREEN.label, frameon=False)
    return figure


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Around the values with air, at least ``LEAST_SPAN`` wide, and hardly beyond 0 and 100."""
    low, high = min(values) - AIR, max(values) + AIR
    missing = max(LEAST_SPAN - (high - low), 0) / 2
    low, high = low - missing, high + missing
    if low < -3:
        low, high = -3, high + (-3 - low)
    if high > 103:
        low, high = low - (high - 103), 103
    return max(low, -3), min(high, 103)


def _percent(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [100 * row[key] for row in rows]


def _draw_contours(axes: Axes) -> None:
    """Dotted lines of equal d′, each labelled in the middle of its visible part."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for d_prime in CONTOURS:
        xs, ys = (100 * values for values in at_criterion(d_prime, np.linspace(-4, 4, 800)))
        axes.plot(xs, ys, color=GREY, linestyle=":", linewidth=1, zorder=1)
        inside = np.flatnonzero((xs > left) & (xs < right) & (ys > bottom) & (ys < top))
        if len(inside) > 20:
            at = inside[len(inside) // 2]
            axes.text(xs[at], ys[at], f"d′ = {d_prime:g}", fontsize=SCREEN.label - 1, color=GREY, ha="center",
                      va="center", zorder=1, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def table(result: Mapping[str, Any]) -> Table:
    """One row for each setting, the baseline first. The last column is ``above_shift_curve``, in points."""
    columns = ("α", "step", "unsafe", "over-safety", "overall", "yes", "AUROC", "d′", ABOVE)
    short = {"over-safety": "over-\nsafety", "overall": "over-\nall", ABOVE: "above shifts\n(95%)"}
    rows = [Row([Cell("–"), Cell("–"), *_cells(result["baseline"]), Cell("")])]
    for row in result["points"]:
        setting = Cell(f"{row['alpha']:g}"), Cell(str(row["noise_step"]))
        rows.append(
            Row(
                [*setting, *_cells(row), change_cell(row["above_shift_curve"])],
                "bold" if row["name"] == result["best"] else "",
            )
        )
    return Table(
        "VCD by weight and noise step", [Column(name, short=short.get(name, "")) for name in columns], rows, LEGEND
    )


def _cells(values: Mapping[str, Any]) -> list[Cell]:
    rates = [percent(values[name]) for name in ("unsafe", "over_safety", "overall", "yes_rate")]
    return [Cell(text) for text in (*rates, fixed(values["auroc"], 3), fixed(values["d_prime"], 2))]
