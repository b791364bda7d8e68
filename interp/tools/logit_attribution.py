"""Direct logit attribution: how much of the margin each head and MLP writes directly into the verdict.

What the final norm sees at the verdict is a sum: the token's embedding, and what every head and every MLP has added
there. With the norm's scale held fixed the rest of the way to the logits is linear, so the margin is a sum over the
same parts (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2022, "Interpretability
in the Wild", section 3.1). Only this *direct* effect counts: what a head changes in later layers belongs to these.
``interp.tools.patching`` measures the whole effect.

- ``heads``: one head's part of what its attention adds. A norm behind the sublayer (Gemma 2 and 3) is held fixed too.
- ``mlps``: what an MLP adds.
- ``rest``: the state that enters the first layer, biases of the maps that add up heads, and what no state writes: a
  bias of the output head, and, where two tokens begin Yes (or No), what their log-sum-exp has over the weighted mean of
  their logits.

A metric that is not linear in the logits is taken at its slope for these logits. Logits are those before a final soft
cap (PaliGemma 2); elsewhere ``total`` is ``vlm.score`` to 1e-4 in float32. In 16 bits the states themselves are rounded
whenever something is added: ``error`` says by how much the sum is off. Families that read the picture by
cross-attention (IDEFICS, Llama 3.2 Vision) are refused: their gated blocks are not divided into heads.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_activations, head_count, last_layer
from interp.prompt import Prompt, listed
from interp.scaling import after_head, sublayer_factor

if TYPE_CHECKING:
    from interp.generation import Metric
    from interp.vlm import VLM

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far the parts may be from the final state, relative to its length, by the model's type."""


@dataclass(frozen=True)
class LogitAttribution:
    """Direct effects on the metric at the verdict, in its units (logits); float32, on the CPU.

    ``layers`` are the decoder layers, from 0, of ``heads`` and ``mlps``. ``metric`` is what the parts add up to;
    ``scale`` what the final norm multiplies by, but for its gain: an effect times the ratio of two prompts' scales is
    what it would be under the other's.
    """

    heads: Float[Tensor, "layer head row"]
    mlps: Float[Tensor, "layer row"]
    rest: Float[Tensor, " row"]
    metric: Float[Tensor, " row"]
    scale: Float[Tensor, " row"]
    layers: tuple[int, ...]

    @property
    def total(self) -> Float[Tensor, " row"]:
        """The sum of all parts."""
        return self.heads.sum((0, 1)) + self.mlps.sum(0) + self.rest

    @property
    def error(self) -> Float[Tensor, " row"]:
        """How far the parts are from adding up to the metric."""
        return self.total - self.metric

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table of the heads, with columns layer, head, row, effect."""
        axes = self.layers, range(self.heads.shape[1]), range(len(self.metric))
        index = pd.MultiIndex.from_product(axes, names=["layer", "head", "row"])
        return pd.DataFrame({"effect": self.heads.flatten().numpy()}, index).reset_index()

    def top(self, count: int) -> list[tuple[int, int]]:
        """Return layer and head of the ``count`` heads with the largest mean absolute effect, the largest first."""
        order = torch.argsort(self.heads.abs().mean(-1).flatten(), descending=True, stable=True)[:count]
        return [(self.layers[index // self.heads.shape[1]], index % self.heads.shape[1]) for index in order.tolist()]


def direct_logit_attribution(
    vlm: "VLM", prompts: "Prompt | Sequence[Prompt]", *, metric: "Metric | None" = None, batch_size: int | None = None
) -> LogitAttribution:
    """Return the direct effect of every head and MLP on the margin, or on ``metric`` (a function of the logits).

    Costs one forward per batch, and the heads' output maps once more for the last token. ``batch_size`` is the most
    prompts at once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: no prompts, a final norm that is no RMSNorm, or a decoder that adds other things to its residual
            stream than these.
    """
    vlm.require("direct_attribution")
    prompts, layers = listed(prompts), tuple(vlm.module_map.attentions(vlm.model))
    if vlm.module_map.crossings(vlm.model):
        raise UserError(
            f"{vlm.name} reads the picture by cross-attention, in blocks that are not divided into heads; direct "
            "attribution needs every part; use patch, which runs the model"
        )

    def attributed(batch: list[int]) -> Float[Tensor, "row part"]:
        parts = _attributed(vlm, [prompts[index] for index in batch], metric or vlm.margin)
        return torch.cat([part.reshape(-1, len(batch)) for part in parts]).T

    values = vlm.batches.measured(prompts, attributed, batch_size=batch_size).T
    heads, mlps, (rest, value, scale) = values.split([len(layers) * head_count(vlm), len(layers), 3])
    return LogitAttribution(heads.unflatten(0, (len(layers), -1)), mlps, rest, value, scale, layers)


def _attributed(vlm: "VLM", prompts: Sequence[Prompt], metric: "Metric") -> tuple[Tensor, ...]:
    """Return the tensors of ``LogitAttribution`` for one batch, in its order."""
    module_map, model, factor = vlm.module_map, vlm.model, sublayer_factor(vlm.model)
    with torch.no_grad():
        seen = _last_states(vlm, prompts)
        final = seen["residual", last_layer(vlm)]
        norm = module_map.module(model, "final_norm")
        slope, constant, value = _slope(vlm, norm, final, metric)
        weights = (slope * _frozen(norm, final, vlm.name)).cpu()

        def effect(state: Float[Tensor, "row *part width"]) -> Float[Tensor, "*part row"]:
            return torch.einsum("r...w,rw->r...", state.float().cpu(), weights).movedim(0, -1)

        full = seen["residual", 0].float().cpu()
        heads, mlps, rest = [], [], constant + effect(full)
        for layer, sums in module_map.head_sums(model).items():
            parts, bias = _by_head(sums, seen["head", layer])
            after = module_map.sublayers(model, "attention")[layer]
            if after is not module_map.attentions(model)[layer]:
                scale = _frozen(after, (parts.sum(1) + bias).float(), vlm.name)
                parts, bias = parts.float() * scale[:, None], bias.float() * scale
            parts, bias, mlp = parts * factor, bias * factor, seen["mlp", layer] * factor
            heads.append(effect(parts))
            mlps.append(effect(mlp))
            rest = rest + effect(bias)
            for state in (parts.float().sum(1), bias, mlp):
                full = full + state.float().cpu()
        _complete(full, final.float().cpu(), vlm)
    return torch.stack(heads), torch.stack(mlps), rest, value, final.float().pow(2).mean(-1).rsqrt().cpu()


def _last_states(vlm: "VLM", prompts: Sequence[Prompt]) -> dict[tuple[str, int], Tensor]:
    """Return the states at the last column: of heads [row head dim], of MLPs and residual layers [row width]."""
    seen: dict[tuple[str, int], Tensor] = {}

    def keep(here: LayerStates, what: str) -> None:
        seen[what, here.layer] = here.hidden[:, -1]

    with ExitStack() as stack:
        for what, layers in (("head", None), ("mlp", None), ("residual", [0, last_layer(vlm)])):
            stack.enter_context(edit_activations(vlm, partial(keep, what=what), what=what, layers=layers))
        vlm.score(prompts)
    return seen


def _slope(
    vlm: "VLM", norm: Any, final: Float[Tensor, "row width"], metric: "Metric"
) -> tuple[Float[Tensor, "row width"], Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return the metric's gradient by the normed state, what it has beside that (``constant``), and its value."""
    with torch.enable_grad(), vlm.float32_logits(metric):
        normed = norm(final).detach().requires_grad_()
        scale = after_head(vlm.model, vlm.module_map).scale
        value = metric(scale * vlm.module_map.module(vlm.model, "lm_head")(normed).float()).float()
        (slope,) = torch.autograd.grad(value.sum(), normed)
    slope, value = slope.float(), value.detach().cpu()
    return slope, value - (slope * normed.detach().float()).sum(-1).cpu(), value


