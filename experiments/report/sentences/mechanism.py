"""The mechanism study's findings as five sentences, which carry their numbers, 95% intervals and counts."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.sentences.templates import FORMAT, Wording

_PROBE = (
    "from its own columns a linear probe names the thing shown, one of {probe[classes]}, in {probe:%} of held-out "
    "cases (shuffled labels {probe[control]:%}; n = {probe[n]} in {probe[clusters]} clusters)"
)
_THEN = "another picture’s {picture_then:%}"
WORDINGS = {
    "picture_read": Wording(
        "Is the picture read? {answer}.",
        {
            Answer.YES: f"Yes: {_PROBE}",
            Answer.NOT_SHOWN: f"That a linear probe finds it is not shown: {_PROBE}",
            Answer.TOO_FEW: f"{{Few}}: {_PROBE}",
            Answer.PARTLY: "No probe can tell ({probe[reason]}), but something of it is: another picture under the "
            "same sentence moves the margin by {apart:.2} logits (n = {apart[n]} pairs)",
            Answer.CANNOT_TELL: "That cannot be told here: {probe[reason]}, and no sentence has two pictures",
        },
        decides="probe",
        sides=1,
    ),
    "picture_carried": Wording(
        "Is it carried to the verdict? {answer}: at the last column of the prompt a probe tells safe from unsafe with "
        "AUROC {probe:.2}{since}, the model’s own margin with {margin:.2} (difference {beyond:+.2}; n = {probe[n]})"
        "{without}.",
        {
            Answer.ROSE: "Yes, and more of it than is said{small}",
            Answer.YES: "Yes; whether more of it than is said, or less, is not shown",
            Answer.NO_CHANGE: "Yes, and as much of it as is said, to within .02",
            Answer.FELL: "Yes, though less than is said{small}",
            Answer.PARTLY: "What it shows is; that what follows from it is carried is not shown",
            Answer.NOT_SHOWN: "That a linear probe finds it there is not shown",
            Answer.TOO_FEW: "{Few}",
        },
        decides="beyond",
        counted="probe",
        rates=False,
        optional={
            "since": ("from", ", from layer {from} of {last} on"),
            "without": ("edge_cut", "; without attention from there to the picture the margin’s AUROC changes by "
                        "{edge_cut:+.2} (n = {edge_cut[n]})"),
        },
        unknown="Is it carried to the verdict? That cannot be told here: {why}.",
    ),
    "overruled_at": Wording(
        "{asked} {answer}{apart}.",
        {
            Answer.NOWHERE: "Nowhere: none of {cases} cases was answered wrongly",
            Answer.CANNOT_TELL: "Patching cannot tell: no state at the last column brings another sentence’s answer, "
            "{refusals}",
            Answer.NEVER_ARRIVES: "Where the sentence arrives, {there}, and no layer brings half of another picture’s",
            Answer.BEFORE: f"Before the picture arrives, {{there}}, {_THEN}, and {{picture:%}} from layer "
            "{picture_from} on (n = {picture[n]})",
            Answer.AT_ONCE: f"Where the picture arrives, {{there}}, {_THEN} (n = {{picture[n]}})",
            Answer.AFTER: f"After the picture has arrived, {{there}}, {_THEN}, as already {{picture:%}} at layer "
            "{picture_from} (n = {picture[n]})",
            Answer.NOT_SHOWN: f"Whether the sentence arrives before the picture is not shown, {{there}}, {_THEN}",
            Answer.TOO_FEW: "Too few cases to tell whether the sentence arrives before the picture, {there}, "
            + _THEN,
        },
        optional={
            "there": ("sentence", "at layer {sentence_from} of {last}: there another sentence’s state at the last "
                      "column alone brings {sentence:%} of the way to its answer (n = {sentence[n]} failures)"),
            "apart": ("within", "; under one and the same sentence failures part from successes at layer "
                      "{within[from]}, in the end by {within[gap]:.2} logits ({within[gap][failures]} against "
                      "{within[gap][successes]})"),
        },
    ),
    "overruled_by": Wording(
        "By what? {answer}: margins of different sentences lie {spread:.2} logits apart, those of one sentence with "
        "two pictures {apart:.2} (difference {difference:+.2}; n = {apart[n]} pairs, {ranked:%} in the right order); "
        "the margin with a {stand_in} explains R² = {r2:.2} of the margins (n = {r2[n]}){alarming_words}.",
        {
            Answer.CANNOT_TELL: "Sentence and picture cannot be set against each other here",
            Answer.SENTENCE: "By the sentence",
            Answer.PICTURE: "Not by the sentence",
            Answer.NOT_SHOWN: "That the sentence outweighs the picture, or the picture the sentence, is not shown",
            Answer.TOO_FEW: "{Few}",
        },
        decides="difference",
    ),
    "alarming_words": Wording(
        "; {answer}: cases with alarming words are called unsafe {called_unsafe:pts} more often than others "
        "({called_unsafe[clusters]} sentence forms on the side that has fewer)",
        {
            Answer.ROSE: "alarming words as such do it{small}",
            Answer.FELL: "alarming words as such do the contrary{small}",
            Answer.NO_CHANGE: "alarming words as such change it by no more than 2 points",
            Answer.NOT_SHOWN: "that alarming words as such do it is not shown",
            Answer.TOO_FEW: "there are too few sentence forms to tell whether alarming words as such do it",
        },
        decides="called_unsafe",
    ),
    "reversed": Wording(
        "How much returns when that is undone? {answer} (AUROC {change:+.2}{small}): with the sentence’s own margin "
        "subtracted (weight {weight:.2}, chosen without labels) AUROC is {auroc:.2} instead of {as_it_is:.2} (n = "
        "{change[n]}), {fixed} of {wrong} wrong answers turn right and {broken} of {right} right ones wrong, where a "
        "mere constant that says Yes as often mends {constant[fixed]} and breaks {constant[broken]}{ablations}.",
        {
            Answer.ROSE: "Part of it",
            Answer.NO_CHANGE: "No change of more than .02",
            Answer.NOT_SHOWN: "That anything returns is not shown",
            Answer.FELL: "It gets worse",
            Answer.TOO_FEW: "{Few}",
        },
        decides="change",
        rates=False,
        unknown="How much returns when that is undone? That cannot be told here: all cases have the same truth.",
    ),
}  # fmt: skip
_CARRIED = (Answer.YES, Answer.ROSE, Answer.NO_CHANGE, Answer.FELL)
_STAND_INS = {"blank": "grey picture", "none": "missing picture"}


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Is the picture read; is it carried to the verdict; where is it overruled; by what; how much comes back."""
    by_question = {finding.question: finding for finding in findings}
    read, carried, where, by, words, back = (by_question[question] for question in WORDINGS)
    # What is not shown to be carried to the verdict cannot be said to be overruled there.
    overruled = carried.answer in _CARRIED or where.answer is Answer.NOWHERE
    alarming = "" if words.answer is Answer.CANNOT_TELL else WORDINGS["alarming_words"].of(words)
    further = ", ".join(FORMAT.format("{} {:+.2}", *one) for one in (back.evidence.get("ablated") or {}).items())
    probe = carried.evidence["probe"]
    fields = {
        "picture_read": {},
        "picture_carried": {"why": probe["reason"] or "all cases have the same truth"},
        "overruled_at": {
            "asked": "Where is it overruled?" if overruled else "Where is the verdict made?",
            "refusals": _refused(where.evidence["refused"], where.evidence["looked_at"]),
        },
        "overruled_by": {
            "stand_in": _STAND_INS.get(by.evidence["prior"], f"{by.evidence['prior']} picture"),
            "alarming_words": alarming,
        },
        "reversed": {
            "ablations": further and f"; a direction ablated at layer {back.evidence['ablated_at']} changes it by: "
            f"{further}",
        },
    }  # fmt: skip
    carried = Finding(carried.question, carried.answer, {**carried.evidence, "beyond": probe["beyond"]})
    return [WORDINGS[one.question].of(one, **fields[one.question]) for one in (read, carried, where, by, back)]


def _refused(counts: Mapping[str, int], looked_at: int) -> str:
    """How many failures found no partner."""
    return ", ".join(f"{n} of {looked_at} refused for {what}" for what, n in counts.items()) or "none was tried"


def notes(result: Mapping[str, Any]) -> list[str]:
    """What limits the numbers of mechanism.json, a sentence each."""
    cases = result["cases"]
    found = [
        "Residual layers: 0 is what enters the first decoder layer, l the output of decoder layer l − 1; the last "
        "column is where the answer is read off. Intervals are 95%, from resampling clusters; those of differences and "
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
            "answers otherwise, of as many tokens. "
            f"Pairs whose margins lie less than {result['least_gap']:g} logits apart are patched and not counted."
        )
    return found + [f"No direction “{name}”: {why}." for name, why in result["missing"].items()]
