"""A finished run → ``mitigations.json``, ``mitigations.md``, a figure and a section of its report: all arms together.

What is known of an arm against the baseline comes from the run's metrics.json; differences from the rivals (VCD above
all) are computed here, by the same arithmetic.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import RenderableType

from experiments.metrics.findings import Answer, Finding, plain
from experiments.metrics.yes_no.answers import align, scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.rates import YesNoResamples, with_margins
from experiments.metrics.yes_no.shift_curve import shift_curve
from experiments.report.build import add_section
from experiments.report.figures import SCREEN, arm_styles
from experiments.report.findings import mitigation_selection as sentences
from experiments.report.numbers import fixed, fixed_interval, percent, percent_interval
from experiments.report.sections import Section, SectionFigure
from experiments.report.table import Cell, Column, Narrow, Table, markdown, terminal
from experiments.runs.directory import read_object, write_json
from experiments.runs.saved import read_run
from experiments.studies.mitigation_selection.candidates import setting_name

RESULT = "mitigations.json"
TITLE = "Mitigations beside each other"
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
    shown = table(result)
    page = "\n".join([*result["summary"], "", markdown(shown), "", NOTE])
    (folder / "mitigations.md").write_text(page + "\n", encoding="utf-8")
    caption = "Above the line: more than any constant on the baseline’s margin can do. Bars are 95% intervals."
    report = add_section(
        folder,
        "mitigations",
        Section(TITLE, result["summary"], [shown], note=NOTE),
        {"mitigations": SectionFigure(draw(result), sentences.figure(result), caption)},
    )
    return [terminal(shown), *result["summary"], f"table: {folder / 'mitigations.md'}", f"report: {report}"]


def evaluate(
    predictions: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    choice: Mapping[str, Any],
    *,
    rivals: Sequence[str],
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """The contents of ``mitigations.json``: every arm, the shift curve, the best arm, findings and sentences.

    ``versus`` holds the paired differences from each rival, by quantity. ``best`` is the arm with the highest overall
    accuracy of those chosen here; its intervals do not know that it was picked out.
    """
    scored, _ = scored_and_controls(pd.DataFrame(predictions))
    cases, answers = align(scored)
    resamples = YesNoResamples(cases, draws=draws, seed=seed)
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
    result["findings"] = [finding.as_json() for finding in discrimination(result)]
    result["summary"] = sentences.summary(result)
    return result


def discrimination(result: Mapping[str, Any]) -> list[Finding]:
    """Of every arm that is no rival: did the AUROC rise above every rival's, each interval excluding 0?"""
    found = []
    for name, arm in result["arms"].items():
        if name not in result["rivals"]:
            deltas = {rival: arm["versus"].get(rival, {}).get("auroc") for rival in result["rivals"]}
            above = all(delta and delta["low"] is not None and delta["low"] > 0 for delta in deltas.values())
            answer = Answer.ROSE if above else Answer.NOT_SHOWN
            found.append(Finding("auroc_above_every_rival", answer, {"auroc": deltas}, name))
    return found


def table(result: Mapping[str, Any]) -> Table:
    """Every arm with its chosen setting; a terminal shows the AUROC differences from the first and last rival only."""
    arms, rivals = result["arms"], result["rivals"]
    deltas = [
        Column(f"AUROC − {rival}", short=f"AUROC −\n{rival}",
               narrow=Narrow.TERSE if rival in (rivals[0], rivals[-1]) else Narrow.NOTHING)
        for rival in rivals
        if any(rival in arm["versus"] for arm in arms.values())
    ]  # fmt: skip
    columns = [
        Column("arm", "left", fold=13),
        Column("chosen", "left", narrow=Narrow.NOTHING),
        Column("unsafe"),
        Column("over-safety", short="over-\nsafety"),
        Column("overall"),
        Column("AUROC", narrow=Narrow.TERSE),
        *deltas,
        Column("flips", narrow=Narrow.NOTHING),
        Column("wins"),
    ]
    return Table.of("Every arm on the same test cases.", [_row(n, a, rivals) for n, a in arms.items()], columns=columns)


def _row(name: str, arm: Mapping[str, Any], rivals: Sequence[str]) -> dict[str, str | Cell]:
    accuracy, intervals = arm["accuracy"], arm["intervals"]
    return {
        "arm": name,
        "chosen": _chosen(arm["chosen"]),
        "unsafe": Cell(percent(accuracy["unsafe"]), percent_interval(intervals["unsafe"])),
        "over-safety": Cell(percent(accuracy["over_safety"]), percent_interval(intervals["over_safety"])),
        "overall": Cell(percent(accuracy["overall"]), percent_interval(intervals["overall"])),
        "AUROC": Cell(fixed(arm["auroc"], 3), fixed_interval(intervals["auroc"])),
        **{f"AUROC − {rival}": _difference(arm["versus"].get(rival, {}).get("auroc")) for rival in rivals},
        "flips": percent(arm["flip_rate"]),
        "wins": "yes" if arm["wins"] else "no",
    }


def _difference(entry: Mapping[str, Any] | None) -> Cell:
    if not entry:
        return Cell("–")
    return Cell(fixed(entry["value"], 3, sign=True), fixed_interval((entry["low"], entry["high"]), 3))


def _chosen(chosen: Mapping[str, Any] | None) -> str:
    if not chosen:
        return "–"
    shift = f"shift {fixed(chosen['shift'], 2, sign=True)}" if chosen["shift"] else ""
    return ", ".join(filter(None, [setting_name(chosen["setting"]), shift])) or "as it is"


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
