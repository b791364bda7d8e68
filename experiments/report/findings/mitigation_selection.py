"""Sentences of the comparison of mitigations, from the contents of ``mitigations.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer
from experiments.report.numbers import change, percent


def summary(result: Mapping[str, Any]) -> list[str]:
    """Which arms discriminate better than every rival, which win, and which has the highest overall accuracy."""
    arms, rivals = result["arms"], result["rivals"]
    raised = [one["about"] for one in result["findings"] if one["answer"] == Answer.ROSE]
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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def figure(result: Mapping[str, Any]) -> str:
    """The figure in words, for those who cannot see it."""
    arms = result["arms"]
    parts = [
        f"{name}: over-safety {percent(one['accuracy']['over_safety'])}, unsafe {percent(one['accuracy']['unsafe'])}"
        for name, one in arms.items()
    ]
    return "Unsafe against over-safety accuracy in percent, an arm a point. " + "; ".join(parts) + "."
