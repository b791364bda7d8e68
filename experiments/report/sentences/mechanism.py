"""The mechanism study's findings as sentences, which carry their numbers, 95% intervals and counts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import brief, fixed, percent
from experiments.report.sentences.wording import by_less, statement_text, too_few
from experiments.report.table import estimate, percentage

_CARRIED = (Answer.YES, Answer.ROSE, Answer.NO_CHANGE, Answer.FELL)
_UNSEEN = {"kind": "kinds of picture", "sentence": "sentences"}
_STAND_INS = {"blank": "grey picture", "none": "missing picture"}
Evidence = Mapping[str, Any]


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Is the picture read; is it carried to the verdict; where is it overruled; by what; how much comes back."""
    found = {finding.question: finding for finding in findings}
    carried, where = found["picture_carried"], found["overruled_at"]
    # What is not shown to be carried to the verdict cannot be said to be overruled there.
    overruled = carried.answer in _CARRIED or where.answer is Answer.NOWHERE
    return [
        _read(found["picture_read"]),
        _carried(carried),
        _where(where, "Where is it overruled?" if overruled else "Where is the verdict made?"),
        _by_what(found["overruled_by"], found["alarming_words"]),
        _reversed(found["reversed"]),
    ]


def told_first(result: Mapping[str, Any]) -> list[str]:
    """The sentences of mechanism.json, those of questions that cannot be told here last."""
    answers = [finding["answer"] for finding in result["findings"] if finding["question"] != "alarming_words"]
    untold = [answer == Answer.CANNOT_TELL.value for answer in answers]
    return [sentence for _, sentence in sorted(zip(untold, result["sentences"], strict=True), key=lambda one: one[0])]


def _number(value: Any, *, sign: bool = False) -> str:
    """A number, or an entry with its interval, with two digits."""
    return str(estimate(value, 2, sign=sign)) if isinstance(value, Mapping) else fixed(value, 2, sign=sign)


def _share(value: Any) -> str:
    """The same in per cent."""
    if (value["value"] if isinstance(value, Mapping) else value) is None:
        return "cannot be told"
    return str(percentage(value)) if isinstance(value, Mapping) else f"{percent(value, 0)}%"


def _read(finding: Finding) -> str:
    probe, apart = finding.evidence["probe"], finding.evidence.get("apart")
    if finding.answer is Answer.CANNOT_TELL:
        answer = f"That cannot be told here: {probe['reason']}, and no sentence has two pictures"
    elif finding.answer is Answer.PARTLY:
        assert apart is not None
        answer = (
            f"No probe can tell ({probe['reason']}), but something of it is: another picture under the same sentence "
            f"moves the margin by {_number(apart)} logits (n = {apart['n']} pairs)"
        )
    else:
        few = too_few(probe, sides=1).capitalize() if finding.answer is Answer.TOO_FEW else ""
        lead = {Answer.YES: "Yes", Answer.NOT_SHOWN: _short_of(finding), Answer.TOO_FEW: few}
        answer = (
            f"{lead[finding.answer]}: from its own columns a linear probe names the thing shown, one of "
            f"{probe['classes']}, in {_share(probe)} of cases whose sentences it was not fitted on "
            f"({_controls([probe], _share)}; n = {probe['n']} in {probe['clusters']} clusters)"
        )
    return f"Is the picture read? {answer}."


def _short_of(finding: Finding) -> str:
    """What a claim that is not shown falls short of."""
    found = finding.evidence
    if found["guess"]:
        return "That a linear probe finds it is not shown"
    if found["no_untrained"] is not None:
        return (
            "That is not claimed, since no model of the same shape with random weights was read to compare with "
            f"({found['no_untrained']})"
        )
    return "That a linear probe finds more of it than in random weights is not shown"


def _controls(rows: Sequence[Mapping[str, Any]], number: Callable[[Any], str]) -> str:
    """What the same probes read with shuffled labels, and from random weights at most."""
    random = [one["value"] for row in rows for one in row["untrained"]]
    read = f"random weights at most {number(max(random))}" if random else "random weights were not read"
    return f"shuffled labels {number(max(row['shuffled'] for row in rows))}, {read}"


