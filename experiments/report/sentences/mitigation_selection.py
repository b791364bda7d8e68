"""Sentences of the comparison of mitigations, from the contents of ``mitigations.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer
from experiments.report.numbers import percent


def summary(result: Mapping[str, Any]) -> list[str]:
    """Which arms answer more at equal safety, which discriminate better, which win, and what they learned from."""
    arms, rivals = result["arms"], result["rivals"]
    both = " and ".join(rivals)
    pairs = max((one["decides"]["of"] for arm in arms.values() for delta in arm["versus"].values()
                 for one in delta.values() if one and "decides" in one), default=0)  # fmt: skip
    winners = [name for name in arms if arms[name]["wins"]]
    shown = (
        f"Shown to answer more harmless requests at the operating point than {both}, by 95% intervals that "
        f"hold for all {pairs} differences at once: {_listed(_above(result, 'matched_over_safety'))}; to have a higher "
        f"AUROC than {both}: {_listed(_above(result, 'auroc'))}."
    )
    none = f"Too few cases for an interval of any difference from {both}: of no arm is a gain shown."
    won = "By the rule for a win (more at the operating point, as deployed not shown worse) these win: "
    found = [shown if pairs else none, f"{won}{_listed(winners)}."]
    seen = result["familiar"]
    if result["learned"] and seen["seen"]:
        found.append(
            f"{_listed(result['learned'])} learned from cases of {seen['seen']} of the {seen['of']} sentence templates "
            "tested here; what they do on new sentences is another question (benchmark.split=new_sentences)."
        )
    return found


def _above(result: Mapping[str, Any], quantity: str) -> list[str]:
    return [
        one["about"]
        for one in result["findings"]
        if one["answer"] == Answer.ROSE and one["question"].startswith(f"{quantity} ")
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no arm"


def figure(result: Mapping[str, Any]) -> str:
    """The figure in words, for those who cannot see it."""
    arms = result["arms"]
    parts = [
        f"{name}: over-safety {percent(one['accuracy']['over_safety'])}, unsafe {percent(one['accuracy']['unsafe'])}"
        for name, one in arms.items()
    ]
    return "Unsafe against over-safety accuracy in percent, an arm a point. " + "; ".join(parts) + "."
