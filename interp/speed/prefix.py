"""KV cache of a batch up to a column: whatever is changed behind it costs only the columns behind it.

    prefix = Prefix.of(vlm, encoded, columns=first)
    with edit_residual(vlm, edit, layers=[4]):
        margins = prefix.score()  # as vlm.score(prompts, encoded=encoded) would be with the edit

In a decoder a state reaches the columns behind it alone, so many changes at a late column share what is before it. Only
for families that are known to be so (``Prefix.fits``); PaliGemma's prompts, for one, are seen in both directions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.forward import paused
from interp.segments import IMAGE, SEGMENTS, Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

CAUSAL = ("llava", "llava_next", "idefics3", "smolvlm")  # no column sees one behind it; a position is a column's number


@dataclass(frozen=True)
class Prefix:
    """The keys and values of a batch's first ``columns`` columns, and the inputs of the others."""

    vlm: "VLM"
    columns: int
    cache: Any
    rest: Mapping[str, Tensor]

    @staticmethod
    def fits(vlm: "VLM", segments: Segments, columns: int) -> bool:
        """Whether the first ``columns`` columns can be kept apart, the whole picture or none of it among them."""
        behind = segments.codes[:, columns:]
        sliding = getattr(vlm.model.config.get_text_config(), "sliding_window", None)
        return (
            0 < columns < segments.width
            and vlm.layout.model_type in CAUSAL
            and sliding is None
            and not bool((behind == SEGMENTS.index(IMAGE)).any())
        )

    @classmethod
    def of(cls, vlm: "VLM", encoded: Mapping[str, Any], *, columns: int) -> "Prefix":
        """Runs the first ``columns`` columns of left-padded inputs.

        Raises:
            UserError: ``columns`` leaves nothing before or behind.
        """
        mask = encoded["attention_mask"]
        if not 0 < columns < mask.shape[1]:
            raise UserError(f"a prefix of {columns} of {mask.shape[1]} columns; both parts need one; choose another")
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        along = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
        first = {"input_ids": encoded["input_ids"][:, :columns], "attention_mask": mask[:, :columns]}
        with torch.no_grad(), paused():
            output = vlm.model(**along, **first, position_ids=positions[:, :columns], use_cache=True, logits_to_keep=1)
        rest = {"input_ids": encoded["input_ids"][:, columns:], "attention_mask": mask,
                "position_ids": positions[:, columns:]}  # fmt: skip
        return cls(vlm, columns, output.past_key_values, rest)

    def score(self) -> Float[Tensor, " row"]:
        """The margins of the whole prompts; float32 on the CPU. May be called again."""
        vlm = self.vlm
        with torch.no_grad(), vlm.float32_logits():
            logits = vlm.model(**self.rest, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
        for layer in self.cache.layers:  # some may not have run (``interp.speed.lower_layers``)
            layer.crop(self.columns - layer.get_seq_length())
        return vlm.margin(logits[:, -1]).float().cpu()
