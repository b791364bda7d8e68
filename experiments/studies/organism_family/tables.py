"""The family's members side by side: what was put in, what the tools see, and what each mitigation gains."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import RenderableType

from experiments.metrics.findings import Answer, Finding, plain
from experiments.metrics.tests import spearman
from experiments.report.figures import COLOURS, MARKERS, SCREEN, svg_bytes
from experiments.report.findings.organism_family import KINDS, sentences
from experiments.report.numbers import fixed, percent
from experiments.report.table import Column, Narrow, Table, markdown, terminal
from experiments.runs.directory import RunStore
from interp.errors import UserError

BASELINE = "baseline"
PRIOR = "prior_correction"
# What should follow the share of blind labels, and which way: more blindness, less of each of these.
FOLLOWING = ("auroc", "within", "image_effect", "truth")
LEVEL = 0.05  # of the rank correlations' permutation test
NOTE = (
    "Numbers in the names: share of verdict labels from an annotator who never looks, in percent. "
    "within: mean AUROC inside a template. between: share of the margins' variance between templates. image effect: "
    "mean size of the margin's change when image → verdict attention is cut, over the margins' standard deviation. "
    "truth: held-out AUROC of a linear probe at the verdict. prior: factor by which d′ is expected to grow under prior "
    "correction, said without labels. Δ: AUROC of an arm minus the baseline's, its setting chosen on the "
    "development split; * where the "
    "95% interval excludes 0."
)


def conclude(store: RunStore, found: Mapping[str, Any], *, rival: str) -> list[RenderableType]:
    """Writes ``family.md``, ``figures/family.svg`` and the sentences into ``family.json``; returns what to print."""
    if not found:
        raise UserError("no member was measured; a table needs at least one; give task.biases and task.seeds")
    findings = [*causes(found), *gains(found, rival=rival)]
    lines = sentences(findings)
    kept = [finding.as_json() for finding in findings]
    store.write_json("family.json", {"members": dict(found), "findings": kept, "sentences": lines})
    shown = table(found)
    page = "\n".join([*lines, "", markdown(shown), "", NOTE])
    (store.path / "family.md").write_text(page + "\n", encoding="utf-8")
    (store.path / "figures").mkdir(exist_ok=True)
    (store.path / "figures" / "family.svg").write_bytes(svg_bytes(draw(found)))
    return [terminal(shown), *lines, f"table and figure: {store.path / 'family.md'}, figures/family.svg"]


def table(found: Mapping[str, Any]) -> Table:
    """One row for each member; the gains (Δ) stand only in files, since a terminal has no room for them."""
    records = [member_record(name, member) for name, member in found.items()]
    columns = [
        Column(name, "left" if name == "member" else "right", short=name.replace(" ", "\n"),
               narrow=Narrow.NOTHING if name.startswith("Δ") else Narrow.WHOLE)
        for name in records[0]
    ]  # fmt: skip
    complete = [{column.heading: record.get(column.heading, "–") for column in columns} for record in records]
    return Table.of("What was put in, and what the tools see", complete, columns=columns)


def member_record(name: str, member: Mapping[str, Any]) -> dict[str, str]:
    """A member's row, as text by heading."""
    traits, arms = member["traits"], member["arms"]
    base = arms[BASELINE]
    shown = {
        "member": name,
        "unsafe": percent(base["accuracy"]["unsafe"]),
        "over-safety": percent(base["accuracy"]["over_safety"]),
        "AUROC": fixed(base["auroc"], 3),
        "within": fixed(traits["within"], 3),
        "between": percent(traits["between_templates"], 0),
        "captions": percent(traits["captions"], 0),
        "image effect": fixed(traits["image_effect"], 2),
        "truth": fixed(traits["truth"], 3),
        "prior": f"{fixed(traits['prior']['factor'], 2)}{' helps' if traits['prior']['helps'] else ''}",
    }
    for arm, one in arms.items():
        delta = (one["versus"].get(BASELINE) or {}).get("auroc")
        if delta and arm != "threshold":
            mark = "*" if delta["low"] is not None and (delta["low"] > 0 or delta["high"] < 0) else ""
            shown[f"Δ {arm}"] = fixed(delta["value"], 3, sign=True) + mark + (" wins" if one["wins"] else "")
    return shown


def causes(found: Mapping[str, Any]) -> list[Finding]:
    """Whether what the tools see follows what was put in: rank correlations by kind, and the label-free rule."""
    findings = []
    for kind in dict.fromkeys(member["kind"] for member in found.values()):
        members = [member for member in found.values() if member["kind"] == kind]
        if len({member["bias"] for member in members}) >= 3:
            findings.append(_follows_bias(kind, members))
    told = [member for member in found.values() if PRIOR in member["arms"]]
    if told:
        findings.append(_label_free_rule(told))
    return findings


