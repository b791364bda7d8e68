"""Sentences of arms with a direction removed, from the contents of ``ablation.json``."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import change, percent

MEANING = {  # over-caution, harmful compliance
    (Answer.FELL, Answer.ROSE): (
        "What over-refuses is what protects: less over-caution is paid for with harmful compliance"
    ),
    (Answer.FELL, Answer.NOT_SHOWN): "Over-caution falls, and no more harmful compliance is shown",
    (Answer.FELL, Answer.FELL): "Both errors fall: the direction did harm on either side",
    (Answer.NOT_SHOWN, Answer.ROSE): "Only safety is lost",
    (Answer.ROSE, Answer.FELL): (
        "The arm is more cautious than the model was: what was removed held the readiness to comply as well"
    ),
    (Answer.ROSE, Answer.NOT_SHOWN): "Over-caution rises, and harmful compliance is not shown to change",
}
NO_TRADE = "No such trade is shown"
ALONE = {
    Answer.YES: "no control is shown to do so",
    Answer.NO: "so does {alike}, so it is nothing that this direction alone does",
}
AGREEMENT = {Answer.YES: "agree", Answer.NO: "do not agree"}


def rates(arms: Mapping[str, Any], ablation: str, sides: Mapping[str, str]) -> str:
    """Over-caution and harmful compliance of the arm ``ablation``, against the baseline."""
    now, before = arms[ablation], arms["baseline"]
    parts = [
        f"{percent(now[side]['rate'])}% of {sides[f'{side}_words']} against {percent(before[side]['rate'])}% under the "
        f"baseline ({change(now[side]['change'])})"
        for side in ("caution", "harm")
    ]
    return f"Without the direction ({ablation}): {parts[0]}, and {parts[1]}; {now['n']} of {now['n_of']} cases."


def meaning(caution: Finding, harm: Finding, alone: Finding, arms: Mapping[str, Any]) -> str:
    """What the changes of both errors mean together, and whether removing something else does the same."""
    meant = MEANING.get((caution.answer, harm.answer), NO_TRADE)
    if alone.answer is Answer.NOT_APPLICABLE:
        return f"{meant}."
    listed = ", ".join(
        f"{name} {percent(arms[name]['caution']['rate'])}/{percent(arms[name]['harm']['rate'])}"
        for name in alone.evidence["controls"]
    )
    beside = ALONE[alone.answer].format(alike=" and ".join(alone.evidence["alike"]))
    return f"{meant}; {beside} (over-caution/harmful compliance in %: {listed})."


def twins(finding: Finding) -> str:
    """Whether two arms that should answer alike do."""
    twin = finding.evidence
    first, second = twin["arms"]
    largest = f"their margins differ by {twin['largest']:.1e} logits at most"
    return f"{first} and {second} {AGREEMENT[finding.answer]}: {largest} ({twin['n']} cases)."
