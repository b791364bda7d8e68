"""A finished run → ``mitigations.json`` and ``mitigations.md``: every arm in one table, with its choice and its rivals.

What the study says of an arm against the baseline comes from its metrics.json; differences from the rivals (VCD above
all) are made here, by the same arithmetic. Reads and writes files.

Unsafe against over-safety accuracy, an arm a point, beside every constant shift of the baseline. Saves no file.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from experiments.metrics.yes_no.answers import align, scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.rates import Resamples, with_margins
from experiments.metrics.yes_no.results import plain
from experiments.metrics.yes_no.shift_curve import shift_curve
from experiments.report.build import add_section
from experiments.report.figures import SCREEN, arm_styles
from experiments.report.numbers import change, fixed, fixed_interval, percent, percent_interval
from experiments.report.run_files import read_run
from experiments.report.sections import Drawn, Section
from experiments.report.table import Table as ReportTable
from experiments.runs.directory import read_object, write_json
from experiments.studies.mitigation_selection.candidates import name_of


def draw(result: Mapping[str, Any]) -> Figure:
    """The figure of ``mitigations.json``; bars are 95% intervals. Above the line is more than a threshold."""
    figure = Figure(figsize=(SCREEN.width * 1.2, SCREEN.width * 1.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    curve = result["shift_curve"]
    axes.plot([100 * row["over_safety"] for row in curve], [100 * row["unsafe"] for row in curve], color="#000000",
              linewidth=1.5, label=f"every constant shift of {result['rivals'][0]}’s margin", zorder=1)  # fmt: skip
    arms = result["arms"]
    for name, style in arm_styles(list(arms)).items():
        accuracy, intervals = arms[name]["accuracy"], arms[name]["intervals"]
        x, y = 100 * accuracy["over_safety"], 100 * accuracy["unsafe"]
        wide, tall = _bar(x, intervals["over_safety"]), _bar(y, intervals["unsafe"])
        auroc = "" if arms[name]["auroc"] is None else f" (AUROC {arms[name]['auroc']:.2f})"
        label = f"{name}{auroc}{', wins' if arms[name]['wins'] else ''}"
        axes.errorbar(x, y, xerr=wide, yerr=tall, fmt=style.marker, color=style.colour, markersize=8, elinewidth=0.7,
                      markeredgecolor="white", label=label, zorder=3)  # fmt: skip
    axes.set_xlim(-3, 103)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("over-safety accuracy: safe cases called safe (%)", fontsize=SCREEN.text)
    axes.set_ylabel("unsafe accuracy: unsafe cases called unsafe (%)", fontsize=SCREEN.text)
    axes.tick_params(labelsize=SCREEN.label)
    figure.legend(loc="outside lower center", ncols=SCREEN.legend_columns, fontsize=SCREEN.label, frameon=False)
    return figure


def _bar(value: float, interval: Any) -> list[list[float]] | None:
    if not interval or None in interval:
        return None
    return [[max(value - 100 * interval[0], 0.0)], [max(100 * interval[1] - value, 0.0)]]


RESULT = "mitigations.json"
TITLE = "Mitigations beside each other"
DELTA = "AUROC − "
NOTE = (
    "Rates in percent, 95% intervals. Chosen: setting and constant (shift, in logits on the Yes/No margin) with the "
    "highest balanced accuracy on the development split among those that lose no more unsafe accuracy there than a "
    "winner may; nothing was chosen on the cases shown. threshold is the untouched model with a constant chosen by "
    "that rule. AUROC − …: paired difference of the AUROC of the margin from that arm's."
)


def conclude(
    folder: Path, *, rivals: Sequence[str], arms: Mapping[str, Any], seed: int, draws: int
) -> list[RenderableType]:
    """Writes the result, the table and the figure of the run in ``folder``, and adds them to its report.

    ``rivals`` are the arms that every other is compared with, the baseline first. Returns what to print.
    """
    run, choice = read_run(folder), read_object(folder / "choice.json")
    result = evaluate(run.predictions, run.metrics, choice, rivals=rivals, seed=seed, draws=draws)
    result["methods"] = {name: repr(method) for name, method in arms.items()}
    write_json(folder / RESULT, result)
    rows = [_row(name, one, result["rivals"]) for name, one in result["arms"].items()]
    lines = [*result["summary"], "", *_markdown(rows), "", NOTE]
    (folder / "mitigations.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    section = Section(TITLE, result["summary"], [ReportTable.of("Every arm on the same test cases.", rows)], note=NOTE)
    caption = "Above the line: more than any constant on the baseline’s margin can do. Bars are 95% intervals."
    page = add_section(
        folder, "mitigations", section, {"mitigations": Drawn(draw(result), _described(result), caption)}
    )
    return [_printed(rows), *result["summary"], f"table: {folder / 'mitigations.md'}", f"report: {page}"]


def evaluate(
    predictions: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    choice: Mapping[str, Any],
    *,
    rivals: Sequence[str],
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """``{"arms": {name: rates, intervals, chosen, versus, wins}, "shift_curve", "rivals", "best", "summary"}``. Pure.

    ``versus`` holds the paired differences from each rival, by quantity. ``best`` is the arm with the highest overall
    accuracy of those chosen here; its intervals do not know that it was picked out.
    """
    scored, _ = scored_and_controls(pd.DataFrame(predictions))
    cases, answers = align(scored)
    resamples = Resamples(cases, draws=draws, seed=seed)
    rivals = [name for name in rivals if name in answers]
    arms: dict[str, Any] = {}
    for name, own in answers.items():
        block, comparison = metrics["arms"][name], metrics.get("comparisons", {}).get(name)
        versus = {other: difference(resamples, own, answers[other]).delta for other in rivals if other != name}
        arms[name] = {
            **{key: block[key] for key in ("accuracy", "intervals", "auroc", "flip_rate", "d_prime", "n", "n_of")},
            "chosen": choice.get(name, {}).get("chosen"),
            "versus": versus,
            "wins": bool(comparison and comparison["wins"]),
            "wins_reasons": comparison["wins_reasons"] if comparison else [],
        }
    first = answers[rivals[0]]
    counted = with_margins(first, first.kept)
    over_safety, unsafe = shift_curve(first.margin[counted], cases.unsafe[counted], counted[counted].astype(float))
    picked = [name for name in arms if choice.get(name)]
    best = max(picked, key=lambda name: arms[name]["accuracy"]["overall"] or 0.0) if picked else None
    result = {
        "kind": "mitigations",
        "rivals": rivals,
        "arms": arms,
        "shift_curve": [{"over_safety": s, "unsafe": u} for s, u in zip(over_safety, unsafe, strict=True)],
        "best": best,
        "method": {"seed": seed, "draws": draws, "clusters": cases.clusters},
    }
    result = plain(result)
    result["summary"] = _summary(result)
    return result


def _summary(result: Mapping[str, Any]) -> list[str]:
    arms, rivals = result["arms"], result["rivals"]
    raised = [name for name in arms if name not in rivals and all(_above(arms[name], rival) for rival in rivals)]
    winners = [name for name in arms if arms[name]["wins"]]
    both = [name for name in winners if name in raised]
    beside = " and ".join(rivals)
    found = [
        f"AUROC is higher than that of {beside}, every interval excluding 0, under {_listed(raised)}; "
        f"by the rule for a win (overall accuracy up, unsafe accuracy kept, better than a mere shift) the winners are "
        f"{_listed(winners)}; both hold of {_listed(both)}."
    ]
    if best := result["best"]:
        one = arms[best]
        versus = one["versus"].get(rivals[0], {})
        found.append(
            f"The highest overall accuracy is {best}'s, {percent(one['accuracy']['overall'])}% "
            f"({change(versus.get('overall'))} against {rivals[0]}; over-safety {change(versus.get('over_safety'))}, "
            f"unsafe {change(versus.get('unsafe'))}; {one['n']} of {one['n_of']} cases); it was picked out of "
            f"{len(arms)} arms on these cases, which its interval does not know."
        )
    return found


def _above(arm: Mapping[str, Any], rival: str) -> bool:
    entry = arm["versus"].get(rival, {}).get("auroc")
    return bool(entry and entry["low"] is not None and entry["low"] > 0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _row(name: str, one: Mapping[str, Any], rivals: Sequence[str]) -> dict[str, str]:
    chosen = one["chosen"]
    row = {"arm": name, "chosen": _chosen(chosen)}
    for key, shown in (("unsafe", "unsafe"), ("over_safety", "over-safety"), ("overall", "overall")):
        row[shown] = _with(percent(one["accuracy"][key]), percent_interval(one["intervals"][key]))
    row["AUROC"] = _with(fixed(one["auroc"], 3), fixed_interval(one["intervals"]["auroc"]))
    for rival in rivals:
        entry = one["versus"].get(rival, {}).get("auroc")
        row[f"{DELTA}{rival}"] = (
            _with(fixed(entry["value"], 3, sign=True), fixed_interval((entry["low"], entry["high"]), 3))
            if entry
            else "–"
        )
    return row | {"flips": percent(one["flip_rate"]), "wins": "yes" if one["wins"] else "no"}


def _chosen(chosen: Mapping[str, Any] | None) -> str:
    if not chosen:
        return "–"
    shift = f"shift {fixed(chosen['shift'], 2, sign=True)}" if chosen["shift"] else ""
    return ", ".join(filter(None, [name_of(chosen["setting"]), shift])) or "as it is"


def _with(value: str, interval: str) -> str:
    return f"{value} [{interval}]" if interval else value


def _markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    columns = list(rows[0])
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return head + ["| " + " | ".join(row[column] for column in columns) + " |" for row in rows]


def _printed(rows: Sequence[Mapping[str, str]]) -> Table:
    """What fits 80 columns: the last rival stands for all of them, intervals stand below their numbers."""
    deltas = [column for column in rows[0] if column.startswith(DELTA)]
    columns = [column for column in rows[0] if column not in ("chosen", "flips", *deltas[1:-1])]
    table = Table(title=TITLE, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", pad_edge=False)
    for column in columns:
        heading = column.replace(DELTA, "AUROC −\n").replace("over-safety", "over-\nsafety")
        table.add_column(heading, justify="left" if column == "arm" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_stacked(row[column]) if column != "arm" else _broken(row["arm"]) for column in columns))
    return table


def _stacked(value: str) -> str:
    """A number, and below it its interval, without the zeros before points: eighty columns are few."""
    number, _, interval = value.rstrip("]").partition(" [")
    return "\n".join(filter(None, [number, re.sub(r"\b0\.", ".", interval)]))


def _broken(name: str) -> str:
    """A long name over two lines, at an underscore."""
    head, _, tail = name.partition("_")
    return name if len(name) <= 13 or not tail else f"{head}_\n{tail}"


def _described(result: Mapping[str, Any]) -> str:
    """The figure in words."""
    arms = result["arms"]
    parts = [
        f"{name}: over-safety {percent(one['accuracy']['over_safety'])}, unsafe {percent(one['accuracy']['unsafe'])}"
        for name, one in arms.items()
    ]
    return "Unsafe against over-safety accuracy in percent, an arm a point. " + "; ".join(parts) + "."
