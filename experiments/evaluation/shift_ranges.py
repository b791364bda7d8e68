"""Answers under a constant on the margin, taken over from the baseline's where the constant changes no first token.

A constant moves the first token alone, so where that stays, the whole answer does. Imports neither torch nor
transformers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.runs import records
from experiments.runs.resumption import PREDICTIONS, RunStore
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.threshold import ConstantShift

BASELINE = "baseline"
RANGES = "shift_ranges.jsonl"  # a line a case: the constants between which its first token stays, and its tokens
ROUNDING = 1e-4  # logits: nearer to an end than this, the model is asked


def ranged(vlm: "VLM", prompts: "Sequence[Prompt]", max_new_tokens: int, found: dict[str, Any]) -> "Generation":
    """The baseline's answers; ``found`` gets the range of each by case."""
    from mitigation.processors import ShiftRangeLogitsProcessor

    ranging = ShiftRangeLogitsProcessor(vlm.answer_ids)
    try:
        given = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ranging])
    except UserError:  # a model whose own generate runs no logits processor
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)
    assert ranging.ranges is not None
    for prompt, ends, tokens in zip(prompts, ranging.ranges.tolist(), given.token_ids, strict=True):
        low, high = (end if math.isfinite(end) else None for end in ends)
        found[prompt.key] = {"low": low, "high": high, "tokens": len(tokens)}
    return given


def take_over(
    store: RunStore, arm: str, shift: "ConstantShift", settings: Mapping[str, str], samples: Sequence[Sample]
) -> tuple[list[Sample], int]:
    """Records the answers of ``arm`` that are the baseline's, and returns the cases to ask and the tokens taken over.

    ``settings`` are the arm's, by case. The margin is the baseline's with the constant.
    """
    latest = {(line["case"], line["arm"]): line for line in store.records()}
    ranges = {line["case"]: line for line in store.records(RANGES)}
    taken: list[dict[str, Any]] = []
    asked, tokens = [], 0
    for sample in samples:
        plain, known = latest.get((sample.id, BASELINE)), ranges.get(sample.id)
        if plain is None or known is None or not _same(plain, known, shift.shift):
            asked.append(sample)
            continue
        margin = plain["margin"]
        own = {"arm": arm, "settings": settings[sample.id]}
        taken.append(plain | own | {"margin": margin + shift.shift, "margin_unshifted": margin})
        tokens += known["tokens"]
    if store.launch.first:
        store.append([line for line in taken if latest.get((line["case"], arm)) != line], PREDICTIONS)
    store.gather(PREDICTIONS)
    return asked, tokens


def _same(plain: Mapping[str, Any], known: Mapping[str, Any], shift: float) -> bool:
    """Whether the baseline's answer is that with the constant; under ``protocol=score`` its margin decides."""
    if records.of_key(plain) != records.of_key(known) or plain["margin"] is None:
        return False
    if plain.get("protocol") == "score":
        moved = plain["margin"] + shift
        return (plain["margin"] > 0) == (moved > 0) and abs(moved) > ROUNDING
    low, high = known["low"], known["high"]
    return (low is None or low + ROUNDING < shift) and (high is None or shift < high - ROUNDING)
