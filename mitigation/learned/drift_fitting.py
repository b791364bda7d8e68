"""The drift of states from words to pictures: what is fitted, how a setting is chosen, and the edit that takes it off.

A drift is measured at the mean over a place and subtracted from all its columns. In words, what stands where the image
stood is the question itself.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from sklearn.linear_model import RidgeCV
from sklearn.metrics import roc_auc_score
from torch import Tensor

from interp.device_copies import Copies
from interp.errors import UserError
from interp.hooks.residual import LayerStates, Place, Residuals, edit_residual, last_layer, place_name, residuals
from interp.segments import IMAGE, RowSegments
from interp.tensor_file import NamedTensors
from mitigation.steps import Steps
from mitigation.validation import question_halves
from mitigation.wrappers import unwrapped

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

LAYERS = 6  # that are tried, at most
STRENGTHS = (0.5, 2.0)  # tried where the drift taken off once does best
CHOOSING = 128  # cases that a setting is chosen on, at most
COLOURED = 128  # pictures of random colours, at most
PENALTIES = tuple(10.0**power for power in range(-2, 6))  # of the map, in mean squared states

Cell = tuple[str, int]
"""A place, by name, and a layer of the residual stream."""
Targets = Mapping[Cell, Float[Tensor, "row width"]]
"""The states in words that captions bring the cases to."""


def behind(row: RowSegments) -> list[int]:
    """The columns behind the picture, or from the question on where there is none, without the last."""
    start = max((column for column, label in enumerate(row.labels) if label == IMAGE), default=-1) + 1
    start = start or row.labels.index("user")
    return [column for column in range(start, len(row.labels) - 1) if row.labels[column] != "padding"]


PLACES: dict[str, tuple[Place, ...]] = {"image": ("image",), "after": (behind, "verdict"), "last": ("verdict",)}
"""Where each of the ``positions`` is corrected."""
BY_NAME: dict[str, Place] = {str(place_name(place)): place for places in PLACES.values() for place in places}
IN_WORDS = {"image": "user"}  # the place in words of a place with the picture, where it is another


@dataclass(frozen=True, eq=False)
class Correction:
    """What is taken off at one place and layer. ``direction`` is a unit vector towards safe, from text alone.

    ``vector`` is the drift of every case; else ``weight`` and ``bias`` predict a state in words; else that is given.
    ``random`` is the unit vector of the control.
    """

    part: str
    direction: Float[Tensor, " width"]
    vector: Float[Tensor, " width"] | None = None
    weight: Float[Tensor, "width width"] | None = None
    bias: Float[Tensor, " width"] | None = None
    random: Float[Tensor, " width"] | None = None
    _copies: dict[str, Copies] = field(default_factory=dict, repr=False)

    def drift(
        self, states: Float[Tensor, "row width"], target: Float[Tensor, "row width"] | None
    ) -> Float[Tensor, "row width"]:
        """The whole drift of these states (means over the place), from ``target`` where nothing is fitted."""
        if self.vector is not None:
            return self._like("vector", states).expand_as(states)
        if self.weight is not None:
            return states - (states @ self._like("weight", states).T + self._like("bias", states))
        assert target is not None
        return states - target.to(states)

    def taken(
        self, states: Float[Tensor, "row width"], target: Float[Tensor, "row width"] | None
    ) -> Float[Tensor, "row width"]:
        """The part of the drift that is taken off; of the control, as much in its own direction."""
        drift, direction = self.drift(states, target), self._like("direction", states)
        along = (drift @ direction)[:, None]
        if self.part == "along":
            return along * (direction if self.random is None else self._like("random", states))
        kept = drift if self.part == "whole" else drift - along * direction
        return kept if self.random is None else kept.norm(dim=-1, keepdim=True) * self._like("random", states)

    def _like(self, name: str, states: Tensor) -> Tensor:
        return self._copies.setdefault(name, Copies(getattr(self, name))).like(states)


class DriftEdit:
    """The edit of one batch: at each place ``strength`` times its drift is subtracted, after the verdict the verdict's.

    ``targets`` are those of the batch, for corrections that have nothing fitted.
    """

    def __init__(self, corrections: Mapping[Cell, Correction], strength: float, targets: Targets | None = None) -> None:
        self.corrections, self.strength, self.targets = corrections, strength, targets
        self._taken: dict[Cell, Tensor] = {}

    def edit(self, here: LayerStates) -> Tensor:
        """Of ``interp.hooks.residual.edit_residual``."""
        hidden = here.hidden.clone()
        for cell, correction in self.corrections.items():
            name, layer = cell
            if layer != here.layer:
                continue
            rows, columns = here.at(BY_NAME[name])
            if len(rows):
                target = None if self.targets is None else self.targets[cell]
                taken = correction.taken(here.mean(BY_NAME[name]), target)
                self._taken[cell] = (self.strength * taken).nan_to_num(0.0)
                hidden[rows, columns] -= self._taken[cell][rows].to(hidden)
            if name == "verdict":
                rows, columns = here.at("generated")
                if len(rows):
                    hidden[rows, columns] -= self._taken[cell][rows].to(hidden)
        return hidden


def corrections_of(learned: NamedTensors) -> dict[Cell, Correction]:
    """The corrections of a learned file, by place and layer."""
    found: dict[Cell, dict[str, Any]] = {}
    for key, tensor in learned.tensors.items():
        name, place, layer = key.split()
        found.setdefault((place, int(layer)), {})[name] = tensor
    return {cell: Correction(learned.about["part"], **parts) for cell, parts in found.items()}


def states_in_words(
    vlm: "VLM", prompts: "Sequence[Prompt]", settings: Any, about: Mapping[str, Any], steps: Steps
) -> Targets:
    """The states of a batch with its captions in the sentences and no picture; what is asked for it is noted."""
    said = settings.words.descriptions(steps, prompts)
    descriptions = [said.get(row, "") for row in range(len(prompts))]
    if settings.control == "shuffled":
        descriptions = exchanged(descriptions, prompts, about["descriptions"], settings.seed)
    words = [settings.words.last_question(*one).prompt for one in zip(prompts, descriptions, strict=True)]
    places = PLACES[about["positions"]]
    read = residuals(unwrapped(vlm), words, places=in_words(places), layers=about["layers"])
    return targets_of(read, places, about["layers"])


def in_words(places: Sequence[Place]) -> list[Place]:
    """Where these places are in a question without a picture."""
    return [IN_WORDS.get(str(place_name(place)), place) for place in places]


def targets_of(read: Residuals, places: Sequence[Place], layers: Sequence[int]) -> Targets:
    """The states in words by the cells that they are the targets of."""
    return {
        (str(place_name(place)), layer): read.at(own, layer)
        for place, own in zip(places, in_words(places), strict=True)
        for layer in layers
    }


def exchanged(descriptions: Sequence[str], prompts: "Sequence[Prompt]", known: Sequence[str], seed: int) -> list[str]:
    """Another of the ``known`` descriptions for each, drawn by the prompt's key.

    Raises:
        UserError: there is no other.
    """
    if len(set(known)) < 2:
        raise UserError(f"{len(set(known))} different captions; one is exchanged for another; take more cases")
    others = [[one for one in known if one != own] for own in descriptions]
    return [
        random.Random(f"{seed}:{prompt.key or prompt.text}").choice(some)
        for prompt, some in zip(prompts, others, strict=True)
    ]


def learn_drift(
    vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], settings: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a learned drift correction, of cases with pictures.

    Raises:
        UserError: a layer or image tokens that the model does not have, or cases that cannot teach it.
    """
    lesson = Lesson(vlm, prompts, safe, settings)
    positions, layers, strength, tried = lesson.choose()
    corrections = lesson.fitted(range(len(prompts)), positions, layers)
    tensors = {
        f"{name} {place} {layer}": tensor
        for (place, layer), one in corrections.items()
        for name in ("direction", "vector", "weight", "bias", "random")
        if (tensor := getattr(one, name)) is not None
    }
    about = {
        "positions": positions,
        "layers": list(layers),
        "strength": strength,
        "part": settings.taken,
        "correction": settings.correction,
        "control": settings.control,
        "n": len(prompts),
        "width": int(corrections[next(iter(corrections))].direction.numel()),
        "auroc": tried,
        **lesson.about(corrections),
    }
    return tensors, about


