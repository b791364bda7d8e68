"""The mechanism study's findings as five sentences, which carry their numbers, 95% intervals and counts."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.findings.statements import by_less, too_few
from experiments.report.numbers import fixed, percent, percent_interval
from experiments.report.table import estimate, percentage

STAND_INS = {"blank": "grey picture", "none": "missing picture"}

PROBE = (
    "from its own columns a linear probe names the thing shown, one of {classes}, in {held_out} of held-out cases "
    "(shuffled labels {control}%; n = {n} in {clusters} clusters)"
)
READ = {
    Answer.YES: f"Yes: {PROBE}",
    Answer.NOT_SHOWN: f"That a linear probe finds it is not shown: {PROBE}",
    Answer.TOO_FEW: f"{{few}}: {PROBE}",
    Answer.PARTLY: "No probe can tell ({reason}), but something of it is: another picture under the same sentence "
    "moves the margin by {apart} logits (n = {pairs} pairs)",
    Answer.CANNOT_TELL: "That cannot be told here: {reason}, and no sentence has two pictures",
}
CARRIED = {
    Answer.ROSE: "Yes, and more of it than is said{small}",
    Answer.YES: "Yes; whether more of it than is said, or less, is not shown",
    Answer.NO_CHANGE: "Yes, and as much of it as is said, to within .02",
    Answer.FELL: "Yes, though less than is said{small}",
    Answer.PARTLY: "What it shows is; that what follows from it is carried is not shown",
    Answer.NOT_SHOWN: "That a linear probe finds it there is not shown",
    Answer.TOO_FEW: "{few}",
}
OVERRULED_AT = {
    Answer.NOWHERE: "Nowhere: none of {cases} cases was answered wrongly",
    Answer.CANNOT_TELL: "Patching cannot tell: no state at the last column brings another sentence’s answer, {refused}",
    Answer.NEVER_ARRIVES: "Where the sentence arrives, {there}: {brings}, and no point brings half of another "
    "picture’s{within}",
    Answer.BEFORE: "Before the picture arrives, {there}: {brings}, another picture’s {then}, and {later} from point "
    "{picture_from} on (n = {n}){within}",
    Answer.AT_ONCE: "Where the picture arrives, {there}: {brings}, another picture’s {then} (n = {n}){within}",
    Answer.AFTER: "After the picture has arrived, {there}: {brings}, another picture’s {then}, as already {later} at "
    "point {picture_from} (n = {n}){within}",
    Answer.NOT_SHOWN: "Whether the sentence arrives before the picture is not shown, {there}: {brings}, another "
    "picture’s {then}{within}",
    Answer.TOO_FEW: "Too few cases to tell whether the sentence arrives before the picture, {there}: {brings}, another "
    "picture’s {then}{within}",
}
OVERRULED_BY = {
    Answer.CANNOT_TELL: "Sentence and picture cannot be set against each other here",
    Answer.SENTENCE: "By the sentence",
    Answer.PICTURE: "Not by the sentence",
    Answer.NOT_SHOWN: "That the sentence outweighs the picture, or the picture the sentence, is not shown",
    Answer.TOO_FEW: "{few}",
}
ALARMING_WORDS = {
    Answer.ROSE: "; alarming words as such do it{small}: ",
    Answer.FELL: "; alarming words as such do the contrary{small}: ",
    Answer.NO_CHANGE: "; alarming words as such change it by no more than 2 points: ",
    Answer.NOT_SHOWN: "; that alarming words as such do it is not shown: ",
    Answer.TOO_FEW: "; there are too few sentence forms to tell whether alarming words as such do it: ",
}
REVERSED = {
    Answer.ROSE: "Part of it (AUROC {change}{small})",
    Answer.NO_CHANGE: "No change of more than .02 (AUROC {change})",
    Answer.NOT_SHOWN: "That anything returns is not shown (AUROC {change})",
    Answer.FELL: "It gets worse (AUROC {change}{small})",
    Answer.TOO_FEW: "{few} (AUROC {change})",
}


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Is the picture read; is it carried to the verdict; where is it overruled; by what; how much comes back."""
    by_question = {finding.question: finding for finding in findings}
    return [
        _read(by_question["picture_read"]),
        _carried(by_question["picture_carried"]),
        _asked_where(by_question["picture_carried"].answer, by_question["overruled_at"].answer)
        + f"{_overruled_at(by_question['overruled_at'])}.",
        _overruled_by(by_question["overruled_by"]) + _alarming_words(by_question["alarming_words"]) + ".",
        _reversed(by_question["reversed"]),
    ]