def _carried(finding: Finding) -> str:
    found, rows, within = finding.evidence, finding.evidence["probes"], finding.evidence["within"]
    if finding.answer is Answer.CANNOT_TELL:
        why = next((row["reason"] for row in rows if row["reason"]), "all cases have the same truth")
        return f"Is it carried to the verdict? That cannot be told here: {why}."
    moved = finding.answer in (Answer.ROSE, Answer.FELL)
    small = by_less(within["beyond"], of_rates=False) if moved else ""
    fewest = min(rows, key=lambda row: row["clusters"])
    answer = {
        Answer.ROSE: f"Yes, and more of it than is said{small}",
        Answer.YES: "Yes; whether more of it than is said, or less, is not shown",
        Answer.NO_CHANGE: "Yes, and as much of it as is said, to within .02",
        Answer.FELL: f"Yes, though less than is said{small}",
        Answer.PARTLY: "What it shows is; that what follows from it is carried is not shown",
        Answer.NOT_SHOWN: _short_of(finding),
        Answer.TOO_FEW: too_few(fewest).capitalize() if finding.answer is Answer.TOO_FEW else "",
    }[finding.answer]
    since = "" if found["from"] is None else f", from layer {found['from']} of {found['last']} on"
    cut = found["edge_cut"]
    without = "" if cut is None else (
        "; without attention from there to the picture the margin’s AUROC changes by "
        f"{_number(cut, sign=True)} (n = {cut['n']})")  # fmt: skip
    read = " and ".join(f"{_number(row)} on {_UNSEEN[row['held_out']]}" for row in rows)
    apart = "" if within is None else (
        f"; within one sentence it puts the safe case first in {_share(within['probe'])} of pairs, the model’s own "
        f"margin in {_share(within['margin'])} (difference {brief(within['beyond'])}; n = "
        f"{within['probe']['pairs']})")  # fmt: skip
    return (
        f"Is it carried to the verdict? {answer}: at the last column of the prompt a probe tells safe from unsafe with "
        f"AUROC {read} that it was not fitted on ({_controls(rows, _number)}; n = {fewest['n']}){since}{apart}; over "
        f"all cases the margin’s AUROC is {_number(found['margin'])}{without}."
    )


def _where(finding: Finding, asked: str) -> str:
    found = finding.evidence
    sentence, picture = found.get("sentence"), found.get("picture")
    there = ""
    if sentence is not None:
        there = (
            f"at layer {found['sentence_from']} of {found['last']}: there another sentence’s state at the last column "
            f"alone brings {_share(sentence)} of the way to its answer (n = {sentence['n']} failures)"
        )
    then = f"{there}, another picture’s {_share(found.get('picture_then'))}"
    later, n = _share(picture), 0 if picture is None else picture["n"]
    refused = _refused(found["refused"], found["looked_at"])
    answer = {
        Answer.NOWHERE: f"Nowhere: none of {found['cases']} cases was answered wrongly",
        Answer.CANNOT_TELL: "Patching cannot tell: no state at the last column brings another sentence’s answer, "
        f"{refused}",
        Answer.NEVER_ARRIVES: f"Where the sentence arrives, {there}, and no layer brings half of another picture’s",
        Answer.BEFORE: f"Before the picture arrives, {then}, and {later} from layer {found['picture_from']} on "
        f"(n = {n})",
        Answer.AT_ONCE: f"Where the picture arrives, {then} (n = {n})",
        Answer.AFTER: f"After the picture has arrived, {then}, as already {later} at layer "
        f"{found['picture_from']} (n = {n})",
        Answer.NOT_SHOWN: f"Whether the sentence arrives before the picture is not shown, {then}",
        Answer.TOO_FEW: f"Too few cases to tell whether the sentence arrives before the picture, {then}",
    }[finding.answer]
    return f"{asked} {answer}."


