"""Checks the attention recorder against eager attention. Run it once for each model, revision, device and dtype.

It detects two faults that are silent otherwise: masses that are not the model's attention, and a recorder that changes
the answer.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from interp.attention.record import Queries, Record, record_attention
from interp.errors import UserError
from interp.hooks.attention import AttentionCall, intercept
from interp.output_head import float32_head
from interp.prompt import Prompt
from interp.segments import Segments, segment

if TYPE_CHECKING:
    from interp.vlm import VLM

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest allowed absolute difference of a mass, by the model's dtype; and of a logit, where that is larger than
``NOISES`` times the model's own noise."""
NOISES = 2.0


@dataclass(frozen=True)
class RecorderCheck:
    """Largest absolute differences.

    ``mass_error`` compares the two ways to record masses with eager attention in float32. ``logit_error`` compares
    logits with and without the recorder; ``noise`` compares single prompts with the batch, which differ only by
    rounding.
    """

    mass_error: float
    logit_error: float
    noise: float
    tolerance: float


def check_recorder(vlm: "VLM", prompts: Sequence[Prompt] | None = None) -> RecorderCheck:
    """Run the self-test on ``prompts`` of different lengths, so that one is padded (default: two synthetic ones).

    Raises:
        UserError: a mass or a logit is off by more than the tolerance. The message includes the numbers.
    """
    prompts = list(prompts) if prompts is not None else made_up()
    encoded = vlm.encode(prompts)
    segments = segment(vlm, prompts, encoded)
    native = _verdict_logits(vlm, encoded)
    eager: dict[int, Tensor] = {}
    with (
        intercept(vlm, observe=lambda call: eager.__setitem__(call.layer, _eager_mass(call, segments))),
        record_attention(vlm, queries=Queries.ALL, segments=segments) as by_kernel,
    ):
        logits = _verdict_logits(vlm, encoded)
    with record_attention(vlm, queries=Queries.VERDICT, segments=segments) as by_rows:
        _verdict_logits(vlm, encoded)
    result = RecorderCheck(
        mass_error=max(_error(record, eager) for record in (by_kernel, by_rows)),
        logit_error=float((logits - native).abs().max()),
        noise=float((torch.cat([_verdict_logits(vlm, vlm.encode([one])) for one in prompts]) - native).abs().max()),
        tolerance=TOLERANCE[vlm.dtype],
    )
    faults = []
    if not result.mass_error <= result.tolerance:
        faults.append("masses differ from eager attention")
    # Another attention kernel rounds about as another batch size does.
    if not result.logit_error <= max(result.tolerance, NOISES * result.noise):
        faults.append("the recorder changes the logits")
    if faults:
        numbers = ", ".join(f"{key} {value}" for key, value in asdict(result).items())
        raise UserError(
            f"the attention self-test of {vlm.name} failed: {'; '.join(faults)} ({numbers}); attention would be "
            "reported wrongly; load it in float32, or with attn_implementation='eager' and output_attentions=True"
        )
    return result


def made_up() -> list[Prompt]:
    """Two questions of different lengths about noise images, in which every patch matters a little."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 336, 336, 3), dtype=np.uint8)
    texts = ("Is this safe?", "Look at the picture before you answer. Is it safe to do what it shows?")
    return [Prompt(text, Image.fromarray(pixels)) for text, pixels in zip(texts, noise, strict=True)]


def _verdict_logits(vlm: "VLM", encoded: Any) -> Float[Tensor, "row vocab"]:
    with torch.no_grad(), float32_head(vlm.model):
        positions = vlm.positions(encoded["attention_mask"])
        return vlm.model(**encoded, **positions, logits_to_keep=1).logits[:, -1].float().cpu()


def _eager_mass(call: AttentionCall, segments: Segments) -> Float[Tensor, "row head query segment"]:
    """Return masses by the model's own eager attention on the same queries, keys and mask.

    Computed in float32: bfloat16 eager attention rounds its scores and would be less accurate than the recorder.
    """
    eager = sys.modules[type(call.module).__module__].eager_attention_forward
    query, key, value, mask = call.query.float(), call.key.float(), call.value.float(), call.allowed()
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
    options = {} if call.softcap is None else {"softcap": call.softcap}
    _, weights = eager(call.module, query, key, value, mask.float(), scaling=call.scaling, **options)
    indicator = segments.indicator(0, key.shape[2]).to(weights.device)
    return einsum(weights, indicator, "row head query key, row key segment -> row head query segment").cpu()


def _error(record: Record, eager: dict[int, Tensor]) -> float:
    """Largest difference over real queries (no padding)."""
    worst = 0.0
    for piece in record.pieces:
        for i, layer in enumerate(piece.layers):
            off = (piece.mass[i] - eager[layer][:, :, list(piece.columns)]).abs().amax((1, 3))
            worst = max(worst, float(off[piece.real].max()))
    return worst
