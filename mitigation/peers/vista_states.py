"""VISTA's two parts (arXiv 2502.03628): the visual steering vector, and the logits of the layers before the last."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer
from interp.measured_numbers import after_head

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


@contextmanager
def steered_by_picture(
    vlm: "VLM", prompts: "Sequence[Prompt]", strength: float, *, window: int
) -> "Iterator[EarlierLayers]":
    """While open, answers to ``prompts`` are steered. The branch gives the logits of the ``window`` layers.

    Raises:
        UserError: there are fewer layers before the last, or (unless ``strength`` is 0) the family does not support
            prompts without a picture.
    """
    last = last_layer(vlm)
    if window > last - 1:
        raise UserError(
            f"window={window}; {vlm.name} has {last - 1} layers before the last; choose a window of at most {last - 1}"
        )
    vectors = visual_vectors(vlm, prompts) if strength else {}
    branch = EarlierLayers(vlm, vectors, strength, range(last - window, last))
    layers = range(1, last + 1) if strength else range(last - window, last)
    if not layers:
        yield branch
        return
    with edit_residual(vlm, branch.edit, layers=layers):
        yield branch


def visual_vectors(vlm: "VLM", prompts: "Sequence[Prompt]") -> dict[int, Float[Tensor, "row width"]]:
    """By layer (from 1): the state at the last column of each prompt, with its picture less without; float32.

    Raises:
        UserError: the family does not support prompts without a picture.
    """
    blind = [replace(prompt, image=None) for prompt in prompts]
    found: list[dict[int, Tensor]] = []
    for asked in (blind, prompts):  # a family that cannot answer without a picture says so before any forward
        found.append({})

        def keep(here: LayerStates) -> None:
            found[-1][here.layer] = here.hidden[here.at("verdict")].float()

        with edit_residual(vlm, keep, layers=range(last_layer(vlm) + 1)):
            vlm.score(asked)
    before: dict[int, Tensor] = {}
    for layer in range(last_layer(vlm) + 1):  # Llama 3.2 Vision skips its cross-attention layers without a picture
        before[layer] = found[0][layer] if layer in found[0] else before[layer - 1]
    return {layer: state - before[layer].to(state.device) for layer, state in found[1].items() if layer}


class EarlierLayers:
    """The edit, and a branch (``mitigation.contrastive.processors.Branch``) without forwards of its own."""

    def __init__(
        self, vlm: "VLM", vectors: dict[int, Float[Tensor, "row width"]], strength: float, layers: Sequence[int]
    ) -> None:
        self._vlm, self._vectors, self._strength, self._layers = vlm, vectors, strength, layers
        self._states: dict[int, Tensor] = {}

    def edit(self, here: LayerStates) -> Tensor:
        """Return the steered states, as long as they were."""
        hidden = here.hidden
        if here.layer in self._vectors:
            before = hidden.float()
            moved = before + self._strength * self._vectors[here.layer][:, None]
            length = moved.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            hidden = (moved * (before.norm(dim=-1, keepdim=True) / length)).to(hidden.dtype)
        if here.layer in self._layers:
            self._states[here.layer] = hidden[:, -1]
        return hidden

    def start(self) -> Float[Tensor, "row vocab"]:
        """Return the logits after the prompt."""
        return self._logits()

    def extend(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row vocab"]:
        """Return the logits after the tokens that the model has just been fed."""
        return self._logits()

    @torch.no_grad()
    def _logits(self) -> Float[Tensor, "row vocab"]:
        """Return the mean of the layers' logits, float32, on the device of the inputs, scaled and capped as usual."""
        vlm, layout = self._vlm, self._vlm.layout
        device = next(layout.module(vlm.model, "final_norm").parameters()).device  # that of the head
        head, scaled = layout.module(vlm.model, "lm_head"), after_head(vlm.model, layout)
        each = [scaled(head(self._states[layer].to(device)).float()).to(vlm.device) for layer in self._layers]
        return torch.stack(each).mean(0)