def _by_what(finding: Finding, words: Finding) -> str:
    found, apart = finding.evidence, finding.evidence["apart"]
    difference, prior = found["difference"], found["prior"]
    answer = {
        Answer.CANNOT_TELL: "Sentence and picture cannot be set against each other here",
        Answer.SENTENCE: "By the sentence",
        Answer.PICTURE: "Not by the sentence",
        Answer.NOT_SHOWN: "That the sentence outweighs the picture, or the picture the sentence, is not shown",
        Answer.TOO_FEW: too_few(difference).capitalize() if finding.answer is Answer.TOO_FEW else "",
    }[finding.answer]
    return (
        f"By what? {answer}: margins of different sentences lie {_number(found['spread'])} logits apart, those of one "
        f"sentence with two pictures {_number(apart)} (difference {_number(difference, sign=True)}; n = {apart['n']} "
        f"pairs, {_share(found['ranked'])} in the right order); the margin with a "
        f"{_STAND_INS.get(prior, f'{prior} picture')} explains R² = {_number(found['r2'])} of the margins (n = "
        f"{found['r2']['n']}){_alarming(words)}."
    )


def _alarming(words: Finding) -> str:
    if words.answer is Answer.CANNOT_TELL:
        return ""
    more = words.evidence["called_unsafe"]
    said = statement_text(
        more,
        answer=words.answer,
        rose="alarming words as such do it{small}",
        fell="alarming words as such do the contrary{small}",
        no_change="alarming words as such change it by no more than 2 points",
        not_shown="that alarming words as such do it is not shown",
        too_few="there are too few sentence forms to tell whether alarming words as such do it",
    )
    return (
        f"; {said}: cases with alarming words are called unsafe {brief(more)} more often than others "
        f"({more['clusters']} sentence forms on the side that has fewer)"
    )


def _reversed(finding: Finding) -> str:
    found, change = finding.evidence, finding.evidence["change"]
    if finding.answer is Answer.CANNOT_TELL:
        return "How much returns when that is undone? That cannot be told here: all cases have the same truth."
    answer = statement_text(
        change,
        answer=finding.answer,
        rose="Part of it",
        fell="It gets worse",
        no_change="No change of more than .02",
        not_shown="That anything returns is not shown",
    )
    small = by_less(change, of_rates=False) if finding.answer in (Answer.ROSE, Answer.FELL) else ""
    constant = found["constant"]
    further = ", ".join(f"{name} {_number(one, sign=True)}" for name, one in (found.get("ablated") or {}).items())
    ablations = f"; a direction ablated at layer {found['ablated_at']} changes it by: {further}" if further else ""
    return (
        f"How much returns when that is undone? {answer[0].upper()}{answer[1:]} (AUROC {_number(change, sign=True)}"
        f"{small}): with the sentence’s own margin subtracted (weight {_number(found['weight'])}, chosen without "
        f"labels) AUROC is {_number(found['auroc'])} instead of {_number(found['as_it_is'])} (n = {change['n']}), "
        f"{found['fixed']} of {found['wrong']} wrong answers turn right and {found['broken']} of {found['right']} "
        f"right ones wrong, where a mere constant that says Yes as often mends {constant['fixed']} and breaks "
        f"{constant['broken']}{ablations}."
    )


def _refused(counts: Mapping[str, int], looked_at: int) -> str:
    """How many failures found no partner."""
    return ", ".join(f"{n} of {looked_at} refused for {what}" for what, n in counts.items()) or "none was tried"


_VERDICTS = {
    "score": "A verdict is the sign of the margin here (protocol=score), which the tools explain; an answer that says "
    "neither Yes nor No has one too. A study of answers (protocol=generate) counts what is said.",
    "generate": "Verdicts, by which failures are chosen, are those of the answers; the tools explain the margin.",
}


def notes(result: Mapping[str, Any]) -> list[str]:
    """What limits the numbers of mechanism.json, a sentence each."""
    cases = result["cases"]
    found = [
        "Residual layers: 0 is what enters the first decoder layer, l the output of decoder layer l − 1; the last "
        "column is where the answer is read off. Intervals are 95%, from resampling clusters; those of differences and "
        "effects are Student’s, and where cases are made from templates from resampling clusters or templates and "
        "things, whichever is wider. Curves of probes and directions are read on "
        "clusters that they were not fitted on; truth’s probe is fitted with template and concept balanced where they "
        "are named. A claim rests on probes that saw none of a kind of picture, or none of a sentence; it has to lie "
        "above a guess, above shuffled labels, and above the same probes of models of the same shape with random "
        "weights.",
        _VERDICTS[cases["protocol"]],
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