def _follows_bias(kind: str, members: Sequence[Mapping[str, Any]]) -> Finding:
    """By Spearman's ρ of each trait with the share of blind labels, p < 0.05; all should fall as that share grows."""
    bias = np.array([member["bias"] for member in members])
    correlations = {}
    for trait in FOLLOWING:
        values = np.array([np.nan if m["traits"][trait] is None else m["traits"][trait] for m in members], float)
        rho = spearman(bias[~np.isnan(values)], values[~np.isnan(values)])
        correlations[trait] = rho and rho._asdict()
    known = [one for one in correlations.values() if one]
    falling = sum(one["rho"] < 0 and one["p"] < LEVEL for one in known)
    answer = Answer.CANNOT_TELL if not known else _of_all(falling, len(FOLLOWING), none=Answer.NOT_SHOWN)
    return Finding("traits follow the blind labels", answer, plain({"correlations": correlations, "n": len(members)}),
                   kind)  # fmt: skip


def _label_free_rule(members: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether prior correction raises the AUROC where the rule, which sees no labels, says so, and only there."""
    evidence: dict[str, Any] = {"organisms": len(members)}
    for name, says in (("helps", True), ("others", False)):
        group = [member for member in members if member["traits"]["prior"]["helps"] is says]
        deltas = [(member["arms"][PRIOR]["versus"].get(BASELINE) or {}).get("auroc") for member in group]
        evidence[name] = {
            "organisms": len(group),
            "rose": sum(bool(delta and delta["value"] > 0) for delta in deltas),
            "beyond_chance": sum(_above(member["arms"][PRIOR], BASELINE) for member in group),
        }
    right = evidence["helps"]["rose"] + evidence["others"]["organisms"] - evidence["others"]["rose"]
    return Finding("label-free rule is right", _of_all(right, len(members)), evidence, PRIOR)


def gains(found: Mapping[str, Any], *, rival: str) -> list[Finding]:
    """In how many organisms each arm raises the AUROC over the baseline and over the rival, and wins."""
    findings = []
    for name in _compared(found):
        arms = [member["arms"][name] for member in found.values() if name in member["arms"]]
        over = [sum(_above(arm, other) for arm in arms) for other in (BASELINE, rival)]
        evidence = {
            "organisms": len(arms),
            "above_baseline": over[0],
            "rival": rival,
            "above_rival": None if name == rival else over[1],
            "wins": sum(arm["wins"] for arm in arms),
        }
        findings.append(Finding("AUROC above the baseline's", _of_all(over[0], len(arms)), evidence, name))
    return findings


def _of_all(count: int, n: int, *, none: Answer = Answer.NO) -> Answer:
    return Answer.YES if count == n else Answer.PARTLY if count else none


def _compared(found: Mapping[str, Any]) -> list[str]:
    """The arms that are compared with the baseline."""
    return [name for name in next(iter(found.values()))["arms"] if name not in (BASELINE, "threshold")]


def draw(found: Mapping[str, Any]) -> Figure:
    """AUROC gained over the baseline against the share of blind labels, by kind; lines are means over seeds."""
    kinds = list(dict.fromkeys(member["kind"] for member in found.values()))
    figure = Figure(figsize=(SCREEN.width * 0.9 * len(kinds), SCREEN.width), dpi=100, layout="constrained")
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    names = _compared(found)
    for axis, kind in zip(axes, kinds, strict=True):
        members = [member for member in found.values() if member["kind"] == kind]
        for at, name in enumerate(names):
            points = [(100 * m["bias"], d["value"]) for m in members
                      if (d := (m["arms"][name]["versus"].get(BASELINE) or {}).get("auroc"))]  # fmt: skip
            levels = sorted({bias for bias, _ in points})
            means = [np.mean([value for bias, value in points if bias == level]) for level in levels]
            colour, marker = COLOURS[(1 + at) % len(COLOURS)], MARKERS[at % len(MARKERS)]
            axis.plot(levels, means, color=colour, linewidth=1.2, label=name)
            axis.plot(
                *zip(*points, strict=True), marker=marker, color=colour, linestyle="", markersize=5
            ) if points else None
        axis.axhline(0, color="#000000", linewidth=0.8)
        axis.set_title(f"leaning {KINDS[kind]}", fontsize=SCREEN.text)
        axis.set_xlabel("labels from who never looks (%)", fontsize=SCREEN.text)
        axis.tick_params(labelsize=SCREEN.label)
    axes[0].set_ylabel("AUROC minus the baseline’s", fontsize=SCREEN.text)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=SCREEN.label, frameon=False)
    return figure


def _above(arm: Mapping[str, Any], other: str) -> bool:
    entry = (arm["versus"].get(other) or {}).get("auroc")
    return bool(entry and entry["low"] is not None and entry["low"] > 0)
