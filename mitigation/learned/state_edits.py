"""Edits of the residual stream that learned methods make: a direction is removed, or a fitted drift subtracted.

Directional ablation: Arditi et al. 2024, arXiv 2406.11717, section 2.4. With unit direction d, a state x becomes
x − d (d·x). The drift is that of the verdict's state from words to pictures.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from sklearn.linear_model import RidgeCV
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize

from interp.device_copies import Copies
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer, residuals
from interp.vlm import Prompt
from mitigation.method import question_halves
from mitigation.steps import Steps

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
        places = here.indices("verdict", "generated")
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


LAYERS = 6  # that are tried, at most
PENALTIES = tuple(10.0**power for power in range(-2, 6))  # of the map, in mean squared states
States = Float[Tensor, "row width"]


@dataclass(frozen=True, eq=False)
class Correction:
    """What is subtracted from the verdict's state. ``direction`` is a unit vector towards safe, from text.

    A state in words is predicted from one with the picture: ``weight`` (None: the identity) times it plus ``bias``.
    Without ``bias`` it is given, and only the drift's component along ``direction`` is subtracted. ``random`` is the
    unit vector of the control.
    """

    direction: Float[Tensor, " width"]
    weight: Float[Tensor, "width width"] | None = None
    bias: Float[Tensor, " width"] | None = None
    random: Float[Tensor, " width"] | None = None

    def drift(self, states: States, targets: States | None) -> States:
        """Return the whole drift of these states, from ``targets`` if nothing is fitted."""
        if self.bias is not None:
            mapped = states if self.weight is None else states @ self.weight.to(states).T
            targets = mapped + self.bias.to(states)
        assert targets is not None
        return states - targets.to(states)

    def subtracted(self, states: States, targets: States | None) -> States:
        """Return the part of the drift that is subtracted; for the control, as much in its random direction."""
        drift, direction = self.drift(states, targets), self.direction.to(states)
        if self.bias is not None and self.random is None:
            return drift
        size = (drift @ direction)[:, None] if self.bias is None else drift.norm(dim=-1, keepdim=True)
        return size * (direction if self.random is None else self.random.to(states))


@contextmanager
def corrected(
    vlm: "VLM", correction: Correction, layer: int, strength: float, targets: States | None
) -> Iterator[None]:
    """Subtract ``strength`` times the drift from the verdict's state, and as much from every generated token's.

    ``targets`` are the states in words of one batch, for corrections that have nothing fitted.
    """
    drifts: list[States] = []

    def edit(here: LayerStates) -> Tensor:
        if len(here.indices("verdict")[0]):
            drifts[:] = [strength * correction.subtracted(here.mean("verdict"), targets)]
        hidden, where = here.hidden.clone(), here.indices("verdict", "generated")
        if len(where[0]):
            hidden[where] -= drifts[0][where[0]].to(hidden)
        return hidden

    with edit_residual(vlm, edit, layers=[layer]):
        yield


def exchanged(captions: Sequence[str], prompts: Sequence[Prompt], pool: Sequence[str], seed: int) -> list[str]:
    """Return another of the captions of the ``pool`` for each, drawn by the prompt's key.

    Raises:
        UserError: there is no other.
    """
    if len(set(pool)) < 2:
        raise UserError(f"{len(set(pool))} different captions; one is exchanged for another; take more cases")
    draws = [random.Random(f"{seed}:{prompt.key or prompt.text}") for prompt in prompts]
    others = [[other for other in pool if other != caption] for caption in captions]
    return [draw.choice(choices) for draw, choices in zip(draws, others, strict=True)]


def learn_drift(
    vlm: "VLM", prompts: Sequence[Prompt], safe: Sequence[bool], settings: Any
) -> tuple[Correction, dict[str, Any]]:
    """Return the correction of a ``DriftCorrection`` at the best layer, and its description.

    Raises:
        UserError: a layer that the model does not have, or cases that cannot teach it.
    """
    words, labels = settings.words, np.asarray(safe, dtype=bool)
    halves = np.array(question_halves([prompt.text for prompt in prompts], safe, settings.seed))
    tried = np.unique(np.linspace(1, last_layer(vlm), LAYERS).round().astype(int)).tolist()
    layers = tried if settings.layer is None else [settings.layer]

    def described(batch: list[Prompt]) -> list[str]:
        answers = words.descriptions(Steps(vlm, len(batch)), batch)
        return [answers[row] for row in range(len(batch))]

    captions = vlm.batches.gathered(list(prompts), described)
    earlier, visible = sorted(set(captions)), list(prompts)
    in_words = targets = residuals(vlm, words.in_words(prompts, captions), layers=layers)
    if settings.correction == "mean":
        visible = [replace(prompt, image=random_colour(prompt, settings.seed)) for prompt in prompts]
        targets = residuals(vlm, [replace(prompt, image=None) for prompt in prompts], layers=layers)
    elif settings.control == "shuffled":
        others = words.in_words(prompts, exchanged(captions, prompts, earlier, settings.seed))
        targets = residuals(vlm, others, layers=layers)
    pictured = residuals(vlm, visible, layers=layers)

    def fitted(cases: Bool[np.ndarray, " case"], layer: int) -> Correction:
        unsafe, benign = (
            in_words.select("verdict", layer)[cases & (labels == label)].mean(0) for label in (False, True)
        )
        parts = {"direction": normalize(benign - unsafe, dim=0)}
        before, after = (states.select("verdict", layer)[cases] for states in (pictured, targets))
        if settings.correction == "mean":
            parts["bias"] = (after - before).mean(0)
        elif settings.correction == "map":
            parts["weight"], parts["bias"] = ridge_map(before, after)
        if settings.control == "random":
            draw = random.Random(f"{settings.seed}:{layer}")
            parts["random"] = normalize(torch.tensor([draw.gauss(0.0, 1.0) for _ in unsafe]), dim=0)
        return Correction(**parts)

    def area(half: int, layer: int, strength: float) -> float:
        """Return the AUROC of a half of the questions with what was fitted to the other."""
        rows, correction = np.flatnonzero(halves == half), fitted(halves != half, layer)
        cases = [prompts[row] for row in rows.tolist()]

        def score(batch: list[int]) -> Tensor:
            with corrected(vlm, correction, layer, strength, targets.select("verdict", layer)[rows[batch]]):
                return vlm.score([cases[place] for place in batch])

        margins = vlm.batches.measured(cases, score)
        return float(roc_auc_score(labels[rows], margins.numpy()))

    def mean_area(layer: int, strength: float) -> float:
        return (area(0, layer, strength) + area(1, layer, strength)) / 2

    areas = {layer: mean_area(layer, settings.strength) for layer in layers if len(layers) > 1}
    best = max(layers, key=lambda layer: areas.get(layer, 0.0))
    correction = fitted(np.ones(len(labels), dtype=bool), best)
    mean = correction.drift(pictured.select("verdict", best), targets.select("verdict", best)).mean(0)
    return correction, {
        "layer": best,
        "auroc": {f"layer {layer}": found for layer, found in areas.items()} | {"plain": mean_area(best, 0.0)},
        "norm": float(mean.norm()),  # of the mean drift
        "cosine": float(torch.cosine_similarity(mean, correction.direction, dim=0)),
        "captions": earlier if settings.control == "shuffled" else [],
    }


def random_colour(prompt: Prompt, seed: int) -> Image.Image:
    """Return a picture of one random colour, as large as the prompt's, drawn by its key."""
    assert prompt.image is not None
    draw = random.Random(f"{seed}:{prompt.key or prompt.text}:colour")
    return Image.new("RGB", prompt.image.size, tuple(draw.choices(range(256), k=3)))


def ridge_map(states: States, words: States) -> tuple[Float[Tensor, "width width"], Float[Tensor, " width"]]:
    """Fit the affine map from states with pictures to those in words, by ridge regression towards the identity.

    The penalty is on what is added to the states, so that what the cases do not tell stays as it is. It is chosen by
    leaving out one case at a time.
    """
    x, y = states.double().numpy(), (words - states).double().numpy()
    scale = float(((x - x.mean(0)) ** 2).sum(1).mean()) or 1.0
    fitted = RidgeCV(alphas=[scale * penalty for penalty in PENALTIES]).fit(x, y)
    weight = torch.from_numpy(fitted.coef_).float()
    return weight + torch.eye(len(weight)), torch.from_numpy(np.atleast_1d(fitted.intercept_)).float()
