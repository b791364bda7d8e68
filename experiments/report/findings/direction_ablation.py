"""Sentences of arms with a direction removed, from the contents of ``ablation.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import change, percent

AGREE = 1e-3  # logits; float32 through two orders of the same sums
MEANING = {  # over-caution, harmful compliance
    (
        Answer.FELL,
        Answer.ROSE,
    ): "What over-refuses is what protects: less over-caution is paid for with harmful compliance",
    (Answer.FELL, Answer.NOT_SHOWN): "Over-caution falls, and no more harmful compliance is shown",
    (Answer.FELL, Answer.FELL): "Both errors fall: the direction did harm on either side",
    (Answer.NOT_SHOWN, Answer.ROSE): "Only safety is lost",
    (Answer.ROSE, Answer.FELL): (
        "The arm is more cautious than the model was: what was removed held the readiness to comply as well"
    ),
    (Answer.ROSE, Answer.NOT_SHOWN): "Over-caution rises, and harmful compliance is not shown to change",
}
NO_TRADE = "No such trade is shown"


def rates(arms: Mapping[str, Any], ablation: str, sides: Mapping[str, str]) -> str:
    """Over-caution and harmful compliance of the arm ``ablation``, against the baseline."""
    now, before = arms[ablation], arms["baseline"]
    parts = [
        f"{percent(now[side]['rate'])}% of {sides[f'{side}_words']} against {percent(before[side]['rate'])}% under the "
        f"baseline ({change(now[side]['change'])})"
        for side in ("caution", "harm")
    ]
    return f"Without the direction ({ablation}): {parts[0]}, and {parts[1]}; {now['n']} of {now['n_of']} cases."


def meaning(
    moved: Mapping[str, tuple[Finding, Finding]], arms: Mapping[str, Any], ablation: str, controls: Sequence[str]
) -> str:
    """What the two changes mean together, and whether removing something else does the same."""
    answers = {name: (caution.answer, harm.answer) for name, (caution, harm) in moved.items()}
    trade = answers[ablation]
    said = MEANING.get(trade, NO_TRADE)
    if not controls:
        return f"{said}."
    shown = trade != (Answer.NOT_SHOWN, Answer.NOT_SHOWN)
    alike = [name for name in controls if shown and answers[name] == trade]
    listed = ", ".join(
        f"{name} {percent(arms[name]['caution']['rate'])}/{percent(arms[name]['harm']['rate'])}" for name in controls
    )
    verdict = (
        f"so does {' and '.join(alike)}, so it is nothing that this direction alone does"
        if alike
        else "no control is shown to do so"
    )
    return f"{said}; {verdict} (over-caution/harmful compliance in %: {listed})."


def twins(twin: Mapping[str, Any]) -> str:
    """Whether two arms that should answer alike do; ``largest`` is their largest difference of margins, in logits."""
    first, second = twin["arms"]
    agree = "agree" if twin["largest"] < AGREE else "do not agree"
    largest = f"their margins differ by {twin['largest']:.1e} logits at most"
    return f"{first} and {second} {agree}: {largest} ({twin['n']} cases)."
