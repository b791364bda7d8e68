"""Removes one direction from every state of the residual stream, while the model runs.

Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717, section 2.4
(directional ablation). With unit direction d, a state x becomes x − d (d·x).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.device_copies import Copies
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual

if TYPE_CHECKING:
    from interp.vlm import VLM


@contextmanager
def projected(vlm: "VLM", direction: Float[Tensor, " width"]) -> Iterator[None]:
    """While open, no state of the residual stream of ``vlm`` has a component along ``direction``, at any position.

    Projects the inputs of every layer and of the final norm, and every attention block's output before its MLP reads
    it. In families that normalise a block's output before adding it (gemma 2 and 3), the norm's gains can restore part
    of the component in the middle of a layer. The model is restored when the block ends, also on an exception.
    """
    units = Copies(_unit(direction))

    def cleared(states: Tensor) -> Tensor:
        exact = states if states.dtype == torch.float64 else states.float()
        return without(exact, units.like(exact)).to(states.dtype)

    def entering(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (cleared(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": cleared(kwargs["hidden_states"])}

    def leaving(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (cleared(output[0]), *output[1:])
        return cleared(output)

    with ExitStack() as stack:
        for reader in (*vlm.module_map.module(vlm.model, "layers"), vlm.module_map.module(vlm.model, "final_norm")):
            stack.callback(reader.register_forward_pre_hook(entering, with_kwargs=True).remove)
        for attention in vlm.module_map.attentions(vlm.model).values():
            stack.callback(attention.register_forward_hook(leaving).remove)
        yield


@contextmanager
def levelled(vlm: "VLM", direction: Float[Tensor, " width"], levels: Float[Tensor, " layer"]) -> Iterator[None]:
    """While open, states at the verdict and at generated tokens have ``levels`` along ``direction``, layer by layer.

    ``levels`` are for layers 1 to L. The component then no longer depends on the case, but keeps a value that
    occurs: if no state is near 0 along the direction, projecting it out moves all states far off distribution.
    Marshall et al. 2024, "Refusal in LLMs is an Affine Function", arXiv 2411.09003.
    """
    units, heights = Copies(_unit(direction).float()), Copies(levels)

    def edit(here: LayerStates) -> Tensor:
        places = here.at("verdict", "generated")
        edited = here.hidden.clone()
        states = edited[places].float()
        unit, level = units.like(states), heights.like(states)[here.layer - 1]
        edited[places] = (without(states, unit) + level * unit).to(edited)
        return edited

    with edit_residual(vlm, edit, layers=range(1, len(levels) + 1)):
        yield


def without(states: Float[Tensor, "*any width"], unit: Float[Tensor, " width"]) -> Float[Tensor, "*any width"]:
    """``states`` minus their component along ``unit``, computed in at least float32, in the dtype of ``states``."""
    exact = states if states.dtype == torch.float64 else states.float()
    unit = unit.to(exact)
    return (exact - (exact @ unit)[..., None] * unit).to(states.dtype)


def _unit(direction: Float[Tensor, " width"]) -> Float[Tensor, " width"]:
    exact = direction.detach().double()
    if not bool(exact.isfinite().all()) or not float(exact.norm()) > 0:
        raise UserError("the direction has no length; it must be finite and not zero; learn it again")
    return exact / exact.norm()
