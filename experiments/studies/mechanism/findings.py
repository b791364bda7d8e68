"""mechanism.json → five sentences that a sceptic can check, whichever way the numbers point. Pure.

Each asks one question, answers it in its first words by a stated rule, and carries its numbers, 95% intervals and
counts. An answer is given where an interval lies wholly on one side; where it does not, the sentence says that.
"""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import fixed, fixed_interval, percent, percent_interval
from experiments.studies.mechanism.estimates import side
from experiments.studies.mechanism.probes import above_chance, probe_row, readable_from
from experiments.studies.mechanism.reversal import AS_IT_IS, PRIOR
from experiments.studies.mechanism.routes import ALL_LAYERS, arrives_at, effect_at

Result = Mapping[str, Any]
NAMES = {"typical": "typical", "attack": "attack", "over_safety": "over-safety"}


def sentences(result: Result) -> list[str]:
    """Is the picture read; is it carried to the verdict; where is it overruled; by what; how much comes back."""
    return [read(result), carried(result), where(result), by_what(result), returned(result)]


def read(result: Result) -> str:
    """By the probe of what the picture shows, at its own columns, at the last point."""
    asked = "Is the picture read? "
    row = probe_row(result["probes"], "concept", "image", result["points"][-1])
    apart = result["twins"]["apart"]
    if row["value"] is None:
        if apart["value"] is None:
            return f"{asked}That cannot be told here: {row['reason']}, and no sentence has two pictures."
        return (f"{asked}No probe can tell ({row['reason']}), but something of it is: another picture under the same "
                f"sentence moves the margin by {number(apart)} logits (n = {apart['n']} pairs).")  # fmt: skip
    found = above_chance(row)
    said = "Yes" if found else "Not so that a linear probe finds it"
    return (
        f"{asked}{said}: from its own columns a linear probe names the thing shown, one of {row['classes']}, in "
        f"{share(row)} of held-out cases (shuffled labels {percent(row['control'], 0)}%; n = {row['n']} in "
        f"{row['clusters']} clusters)."
    )


def carried(result: Result) -> str:
    """By the truth's probe at the verdict, at the last point (fixed beforehand), beside the model's own margin."""
    asked, points = "Is it carried to the verdict? ", result["points"]
    truth = probe_row(result["probes"], "truth", "verdict", points[-1])
    shown = probe_row(result["probes"], "concept", "verdict", points[-1])
    spoken = undone(result, AS_IT_IS)["auroc"]
    if truth["value"] is None or spoken["value"] is None:
        return f"{asked}That cannot be told here: {truth['reason'] or 'all cases have the same truth'}."
    if above_chance(truth):
        more = side(truth["beyond"])
        said = {1: "Yes, and more of it than is said", 0: "Yes", -1: "Yes, though less than is said"}[more]
    elif shown["value"] is not None and above_chance(shown):
        said = "What it shows is, what follows from that is not"
    else:
        said = "Not so that a linear probe finds it"
    first = readable_from(result["probes"], "truth", "verdict", points)
    since = "" if first is None else f", from point {first} of {points[-1]} on"
    text = (
        f"{asked}{said}: at the last column of the prompt a probe tells safe from unsafe with AUROC {number(truth)}"
        f"{since}, the model’s own margin with {number(spoken)} (difference {signed(truth['beyond'])}; n = "
        f"{truth['n']})"
    )
    cut = [row for row in result["knockout"] if (row["edge"], row["layers"]) == ("image → verdict", ALL_LAYERS)]
    if cut:
        row = cut[0]["change"]
        text += f"; without attention from there to the picture the margin’s AUROC changes by {signed(row)} " + (
            f"(n = {row['n']})"
        )
    return text + "."


def where(result: Result) -> str:
    """By the points from which on patching the verdict's column brings half of another picture's or sentence's say."""
    asked, points = "Where is it overruled? ", result["points"]
    if result["cases"]["subset"] is None:
        return f"{asked}Nowhere: none of {result['cases']['n']} cases was answered wrongly."
    rows = {what: [row for row in result["patching"] if row["other"] == what] for what in ("picture", "sentence")}
    first = {what: arrives_at(some, "verdict", points) if some else None for what, some in rows.items()}
    sentence, picture = first["sentence"], first["picture"]
    if sentence is None:
        return (f"{asked}Patching cannot tell: no state at the last column brings another sentence’s answer, "
                f"{refused(result)}.")  # fmt: skip
    held = effect_at(rows["sentence"], "verdict", sentence)
    there = f"at point {sentence} of {points[-1]}"
    brings = (
        f"there another sentence’s state at the last column alone brings {share(held)} of the way to its answer (n = "
        f"{held['n']} failures)"
    )
    if picture is None:
        return (f"{asked}Where the sentence arrives, {there}: {brings}, and no point brings half of another "
                f"picture’s{_within(result)}.")  # fmt: skip
    early, late = (effect_at(rows["picture"], "verdict", point) for point in (sentence, picture))
    if sentence < picture:
        said, then = "Before the picture arrives", f", and {share(late)} only at point {picture}"
    elif sentence == picture:
        said, then = "Where the picture arrives", ""
    else:
        said, then = "After the picture has arrived", f", as already {share(late)} at point {picture}"
    return (
        f"{asked}{said}, {there}: {brings}, another picture’s {share(early)}{then} (n = {late['n']}){_within(result)}."
    )


def _within(result: Result) -> str:
    """Under one sentence, where failures part from successes, if that can be told."""
    within = result["lens"]["within"]
    if not within or within["point"] is None:
        return ""
    gap = next(row for row in within["gaps"] if row["point"] == result["points"][-1])
    counted = f"{gap['failures']} against {gap['successes']}"
    return (
        f"; under one and the same sentence failures part from successes at point {within['point']}, in the end by "
        f"{number(gap)} logits ({counted})"
    )


