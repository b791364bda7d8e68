"""Direct logit attribution: how much of the margin each head, MLP and embedding writes directly into the verdict.

What the final norm sees at the verdict is a sum: the token's embedding, and what every head and every MLP has added
there. With the norm's scale held fixed the rest of the way to the logits is linear, so the margin is a sum over the
same parts (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2022, "Interpretability
in the Wild", section 3.1). Only this *direct* effect counts: what a head changes in later layers belongs to these.
``interp.tools.patching`` measures the whole effect.

- ``heads``: one head's part of what its attention adds. A norm behind the sublayer (Gemma 2 and 3) is held fixed too.
- ``biases``: the bias of the map that adds up the heads; 0 in families without one.
- ``mlps``, ``embedding``: what an MLP adds, and the state that enters the first layer.
- ``crossings``: a block that reads the picture by cross-attention (IDEFICS, Llama 3.2 Vision), its MLP included. It is
  gated as a whole, and so not divided into heads.
- ``constant``: the part of the metric that no state writes: a bias of the output head, and, where two tokens begin Yes
  (or No), what their log-sum-exp has over the weighted mean of their logits.

A metric that is not linear in the logits is taken at its slope for these logits. Logits are those before a final soft
cap (PaliGemma 2); elsewhere ``total`` is ``vlm.score`` to 1e-4 in float32. In 16 bits the states themselves are rounded
whenever something is added: ``error`` says by how much the sum is off.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.sublayers import head_count
from interp.prompt import Prompt, listed
from interp.scaling import after_head, sublayer_factor

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.margin import Metric
    from interp.vlm import VLM

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far the parts may be from the final state, relative to its length, by the model's type."""


@dataclass(frozen=True)
class LogitAttribution:
    """Direct effects on the metric at the verdict, in its units (logits); float32, on the CPU.

    ``layers`` are the decoder layers, from 0, of ``heads``, ``mlps`` and ``biases``; ``crossing_layers`` the layers of
    ``crossings``. ``metric`` is what the parts add up to; ``scale`` what the final norm multiplies by, but for its
    gain: an effect times the ratio of two prompts' scales is what it would be under the other's.
    """

    heads: Float[Tensor, "layer head row"]
    mlps: Float[Tensor, "layer row"]
    biases: Float[Tensor, "layer row"]
    crossings: Float[Tensor, "crossing row"]
    embedding: Float[Tensor, " row"]
    constant: Float[Tensor, " row"]
    metric: Float[Tensor, " row"]
    scale: Float[Tensor, " row"]
    layers: tuple[int, ...]
    crossing_layers: tuple[int, ...]

    @property
    def total(self) -> Float[Tensor, " row"]:
        """The sum of all parts."""
        parts = (self.heads.sum((0, 1)), *(some.sum(0) for some in (self.mlps, self.biases, self.crossings)))
        return sum(parts, self.embedding + self.constant)

    @property
    def error(self) -> Float[Tensor, " row"]:
        """How far the parts are from adding up to the metric."""
        return self.total - self.metric

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns row, part, layer, head, effect; layer and head are missing where there is none."""
        pieces = [
            ("embedding", (), (None,), self.embedding[None, None]),
            ("head", self.layers, range(self.heads.shape[1]), self.heads),
            ("bias", self.layers, (None,), self.biases[:, None]),
            ("mlp", self.layers, (None,), self.mlps[:, None]),
            ("cross_attention", self.crossing_layers, (None,), self.crossings[:, None]),
            ("constant", (), (None,), self.constant[None, None]),
        ]
        rows = [
            (row, part, layer, head, float(values[i, j, row]))
            for part, layers, heads, values in pieces
            for i, layer in enumerate(layers or (None,) * len(values))
            for j, head in enumerate(heads)
            for row in range(len(self.metric))
        ]
        table = pd.DataFrame(rows, columns=["row", "part", "layer", "head", "effect"])
        return table.astype({"layer": "Int64", "head": "Int64"})

    @property
    def ranking(self) -> pd.DataFrame:
        """The heads, the one with the largest mean absolute effect first: layer, head, effect (the mean), size."""
        heads = self.table[lambda table: table["part"] == "head"].assign(size=lambda table: table["effect"].abs())
        means = heads.groupby(["layer", "head"])[["effect", "size"]].mean()
        return means.sort_values("size", ascending=False, kind="stable").reset_index()

    def top(self, count: int) -> list[tuple[int, int]]:
        """Layer and head of the first ``count`` of ``ranking``, as ``head_patterns`` takes them."""
        first = self.ranking.head(count)
        return [(int(layer), int(head)) for layer, head in zip(first["layer"], first["head"], strict=True)]

    def plot(self, title: str = "") -> "Figure":
        """Each head's effect, and next to it the effect of the other parts; means over the prompts."""
        from interp.figures.effects import attribution_figure

        parts = {
            "MLP": (self.layers, self.mlps),
            "bias of attention": (self.layers, self.biases),
            "cross-attention block": (self.crossing_layers, self.crossings),
        }
        visible = {name: (at, some.mean(-1).numpy()) for name, (at, some) in parts.items() if bool((some != 0).any())}
        rest = {"embedding": self.embedding, "constant": self.constant, "all together": self.total}
        means = {name: float(some.mean()) for name, some in rest.items()}
        return attribution_figure(self.heads.mean(-1).numpy(), self.layers, visible, means, title=title)