def _frozen(norm: Any, state: Float[Tensor, "row width"], name: str) -> Float[Tensor, "row width"]:
    """Return what an RMSNorm multiplies its input ``state`` by; as a constant it makes the norm linear."""
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    state = state.float()
    if epsilon is not None and getattr(norm, "bias", None) is None:
        gain = norm(torch.ones_like(state[:1])).float() * (1 + epsilon) ** 0.5
        scale = gain.to(state.device) * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + epsilon)
        if torch.allclose(scale * state, norm(state).to(state), rtol=2e-2, atol=1e-3):  # but for rounding
            return scale
    raise UserError(
        f"the {type(norm).__name__} of {name} is no RMSNorm; direct attribution holds the scale of one fixed; "
        "use patch, which runs the model"
    )


def _by_head(
    sums: Any, outputs: Float[Tensor, "row head dim"]
) -> tuple[Float[Tensor, "row head width"], Float[Tensor, "row width"]]:
    """Return what each head gives through the linear map ``sums`` (an adapter's part included), and the map's bias."""
    rows, heads, size = outputs.shape
    apart = outputs.new_zeros(rows, heads + 1, heads, size)
    for head in range(heads):
        apart[:, head, head] = outputs[:, head]
    through = sums(apart.flatten(-2)).float()
    bias = through[:, -1]
    return through[:, :-1] - bias[:, None], bias


def _complete(full: Float[Tensor, "row width"], final: Float[Tensor, "row width"], vlm: "VLM") -> None:
    """Check that the parts add up to the state that the final norm saw."""
    off = float(((full - final).norm(dim=-1) / final.norm(dim=-1)).max())
    if not off <= TOLERANCE[vlm.dtype]:
        raise UserError(
            f"the heads, MLPs and embedding of {vlm.name} give {1 - off:.0%} of its last hidden state; direct "
            "attribution needs all of it, and this decoder adds or scales something else; use patch instead"
        )
