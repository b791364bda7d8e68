"""Run the last columns of a batch again and again, and the columns before them once.

    prefix = Prefix.of(vlm, encoded, columns=first)
    with edit_residual(vlm, edit, layers=[4]):
        margins = prefix.score()  # as vlm.score(prompts, encoded=encoded) would be with the edit

In a causal decoder a change reaches later columns only, so the columns before it are a KV cache. That holds only for
known families (``Prefix.fits``). In PaliGemma, for example, a prompt is seen in both directions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.generation import cache_in, with_cache
from interp.hooks.forward import paused
from interp.segments import IMAGE, SEGMENTS, Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

CAUSAL = (
    "llava",
    "llava_next",
    "idefics3",
    "smolvlm",
)  # no column sees a later column; positions count columns


@dataclass(frozen=True)
class Prefix:
    """The keys and values of a batch's first ``columns`` columns, and the inputs of the others."""

    vlm: "VLM"
    columns: int
    cache: Any
    rest: Mapping[str, Tensor]

    @staticmethod
    def fits(vlm: "VLM", segments: Segments, columns: int) -> bool:
        """Return whether the first ``columns`` columns can run separately, with all of the picture or none of it."""
        after = segments.codes[:, columns:]
        sliding = getattr(vlm.model.config.get_text_config(), "sliding_window", None)
        return (
            0 < columns < segments.width
            and vlm.module_map.model_type in CAUSAL
            and sliding is None
            and not bool((after == SEGMENTS.index(IMAGE)).any())
        )

    @classmethod
    def of(cls, vlm: "VLM", encoded: Mapping[str, Any], *, columns: int) -> "Prefix":
        """Run the first ``columns`` columns of left-padded inputs.

        Raises:
            UserError: no columns before or after.
        """
        mask = encoded["attention_mask"]
        if not 0 < columns < mask.shape[1]:
            raise UserError(f"a prefix of {columns} of {mask.shape[1]} columns; both parts need one; choose another")
        positions = vlm.positions(mask)["position_ids"]
        along = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
        first = {"input_ids": encoded["input_ids"][:, :columns], "attention_mask": mask[:, :columns]}
        with torch.no_grad(), paused():
            output = vlm.model(**along, **first, position_ids=positions[:, :columns], use_cache=True, logits_to_keep=1)
        rest = {"input_ids": encoded["input_ids"][:, columns:], "attention_mask": mask,
                "position_ids": positions[:, columns:]}  # fmt: skip
        return cls(vlm, columns, cache_in(output), rest)

    def score(self) -> Float[Tensor, " row"]:
        """Return the margins of the whole prompts, float32 on the CPU. May be called again."""
        vlm = self.vlm
        with torch.no_grad(), vlm.float32_logits():
            logits = vlm.model(**self.rest, **with_cache(self.cache), use_cache=True, logits_to_keep=1).logits
        for layer in self.cache.layers:
            layer.crop(self.columns - layer.get_seq_length())
        return vlm.margin(logits[:, -1]).float().cpu()