def direct_logit_attribution(
    vlm: "VLM", prompts: "Prompt | Sequence[Prompt]", *, metric: "Metric | None" = None, batch_size: int | None = None
) -> LogitAttribution:
    """The direct effect of every head, MLP and embedding on the margin, or on ``metric`` (a function of the logits).

    Costs one forward per batch, and the heads' output maps once more for the last token. ``batch_size`` is the most
    prompts at once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: no prompts, a final norm that is no RMSNorm, or a decoder that adds other things to its residual
            stream than these.
    """
    vlm.require("direct_attribution")
    prompts = listed(prompts)
    layers, crossings = tuple(vlm.module_map.attentions(vlm.model)), tuple(vlm.module_map.crossings(vlm.model))
    shapes = {
        "heads": (len(layers), head_count(vlm)),
        "mlps": (len(layers),),
        "biases": (len(layers),),
        "crossings": (len(crossings),),
        **dict.fromkeys(("embedding", "constant", "metric", "scale"), ()),
    }

    def attributed(batch: list[int]) -> Float[Tensor, "row part"]:
        result = _attributed(vlm, [prompts[index] for index in batch], metric or vlm.margin)
        return torch.cat(
            [result[name].reshape(size, len(batch)).T for name, size in zip(shapes, sizes, strict=True)], 1
        )

    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = vlm.batches.measured(prompts, attributed, batch_size=batch_size).split(sizes, dim=1)
    fields = {name: part.T.reshape(*shapes[name], len(prompts)) for name, part in zip(shapes, parts, strict=True)}
    return LogitAttribution(**fields, layers=layers, crossing_layers=crossings)


def _attributed(vlm: "VLM", prompts: Sequence[Prompt], metric: "Metric") -> dict[str, Tensor]:
    """The fields of ``LogitAttribution`` for one batch."""
    module_map, model = vlm.module_map, vlm.model
    factor = sublayer_factor(model)
    with torch.no_grad():
        with _last_states(vlm) as seen:
            vlm.score(prompts)
        final = seen["final", 0]
        norm = module_map.module(model, "final_norm")
        slope, constant, value = _slope(vlm, norm, final, metric)
        frozen = _frozen(norm, final, vlm.name)
        weights = (slope * frozen).cpu()

        def effect(state: Float[Tensor, "row *part width"]) -> Float[Tensor, "*part row"]:
            summed = torch.einsum("r...w,rw->r...", state.float().cpu(), weights)
            return summed.movedim(0, -1)

        full = torch.zeros_like(final, device="cpu")
        heads, biases, mlps, crossings = [], [], [], []
        for layer, sums in module_map.head_sums(model).items():
            parts, bias = _by_head(sums, seen["heads", layer], head_count(vlm))
            after = module_map.sublayers(model, "attention")[layer]
            if after is not module_map.attentions(model)[layer]:
                scale = _frozen(after, (parts.sum(1) + bias).float(), vlm.name)
                parts, bias = parts.float() * scale[:, None], bias.float() * scale
            parts, bias, mlp = parts * factor, bias * factor, seen["mlp", layer] * factor
            heads.append(effect(parts))
            biases.append(effect(bias))
            mlps.append(effect(mlp))
            for batch in (parts.float().sum(1), bias, mlp):
                full += batch.float().cpu()
        for layer in module_map.crossings(model):
            crossings.append(effect(seen["crossing", layer]))
            full += seen["crossing", layer].float().cpu()
        full += seen["embedding", 0].float().cpu()
        _complete(full, final.float().cpu(), vlm)
    rows = len(prompts)
    return {
        "heads": torch.stack(heads),
        "mlps": torch.stack(mlps),
        "biases": torch.stack(biases),
        "crossings": torch.stack(crossings) if crossings else torch.zeros(0, rows),
        "embedding": effect(seen["embedding", 0]),
        "constant": constant,
        "metric": value,
        "scale": final.float().pow(2).mean(-1).rsqrt().cpu(),
    }