def _asked_where(carried: Answer, overruled: Answer) -> str:
    """What is not shown to be carried to the verdict cannot be said to be overruled there."""
    there = carried in (Answer.YES, Answer.ROSE, Answer.NO_CHANGE, Answer.FELL)
    return "Where is it overruled? " if there or overruled is Answer.NOWHERE else "Where is the verdict made? "


def _read(finding: Finding) -> str:
    probe, apart = finding.evidence["probe"], finding.evidence["apart"]
    said = READ[finding.answer].format(
        classes=probe["classes"],
        held_out=percentage(probe),
        control=percent(probe["control"], 0),
        n=probe["n"],
        clusters=probe["clusters"],
        reason=probe["reason"],
        apart=estimate(apart),
        pairs=apart["n"],
        few=_few(probe, sides=1),
    )
    return f"Is the picture read? {said}."


def _carried(finding: Finding) -> str:
    asked, found = "Is it carried to the verdict? ", finding.evidence
    probe = found["probe"]
    if finding.answer is Answer.CANNOT_TELL:
        return f"{asked}That cannot be told here: {probe['reason'] or 'all cases have the same truth'}."
    since = "" if found["from"] is None else f", from point {found['from']} of {found['last']} on"
    said = CARRIED[finding.answer].format(few=_few(probe), small=_by_less(finding, probe["beyond"]))
    text = (
        f"{asked}{said}: at the last column of the prompt a probe tells safe from unsafe with AUROC "
        f"{estimate(probe)}{since}, the model’s own margin with {estimate(found['margin'])} "
        f"(difference {estimate(probe['beyond'], sign=True)}; n = {probe['n']})"
    )
    if cut := found["edge_cut"]:
        change = f"{estimate(cut, sign=True)} (n = {cut['n']})"
        text += f"; without attention from there to the picture the margin’s AUROC changes by {change}"
    return text + "."


def _part(entry: Mapping[str, Any] | None) -> str:
    return "cannot be told" if entry is None or entry["value"] is None else str(percentage(entry))


def _by_less(finding: Finding, entry: Mapping[str, Any], *, of_rates: bool = False) -> str:
    """The words " by less than .02" where what rose or fell did so by no more."""
    return by_less(entry, of_rates=of_rates) if finding.answer in (Answer.ROSE, Answer.FELL) else ""


def _few(entry: Mapping[str, Any], *, sides: int = 2) -> str:
    return too_few(entry, sides=sides).capitalize()


def _overruled_at(finding: Finding) -> str:
    found = finding.evidence
    sentence, then, later = (found.get(name) for name in ("sentence", "picture_then", "picture"))
    within = found["within"]
    return OVERRULED_AT[finding.answer].format(
        cases=found["cases"],
        refused=_refused(found["refused"], found["looked_at"]),
        there=f"at point {found['sentence_from']} of {found['last']}",
        brings=sentence
        and f"there another sentence’s state at the last column alone brings {percentage(sentence)} of "
        f"the way to its answer (n = {sentence['n']} failures)",
        then=_part(then),
        later=_part(later),
        picture_from=found["picture_from"],
        n=later and later["n"],
        within=f"; under one and the same sentence failures part from successes at point {within['from']}, in the end "
        f"by {estimate(within['gap'])} logits ({within['gap']['failures']} against {within['gap']['successes']})"
        if within
        else "",
    )


