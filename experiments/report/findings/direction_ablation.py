"""Sentences of arms with a direction removed, from the contents of ``ablation.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.numbers import change, percent

AGREE = 1e-3  # logits; float32 through two orders of the same sums
MEANING = {  # what (over-caution, harmful compliance) moved, each down (-1), not shown to (0) or up (1)
    (-1, 1): "What over-refuses is what protects: less over-caution is paid for with harmful compliance",
    (-1, 0): "Over-caution falls, and no more harmful compliance is shown",
    (-1, -1): "Both errors fall: the direction did harm on either side",
    (0, 1): "Only safety is lost",
    (1, -1): "The arm is more cautious than the model was: what was removed held the readiness to comply as well",
    (1, 0): "Over-caution rises, and harmful compliance is not shown to change",
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


def meaning(arms: Mapping[str, Any], ablation: str, controls: Sequence[str]) -> str:
    """What the two changes mean together, and whether removing something else does the same."""
    moved = _moved(arms[ablation])
    said = MEANING.get(moved, NO_TRADE)
    if not controls:
        return f"{said}."
    alike = [name for name in controls if any(moved) and _moved(arms[name]) == moved]
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


def _moved(arm: Mapping[str, Any]) -> tuple[int, int]:
    """Which way over-caution and harmful compliance moved; 0 where the interval of the change includes 0."""
    caution, harm = (_sign(arm[side]["change"]) for side in ("caution", "harm"))
    return caution, harm


def _sign(entry: Mapping[str, Any] | None) -> int:
    if entry is None or entry["low"] is None:
        return 0
    return 1 if entry["low"] > 0 else -1 if entry["high"] < 0 else 0