def by_what(result: Result) -> str:
    """By how far margins lie apart between sentences and between pictures, and what the sentence alone explains."""
    asked, twins, prior = "By what? ", result["twins"], result["prior"]
    if twins["apart"]["value"] is None or twins["spread"]["value"] is None:
        said = "Sentence and picture cannot be set against each other here"
    elif twins["spread"]["low"] is not None and twins["spread"]["low"] > twins["apart"]["high"]:
        said = "By the sentence"
    elif twins["apart"]["low"] is not None and twins["apart"]["low"] > twins["spread"]["high"]:
        said = "Not by the sentence"
    else:
        said = "Neither sentence nor picture outweighs the other"
    apart, r2 = twins["apart"], prior["r2"]
    text = (
        f"{asked}{said}: margins of different sentences lie {number(twins['spread'])} logits apart, those of one "
        f"sentence with two pictures {number(apart)} (n = {apart['n']} pairs, {share(twins['ranked'])} in the right "
        f"order); the margin with a {_stand_in(prior['prior'])} explains R² = {number(r2)} of the margins (n = "
        f"{r2['n']})"
    )
    return text + _alarming(result) + "."


def _stand_in(prior: str) -> str:
    return {"blank": "grey picture", "none": "missing picture"}.get(prior, f"{prior} picture")


def _alarming(result: Result) -> str:
    """Whether alarming words as such do it, or each sentence for itself."""
    entry = result["alarm"]
    if entry is None or entry["value"] is None:
        return ""
    ends = percent_interval((entry["low"], entry["high"]))
    more = (
        f"cases with alarming words are called unsafe {percent(entry['value'], 0, sign=True)} points"
        f"{f' [{ends}]' if ends else ''} more often than others ({entry['clusters']} sentence forms)"
    )
    return ("; alarming words as such do it: " if side(entry) > 0 else
            "; that alarming words as such do it is not shown: ") + more  # fmt: skip


def returned(result: Result) -> str:
    """By the AUROC once the sentence's prior is taken away, beside a mere threshold, and directions ablated."""
    asked, row, plain = "How much returns when that is undone? ", undone(result, PRIOR), undone(result, AS_IT_IS)
    change = row["change"]
    if change["value"] is None:
        return f"{asked}That cannot be told here: all cases have the same truth."
    said = {1: f"Part of it (AUROC {signed(change)})", 0: f"Nothing that is certain (AUROC {signed(change)})",
            -1: f"Nothing, it gets worse (AUROC {signed(change)})"}[side(change)]  # fmt: skip
    shift = row["shift"]
    text = (
        f"{asked}{said}: with the sentence’s own margin subtracted (weight {fixed(result['prior']['weight'], 2)}, "
        f"chosen without labels) AUROC is {number(row['auroc'])} instead of {number(plain['auroc'])} (n = "
        f"{change['n']}), {row['fixed']} of {row['wrong']} wrong answers turn right and {row['broken']} of "
        f"{row['right']} right ones wrong, where a mere constant that says Yes as often mends {shift['fixed']} and "
        f"breaks {shift['broken']}"
    )
    others = [one for one in result["undo"] if one["arm"].endswith("ablated") and one["change"]]
    if others:
        listed = ", ".join(f"{one['arm'].removesuffix(' ablated')} {signed(one['change'])}" for one in others)
        text += f"; a direction ablated at point {result['ablated_at']} changes it by: {listed}"
    return text + "."


def undone(result: Result, arm: str) -> Mapping[str, Any]:
    """The row of one arm."""
    row: Mapping[str, Any] = next(row for row in result["undo"] if row["arm"] == arm)
    return row


def refused(result: Result) -> str:
    """How many failures found no partner."""
    counts = result["refused"]
    looked = result["cases"].get("failures_looked_at", 0)
    return ", ".join(f"{count} of {looked} refused for {what}" for what, count in counts.items()) or "none was tried"


def notes(result: Result) -> list[str]:
    """What limits the numbers, a sentence each."""
    found = [
        "Points: 0 is what enters layer 0, the first of the decoder, and l what layer l − 1 gave; the last column is "
        "where the answer is read off. Intervals are 95%, from resampling clusters. Probes and directions are read on "
        "clusters that they were not fitted on; truth’s probe is fitted with template and concept balanced.",
    ]
    if result["cases"]["subset"] is not None:
        cases = result["cases"]
        found.append(
            f"Cut and patched were {cases['failures_looked_at']} of {cases['failures_in_subset']} failures of "
            f"{NAMES[cases['subset']]}, {cases['successes_looked_at']} successes matched to them and their twins "
            f"(same sentence, opposite truth), {cases['looked_at']} cases in all; pairs that do not align: "
            f"{refused(result)}. The other sentences are ones that the model answers otherwise, of as many tokens."
        )
    found += [f"No direction “{name}”: {why}." for name, why in result["missing"].items()]
    return found


def number(entry: Mapping[str, Any], digits: int = 2) -> str:
    """A value with its interval."""
    ends = fixed_interval((entry["low"], entry["high"]), digits)
    return fixed(entry["value"], digits) + (f" [{ends}]" if ends else "")


def signed(entry: Mapping[str, Any], digits: int = 2) -> str:
    """The same of a difference."""
    ends = fixed_interval((entry["low"], entry["high"]), digits)
    return fixed(entry["value"], digits, sign=True) + (f" [{ends}]" if ends else "")


def share(entry: Mapping[str, Any]) -> str:
    """The same in per cent."""
    ends = percent_interval((entry["low"], entry["high"]))
    return f"{percent(entry['value'], 0)}%" + (f" [{ends}]" if ends else "")