def _overruled_by(finding: Finding) -> str:
    found = finding.evidence
    apart, r2 = found["apart"], found["r2"]
    stand_in = STAND_INS.get(found["prior"], f"{found['prior']} picture")
    said = OVERRULED_BY[finding.answer].format(few=_few(found["difference"]))
    return (
        f"By what? {said}: margins of different sentences lie {estimate(found['spread'])} logits apart, those of one "
        f"sentence with two pictures {estimate(apart)} (difference {estimate(found['difference'], sign=True)}; n = "
        f"{apart['n']} pairs, {percentage(found['ranked'])} in the right order); the margin with a {stand_in} explains "
        f"R² = {estimate(r2)} of the margins (n = {r2['n']})"
    )


def _alarming_words(finding: Finding) -> str:
    if finding.answer is Answer.CANNOT_TELL:
        return ""
    more = finding.evidence["called_unsafe"]
    ends = percent_interval((more["low"], more["high"]))
    said = ALARMING_WORDS[finding.answer].format(small=_by_less(finding, more, of_rates=True))
    return (
        f"{said}cases with alarming words are called unsafe "
        f"{percent(more['value'], 0, sign=True)} points{f' [{ends}]' if ends else ''} more often than others "
        f"({more['clusters']} sentence forms on the side that has fewer)"
    )


def _reversed(finding: Finding) -> str:
    asked, found = "How much returns when that is undone? ", finding.evidence
    if finding.answer is Answer.CANNOT_TELL:
        return f"{asked}That cannot be told here: all cases have the same truth."
    change, constant = found["change"], found["constant"]
    shown, small = estimate(change, sign=True), _by_less(finding, change)
    told = REVERSED[finding.answer].format(change=shown, few=_few(change), small=small and f",{small}")
    text = (
        f"{asked}{told}: with the sentence’s own margin "
        f"subtracted (weight {fixed(found['weight'], 2)}, chosen without labels) AUROC is {estimate(found['auroc'])} "
        f"instead of {estimate(found['as_it_is'])} (n = {change['n']}), {found['fixed']} of {found['wrong']} wrong "
        f"answers turn right and {found['broken']} of {found['right']} right ones wrong, where a mere constant that "
        f"says Yes as often mends {constant['fixed']} and breaks {constant['broken']}"
    )
    if found["ablated"]:
        listed = ", ".join(f"{name} {estimate(change, sign=True)}" for name, change in found["ablated"].items())
        text += f"; a direction ablated at point {found['ablated_at']} changes it by: {listed}"
    return text + "."


def _refused(counts: Mapping[str, int], looked_at: int) -> str:
    """How many failures found no partner."""
    return ", ".join(f"{n} of {looked_at} refused for {what}" for what, n in counts.items()) or "none was tried"


def notes(result: Mapping[str, Any]) -> list[str]:
    """What limits the numbers of mechanism.json, a sentence each."""
    cases = result["cases"]
    found = [
        "Points: 0 is what enters layer 0, the first of the decoder, and l what layer l − 1 gave; the last column is "
        "where the answer is read off. Intervals are 95%, from resampling clusters; those of differences and "
        "effects are Student’s, and where cases are made from templates from resampling clusters or templates and "
        "things, whichever is wider. Probes and directions are read on "
        "clusters that they were not fitted on; truth’s probe is fitted with template and concept balanced.",
    ]
    if cases["subset"] is not None:
        found.append(
            f"Cut and patched were {cases['failures_looked_at']} of {cases['failures_in_subset']} failures of "
            f"{cases['subset'].replace('_', '-')}, {cases['successes_looked_at']} successes matched to them and their "
            f"twins (same sentence, opposite truth), {cases['looked_at']} cases in all; pairs that do not align: "
            f"{_refused(result['refused'], cases['failures_looked_at'])}. The other sentences are ones that the model "
            "answers otherwise, of as many tokens."
        )
        if (gap := result.get("least_gap")) is not None:  # results kept from before it was noted have none
            found[-1] += f" Pairs whose margins lie less than {gap:g} logits apart are patched and not counted."
    return found + [f"No direction “{name}”: {why}." for name, why in result["missing"].items()]
