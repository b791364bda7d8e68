"""What the ``generate`` that calls a logits processor is about, read off its frames.

A processor is handed tokens and scores, not generate()'s settings, and what was done to the scores does not show in
them. The functions that call it know; where it is called by anything else, there is nothing to know.
"""

import sys
from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from interp.errors import UserError

# What generate() may put before custom processors and moves finite scores: the contrast would amplify it by 1 + α, as
# only the clean branch has it. Processors that only forbid tokens (−inf) are harmless: forbidden stays forbidden.
_UNEVEN = {
    RepetitionPenaltyLogitsProcessor: "repetition_penalty=1.0",
    EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty=1.0",
    SequenceBiasLogitsProcessor: "sequence_bias=None",
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale=1.0",
    ExponentialDecayLengthPenalty: "exponential_decay_length_penalty=None",
}


def refuse_uneven_neighbours(processor: LogitsProcessor) -> None:
    """UserError if something in the same ``LogitsProcessorList`` moves finite scores before ``processor`` sees them."""
    for other in _local(LogitsProcessorList.__call__, "self") or ():
        if other is processor:
            return
        if type(other) in _UNEVEN:
            raise UserError(
                f"{type(other).__name__} runs before contrastive decoding, which would contrast changed scores with "
                f"unchanged ones; set {_UNEVEN[type(other)]}, or list that processor after this one"
            )


def unfinished() -> Int[Tensor, "row"] | None:
    """1 for rows that the calling ``generate`` still decodes, 0 for those that are only padded; None outside of one."""
    return _local(GenerationMixin._sample, "unfinished_sequences")


def _local(function: Callable[..., Any], name: str) -> Any:
    """The variable ``name`` of the innermost running call of ``function``, None if there is none."""
    code, frame = function.__code__, sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals.get(name)
