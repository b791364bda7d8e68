"""The family's members side by side: what was put in, what the tools see, and what each mitigation gains."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.findings import Answer, Finding, deciding_statement, plain, statement
from experiments.metrics.paired import Difference, Spread, change, simultaneous
from experiments.metrics.statistical_tests import spearman
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.organism_family import sentences
from experiments.report.sentences.wording import deciding
from experiments.report.table import Column, Narrow, Table, markdown, terminal
from experiments.runs.resumption import RunStore
from interp.errors import UserError

BASELINE = "baseline"
PRIOR = "prior_correction"
# What should follow the share of blind labels, and which way: more blindness, less of each of these.
FOLLOWING = ("auroc", "within", "image_effect", "truth")
DRAWS, SEED = 10_000, 0  # of the bootstrap over organisms
NOTE = (
    "Numbers in the names: share of verdict labels from an annotator who never looks, in percent. "
    "within: mean AUROC inside a template. between: share of the margins' variance between templates. image effect: "
    "mean size of the margin's change when image → verdict attention is cut, over the margins' standard deviation. "
    "truth: held-out AUROC of a linear probe at the verdict. prior: factor by which d′ is expected to grow under prior "
    "correction, said without labels. Δ: AUROC of an arm minus the baseline's, its setting chosen on the "
    "development split; * where the "
    "95% interval excludes 0, the one that holds for all arms of an organism at once."
)


def conclude(store: RunStore, found: Mapping[str, Any], *, rival: str) -> list[RenderableType]:
    """Writes ``family.md``, and the sentences into ``family.json``; returns what to print."""
    if not found:
        raise UserError("no member was measured; a table needs at least one; give task.biases and task.seeds")
    findings = [*causes(found), *gains(found, rival=rival)]
    lines = sentences(findings)
    kept = [finding.as_json() for finding in findings]
    store.write_json("family.json", {"members": dict(found), "findings": kept, "sentences": lines})
    shown = table(found)
    page = "\n".join([*lines, "", markdown(shown), "", NOTE])
    (store.path / "family.md").write_text(page + "\n", encoding="utf-8")
    return [terminal(shown), *lines, f"table: {store.path / 'family.md'}"]


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
            mark = "*" if statement(deciding(delta, studied=False)) in (Answer.ROSE, Answer.FELL) else ""
            shown[f"Δ {arm}"] = fixed(delta["value"], 3, sign=True) + mark + (" wins" if one["wins"] else "")
    return shown


def causes(found: Mapping[str, Any]) -> list[Finding]:
    """Whether what the tools see follows what was put in: rank correlations by kind, and the label-free rule."""
    findings = []
    for kind in dict.fromkeys(member["kind"] for member in found.values()):
        members = [member for member in found.values() if member["kind"] == kind]
        if len({member["bias"] for member in members}) >= 3:
            findings.append(_follows_bias(kind, members))
    predicted = [member for member in found.values() if PRIOR in member["arms"]]
    if predicted:
        findings.append(_label_free_rule(predicted))
    return findings


def _follows_bias(kind: str, members: Sequence[Mapping[str, Any]]) -> Finding:
    """By Spearman's ρ of each trait with the share of blind labels; all should fall as that share grows.

    The answer is FELL where the interval of every trait lies below 0, PARTLY where that of some does. The intervals
    hold for all traits at once.
    """
    bias = np.array([member["bias"] for member in members])
    correlations: dict[str, Any] = {}
    for trait in FOLLOWING:
        values = np.array([np.nan if m["traits"][trait] is None else m["traits"][trait] for m in members], float)
        rho = spearman(bias[~np.isnan(values)], values[~np.isnan(values)])
        entry = rho and rho.entry(comparisons=len(FOLLOWING))
        decided = {"statement": statement(entry, small=None).value}
        correlations[trait] = entry and entry | decided
    answers = [Answer(one["statement"]) for one in correlations.values() if one]
    return Finding("traits follow the blind labels", _of_all(answers, Answer.FELL),
                   plain({"correlations": correlations, "n": len(members)}), kind)  # fmt: skip


def _of_all(answers: Sequence[Answer], wanted: Answer) -> Answer:
    """``wanted`` where all answers are that, PARTLY where some are; else what they have in common, or NOT_SHOWN."""
    if not answers:
        return Answer.CANNOT_TELL
    if wanted in answers:
        return wanted if set(answers) == {wanted} else Answer.PARTLY
    return answers[0] if len(set(answers)) == 1 else Answer.NOT_SHOWN


def _label_free_rule(members: Sequence[Mapping[str, Any]]) -> Finding:
    """By how much more prior correction raises the AUROC where the rule, which sees no labels, says that it helps."""
    helps = np.array([member["traits"]["prior"]["helps"] for member in members], dtype=bool)
    gained = np.array([_gained(member["arms"][PRIOR]) for member in members], dtype=float)
    known = ~np.isnan(gained)
    sides = (known & helps, known & ~helps)
    evidence: dict[str, Any] = {"organisms": len(members)}
    for name, side in zip(("helps", "others"), sides, strict=True):
        group = [member for member, here in zip(members, side, strict=True) if here]
        evidence[name] = {"organisms": len(group), **_counted([member["arms"][PRIOR] for member in group], BASELINE)}
    entry = None
    if all(side.any() for side in sides):
        some = ClusterBootstrap.of(np.arange(len(members)), draws=DRAWS, seed=SEED)
        spread = Spread.of(some.gap(gained, *sides), min(int(side.sum()) for side in sides))
        means = [float(gained[side].mean()) for side in sides]
        entry = change(means[1], means[0], spread, int(known.sum()))
    return Finding("label-free rule is right", statement(entry), plain(evidence | {"difference": entry}), PRIOR)


def gains(found: Mapping[str, Any], *, rival: str) -> list[Finding]:
    """What each arm gains in AUROC over the baseline, on average over the organisms, and in how many it wins.

    The intervals are over organisms and hold for all arms at once.
    """
    named: dict[str, dict[str, Any]] = {}
    together = []
    for name in _compared(found):
        arms = [member["arms"][name] for member in found.values() if name in member["arms"]]
        gained = np.array([_gained(arm) for arm in arms], dtype=float)
        gained = gained[~np.isnan(gained)]
        entry = None
        if len(gained):
            drawn = ClusterBootstrap.of(np.arange(len(gained)), draws=DRAWS, seed=SEED).mean(gained)
            spread = Spread.of(drawn, len(gained))
            entry = change(0.0, float(gained.mean()), spread, len(gained))
            together.append(Difference(entry, spread, None, drawn))
        named[name] = {
            "organisms": len(arms),
            "mean": entry,
            "baseline": _counted(arms, BASELINE),
            "rival": rival,
            "over_rival": None if name == rival else _counted(arms, rival),
            "wins": sum(bool(arm["wins"]) for arm in arms),
        }
    simultaneous(together)
    return [
        Finding("AUROC above the baseline's", deciding_statement(one["mean"], studied=False), plain(one), name)
        for name, one in named.items()
    ]


def _counted(arms: Sequence[Mapping[str, Any]], other: str) -> dict[str, int]:
    """In how many organisms the interval of the AUROC's difference from ``other`` lies above 0, below, or neither.

    Of an organism's many arms the simultaneous intervals count, where its table has them.
    """
    entries = [(arm["versus"].get(other) or {}).get("auroc") for arm in arms]
    answers = [statement(entry and deciding(entry, studied=False)) for entry in entries]
    rose, fell = answers.count(Answer.ROSE), answers.count(Answer.FELL)
    return {"rose": rose, "fell": fell, "neither": len(answers) - rose - fell}


def _gained(arm: Mapping[str, Any]) -> float:
    entry = (arm["versus"].get(BASELINE) or {}).get("auroc")
    return float("nan") if not entry else float(entry["value"])


def _compared(found: Mapping[str, Any]) -> list[str]:
    """The arms that are compared with the baseline."""
    return [name for name in next(iter(found.values()))["arms"] if name not in (BASELINE, "threshold")]