Seen = dict[tuple[str, int], Tensor]


@contextmanager
def _last_states(vlm: "VLM") -> Iterator[Seen]:
    """What every part has at the last column, while open: heads [row head·dim], everything else [row width]."""
    seen: Seen = {}
    module_map, model = vlm.module_map, vlm.model

    def entering(key: tuple[str, int], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[key] = (args[0] if args else kwargs["hidden_states"])[:, -1]

    def leaving(key: tuple[str, int], module: Any, args: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        rows = len(seen["embedding", 0])  # a mixture of experts may have put rows and columns into one axis
        seen[key] = (state.unflatten(0, (rows, -1)) if state.ndim == 2 else state)[:, -1]

    def crossed(layer: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output
        seen["crossing", layer] = after[:, -1].float() - before[:, -1].float().to(after.device)  # of the layer before

    crossings = module_map.crossings(model)
    first = crossings[0] if module_map.crossing_blocks else module_map.module(model, "layers")[0]
    with ExitStack() as stack:
        for module, key in (
            (first, ("embedding", 0)),
            (module_map.module(model, "final_norm"), ("final", 0)),
            *((module, ("heads", layer)) for layer, module in module_map.head_sums(model).items()),
        ):
            hook = partial(entering, key)
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for layer, module in module_map.sublayers(model, "mlp").items():
            stack.callback(module.register_forward_hook(partial(leaving, ("mlp", layer))).remove)
        for layer, module in crossings.items():
            stack.callback(module.register_forward_hook(partial(crossed, layer), with_kwargs=True).remove)
        yield seen


def _slope(
    vlm: "VLM", norm: Any, final: Float[Tensor, "row width"], metric: "Metric"
) -> tuple[Float[Tensor, "row width"], Float[Tensor, " row"], Float[Tensor, " row"]]:
    """The metric's gradient by the normed state, what it has beside that (``constant``), and its value."""
    with torch.enable_grad(), vlm.float32_logits(metric):
        normed = norm(final).detach().requires_grad_()
        scale = after_head(vlm.model, vlm.module_map).scale
        value = metric(scale * vlm.module_map.module(vlm.model, "lm_head")(normed).float()).float()
        (slope,) = torch.autograd.grad(value.sum(), normed)
    slope, value = slope.float(), value.detach().cpu()
    return slope, value - (slope * normed.detach().float()).sum(-1).cpu(), value


def _frozen(norm: Any, state: Float[Tensor, "row width"], name: str) -> Float[Tensor, "row width"]:
    """What an RMSNorm multiplies its input ``state`` by; as a constant it makes the norm linear."""
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    state = state.float()
    if epsilon is not None and getattr(norm, "bias", None) is None:
        gain = norm(torch.ones_like(state[:1])).float() * (1 + epsilon) ** 0.5
        scale = gain.to(state.device) * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + epsilon)
        if _agree(scale * state, norm(state).to(state)):
            return scale
    raise UserError(
        f"the {type(norm).__name__} of {name} is no RMSNorm; direct attribution holds the scale of one fixed; "
        "use patch, which runs the model"
    )


def _agree(first: Tensor, other: Tensor) -> bool:
    """Whether two states are the same but for rounding."""
    return torch.allclose(first, other, rtol=2e-2, atol=1e-3)


def _by_head(
    sums: Any, outputs: Float[Tensor, "row dim"], heads: int
) -> tuple[Float[Tensor, "row head width"], Float[Tensor, "row width"]]:
    """What each head gives through the linear map ``sums`` (an adapter's part included), and the map's bias."""
    apart = torch.zeros(len(outputs), heads + 1, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    size = outputs.shape[1] // heads
    for head in range(heads):
        current = slice(head * size, (head + 1) * size)
        apart[:, head, current] = outputs[:, current]
    through = sums(apart).float()
    bias = through[:, -1]
    return through[:, :-1] - bias[:, None], bias


def _complete(full: Float[Tensor, "row width"], final: Float[Tensor, "row width"], vlm: "VLM") -> None:
    """Checks that the parts add up to the state that the final norm saw."""
    off = float(((full - final).norm(dim=-1) / final.norm(dim=-1)).max())
    if not off <= TOLERANCE[vlm.dtype]:
        raise UserError(
            f"the heads, MLPs and embedding of {vlm.name} give {1 - off:.0%} of its last hidden state; direct "
            "attribution needs all of it, and this decoder adds or scales something else; use patch instead"
        )