class Lesson:
    """The teaching cases of one drift correction, and the states that were read of them."""

    def __init__(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], settings: Any) -> None:
        self.vlm, self.prompts, self.settings = vlm, list(prompts), settings
        self.safe = np.asarray(safe, dtype=bool)
        self.half = np.array(question_halves([prompt.text for prompt in prompts], safe, settings.seed))
        self.layers = settings.layers or tried_layers(last_layer(vlm))
        self.positions = [settings.positions] if settings.positions else self._known_positions()
        self.places = list(dict.fromkeys(place for name in self.positions for place in PLACES[name]))
        words = settings.words

        def described(some: "list[Prompt]") -> list[str]:
            said = words.descriptions(Steps(vlm, len(some)), some)
            return [said[row] for row in range(len(some))]

        own = vlm.batches.gathered(self.prompts, described)
        self.descriptions = sorted(set(own))
        self.in_words = self._states([words.last_question(*one).prompt for one in zip(prompts, own, strict=True)])
        self.targets = self.in_words
        if settings.control == "shuffled":
            other = exchanged(own, prompts, self.descriptions, settings.seed)
            exchange = [words.last_question(*one).prompt for one in zip(prompts, other, strict=True)]
            self.targets = self._states(exchange)
        self.coloured_at = self._shuffled_questions()[:COLOURED] if settings.correction == "mean" else []
        self.coloured = [
            replace(prompts[at], image=random_colour(prompts[at], settings.seed)) for at in self.coloured_at
        ]
        self.bare = self._states([replace(one, image=None) for one in self.coloured]) if self.coloured else {}
        self._plain: dict[str, Mapping[Cell, Tensor]] = {}

    def choose(self) -> tuple[str, tuple[int, ...], float, dict[str, float]]:
        """Positions, layers and strength, and the AUROC of every setting that was tried."""
        given = self.settings.strength
        groups = [self.settings.layers] if self.settings.layers else [(layer,) for layer in self.layers]
        last = last_layer(self.vlm)  # behind which no other column is read
        settings = [
            (positions, layers, 1.0 if given is None else given)
            for positions in self.positions
            for layers in groups
            if self.settings.layers or positions == "last" or layers[-1] < last or last == 1
        ]
        if len(settings) == 1 and given is not None:
            return (*settings[0], {})
        rows = [self._choosing(half) for half in (0, 1)]
        found = {one: self._auroc(*one, rows) for one in settings}
        best = max(found, key=lambda one: found[one])
        if given is None:
            found |= {one: self._auroc(*one, rows) for strength in STRENGTHS if (one := (*best[:2], strength))}
        best = max(found, key=lambda one: found[one])
        plain = self._mean_auroc(rows, lambda _: {}, 0.0)
        named = {
            f"{positions}, layer {'+'.join(map(str, layers))}, strength {strength:g}": auroc
            for (positions, layers, strength), auroc in found.items()
        }
        return (*best, {"plain": plain} | named)

    def fitted(self, rows: Sequence[int], positions: str, layers: Sequence[int]) -> dict[Cell, Correction]:
        """The corrections at each place and layer, fitted to the cases ``rows``; each layer after those before it."""
        settings, found = self.settings, dict[Cell, Correction]()
        rows = list(rows)
        for layer in sorted(layers):
            pictured = self._pictured(found)
            for place in map(str, map(place_name, PLACES[positions])):
                cell = (place, layer)
                made: dict[str, Any] = {"direction": self._direction(rows, layer)}
                if settings.correction == "mean":
                    here = [number for number, at in enumerate(self.coloured_at) if at in set(rows)]
                    made["vector"] = (pictured[cell] - self.bare[cell])[here].nanmean(0)
                elif settings.correction == "map":
                    made["weight"], made["bias"] = ridge_map(pictured[cell][rows], self.targets[cell][rows])
                if settings.control == "random":
                    made["random"] = random_unit(made["direction"].numel(), f"{settings.seed}:{place}:{layer}")
                found[cell] = Correction(settings.taken, **made)
        return found

    def about(self, corrections: Mapping[Cell, Correction]) -> dict[str, Any]:
        """What a learned file says of the drift and of the direction at the corrected cells."""
        drifts = {}
        plain = self._pictured({}) if self.settings.correction != "caption" else self._states(self.prompts)
        for cell, one in corrections.items():
            drift = one.drift(plain[cell], self.targets.get(cell))
            mean = drift.nanmean(0)
            drifts[f"{cell[0]} {cell[1]}"] = {
                "norm": float(mean.norm()),
                "states": float(plain[cell].norm(dim=-1).nanmean()),
                "cosine": float(mean @ one.direction / mean.norm().clamp(min=1e-12)),
            }
        directions = {str(layer): self._direction_auroc(layer) for layer in sorted({layer for _, layer in corrections})}
        found: dict[str, Any] = {"drift": drifts, "direction": directions}
        return found | ({"descriptions": self.descriptions} if self.settings.control == "shuffled" else {})

    def _known_positions(self) -> list[str]:
        try:
            self.vlm.layout.require_image_tokens(self.vlm.name)
        except UserError:  # of a family that reads the picture by cross-attention
            return [name for name in PLACES if name != "image"]
        return list(PLACES)

    def _states(self, prompts: "Sequence[Prompt]") -> dict[Cell, Tensor]:
        """By place and layer the states of prompts, at the places of words where they have no picture."""
        if not prompts:
            return {}
        bare = prompts[0].image is None
        places = list(dict.fromkeys([*(in_words(self.places) if bare else self.places), "verdict"]))
        read = residuals(unwrapped(self.vlm), prompts, places=places, layers=self.layers)
        names = {str(place_name(place)): place for place in self.places} | {"verdict": "verdict"}
        return {
            (name, layer): read.at(IN_WORDS.get(name, place) if bare else place, layer)
            for name, place in names.items()
            for layer in self.layers
        }

    def _pictured(self, corrections: Mapping[Cell, Correction]) -> Mapping[Cell, Tensor]:
        """The states with pictures (of random colours for the mean) while ``corrections`` are made once."""
        if self.settings.correction == "caption":
            return {}
        key = " ".join(map(str, sorted(corrections)))
        if key not in self._plain or corrections:
            prompts = self.coloured or self.prompts
            if not corrections:
                self._plain[key] = self._states(prompts)
            else:
                edit = DriftEdit(corrections, 1.0)
                with edit_residual(self.vlm, edit.edit, layers=sorted({layer for _, layer in corrections})):
                    return self._states(prompts)
        return self._plain[key]

    def _direction(self, rows: Sequence[int], layer: int) -> Float[Tensor, " width"]:
        """From unsafe to safe in words at the verdict: a unit vector."""
        states, safe = self.in_words["verdict", layer][list(rows)], torch.from_numpy(self.safe[list(rows)])
        vector = states[safe].mean(0) - states[~safe].mean(0)
        return vector / vector.norm().clamp(min=1e-12)

    def _direction_auroc(self, layer: int) -> float:
        """How well the direction of one half's questions tells the other's cases apart, in words."""
        found = []
        for half in (0, 1):
            own, other = ((self.half == side).nonzero()[0] for side in (half, 1 - half))
            along = self.in_words["verdict", layer][own] @ self._direction(other.tolist(), layer)
            found.append(float(roc_auc_score(self.safe[own], along.numpy())))
        return sum(found) / 2

    def _shuffled_questions(self) -> list[int]:
        """The cases, a question's together, questions in a random order."""
        order = list(dict.fromkeys(prompt.text for prompt in self.prompts))
        random.Random(f"{self.settings.seed}:questions").shuffle(order)
        place = {text: at for at, text in enumerate(order)}
        return sorted(range(len(self.prompts)), key=lambda at: place[self.prompts[at].text])

    def _choosing(self, half: int) -> list[int]:
        """The cases of one half that settings are compared on: as many safe as unsafe, where there are."""
        own = [at for at in self._shuffled_questions() if self.half[at] == half]
        sides = [[at for at in own if self.safe[at] == label] for label in (True, False)]
        return sorted(at for side in sides for at in side[: CHOOSING // 4])

    def _auroc(self, positions: str, layers: Sequence[int], strength: float, rows: Sequence[list[int]]) -> float:
        """The mean AUROC of the halves, each with what was fitted to the other."""

        def fit(half: int) -> dict[Cell, Correction]:
            return self.fitted((self.half != half).nonzero()[0].tolist(), positions, layers)

        return self._mean_auroc(rows, fit, strength)

    def _mean_auroc(
        self, rows: Sequence[list[int]], fit: "Callable[[int], Mapping[Cell, Correction]]", strength: float
    ) -> float:
        found = []
        for half, own in enumerate(rows):
            margins = self._margins(own, fit(half), strength)
            found.append(float(roc_auc_score(self.safe[own], margins.numpy())))
        return sum(found) / 2

    def _margins(
        self, rows: Sequence[int], corrections: Mapping[Cell, Correction], strength: float
    ) -> Float[Tensor, " row"]:
        prompts = [self.prompts[at] for at in rows]
        if not corrections or not strength:
            return self.vlm.batches.scores(prompts)

        def score(some: list[int]) -> Tensor:
            own = [rows[at] for at in some]
            targets = {cell: states[own] for cell, states in self.targets.items()}
            edit = DriftEdit(corrections, strength, targets)
            with edit_residual(self.vlm, edit.edit, layers=sorted({layer for _, layer in corrections})):
                return self.vlm.score([prompts[at] for at in some])

        return self.vlm.batches.measured(prompts, score, of=repr((sorted(corrections), strength)))


def tried_layers(last: int) -> tuple[int, ...]:
    """The layers that are tried: the first, and evenly up to the last."""
    return tuple(sorted({1, *(max(1, round(last * step / (LAYERS - 1))) for step in range(1, LAYERS))}))


def random_colour(prompt: "Prompt", seed: int) -> Image.Image:
    """A picture of one random colour, as large as the prompt's, drawn by its key."""
    assert prompt.image is not None
    draw = random.Random(f"{seed}:{prompt.key or prompt.text}:colour")
    return Image.new("RGB", prompt.image.size, tuple(draw.randrange(256) for _ in range(3)))


def random_unit(width: int, seed: str) -> Float[Tensor, " width"]:
    """A unit vector drawn uniformly from the sphere."""
    drawn = torch.randn(width, generator=torch.Generator().manual_seed(random.Random(seed).randrange(2**31)))
    return drawn / drawn.norm()


def ridge_map(
    states: Float[Tensor, "row width"], words: Float[Tensor, "row width"]
) -> tuple[Float[Tensor, "width width"], Float[Tensor, " width"]]:
    """The affine map from states with pictures to those in words, by ridge regression.

    Towards the identity, so that what the cases do not tell stays as it is: the penalty, chosen by leaving out one case
    at a time, is on what is added to the states.
    """
    kept = ~(states.isnan().any(1) | words.isnan().any(1))
    x, y = states[kept].double().numpy(), (words - states)[kept].double().numpy()
    scale = float(((x - x.mean(0)) ** 2).sum(1).mean()) or 1.0
    fitted = RidgeCV(alphas=[scale * penalty for penalty in PENALTIES]).fit(x, y)
    weight = torch.from_numpy(fitted.coef_).float()
    return weight + torch.eye(len(weight)), torch.from_numpy(np.atleast_1d(fitted.intercept_)).float()
