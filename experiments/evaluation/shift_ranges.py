"""Answers under a constant on the margin, taken over from the baseline's where the constant changes no first token.

A constant moves the first token alone, so where that stays, the whole answer does. Imports neither torch nor
transformers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.runs.records import SHIFT_RANGE
from experiments.runs.resumption import PREDICTIONS, RunStore
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import Baseline

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.threshold import ConstantShift

BASELINE = "baseline"
ROUNDING = 1e-4  # logits: nearer to an end than this, the model is asked


@dataclass(frozen=True, repr=False)
class RangedBaseline:
    """The baseline, whose answers also say with which constants their first token stays. The answers are the same."""

    def __repr__(self) -> str:
        return repr(Baseline())  # in the hash of a record's settings

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``VLM.generate``; ``shift_ranges`` has for each answer ``low``, ``high`` and its ``tokens``."""
        from mitigation.processors import ShiftRangeLogitsProcessor

        if vlm.thinks:  # a constant moves the verdict behind the thought, not the first token
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        ranging = ShiftRangeLogitsProcessor(vlm.answer_ids)
        try:
            given = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ranging])
        except UserError:  # a model whose own generate runs no logits processor
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        assert ranging.ranges is not None
        ranges: list[dict[str, float | None]] = []
        for ends, tokens in zip(ranging.ranges.tolist(), given.token_ids, strict=True):
            low, high = (end if math.isfinite(end) else None for end in ends)
            ranges.append({"low": low, "high": high, "tokens": len(tokens)})
        return replace(given, shift_ranges=ranges)


def take_over(
    store: RunStore, arm: str, shift: "ConstantShift", settings: Mapping[str, str], samples: Sequence[Sample]
) -> tuple[list[Sample], int]:
    """Records the answers of ``arm`` that are the baseline's, and returns the cases to ask and the tokens taken over.

    ``settings`` are the arm's, by case. The margin is the baseline's with the constant.
    """
    latest = {(line["case"], line["arm"]): line for line in store.records()}
    taken: list[dict[str, Any]] = []
    to_ask, tokens = [], 0
    for sample in samples:
        plain = latest.get((sample.id, BASELINE))
        if plain is None or not _same(plain, shift.shift):
            to_ask.append(sample)
            continue
        margin = plain["margin"]
        own = {"arm": arm, "settings": settings[sample.id], "margin": margin + shift.shift, "margin_unshifted": margin}
        shared = {name: value for name, value in plain.items() if name != SHIFT_RANGE}
        taken.append(shared | own)
        tokens += plain[SHIFT_RANGE]["tokens"]
    if store.launch.first:
        store.append([line for line in taken if latest.get((line["case"], arm)) != line], PREDICTIONS)
    store.wait()
    return to_ask, tokens


def _same(plain: Mapping[str, Any], shift: float) -> bool:
    """Whether the baseline's answer is that with the constant; under ``protocol=score`` its margin decides."""
    if plain["margin"] is None or SHIFT_RANGE not in plain:
        return False
    if plain.get("protocol") == "score":
        moved = plain["margin"] + shift
        return (plain["margin"] > 0) == (moved > 0) and abs(moved) > ROUNDING
    low, high = plain[SHIFT_RANGE]["low"], plain[SHIFT_RANGE]["high"]
    return (low is None or low + ROUNDING < shift) and (high is None or shift < high - ROUNDING)
