"""Published methods to compare with: AGLA, ICD (arXiv 2403.18715), M3ID (2403.14003) and PAI (2407.21771).

AGLA adds the scores of the full picture and of its parts that matter to the question. The others have their published
settings; each docstring notes where sources disagree. They were published for image captioning and for yes/no questions
about objects, mostly with sampling; here they decode greedily.

Importing this module loads neither torch nor transformers; generating does.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from interp.errors import UserError
from mitigation.branches import BranchLogits, BranchMethod, Contrast, Inputs
from mitigation.method import INSIDE, Work
from mitigation.prior_correction import prior_inputs
from mitigation.validation import check_alpha, check_beta, check_count, check_number

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from interp.image_grid import Box
    from interp.vlm import VLM, Generation, Prompt

SIDE = 384
"""The mask is computed on a picture of this width and height, as in the authors' code."""
BLUR = 0.02
"""Standard deviation of the blur of the map, relative to ``SIDE``; also of their code."""


@dataclass(frozen=True)
class AGLA(BranchMethod):
    """AGLA's decoding (An et al., CVPR 2025, arXiv 2406.12718): f + α·f′, f′ with all but the matching parts black.

    In the paper a separate matching model (BLIP's image-text matching, with GradCAM) says which parts of the picture
    match the question. Its score says how much of the picture stays. **That model is not here.** The model's own
    attention replaces it. It is the mean over all layers and heads of the attention of the prompt's last token on the
    image tokens. So this is AGLA's rule with another map, not the published method; do not report it as AGLA's number.

    ``keep`` is the share of the picture's area that stays, where the map is highest. In the code it is 1 minus half of
    the matching score, by case. 0.8 corresponds to a score of 0.4, and is our choice. Like the code, the map is brought
    to 384 × 384, blurred, and the rest made black. α = 2 (``alpha``) and the cutoff β = 0.5 are from the authors'
    scripts for POPE (github.com/Lackel/AGLA). The authors sample; here it is greedy. The paper's equation numbers could
    not be checked.
    """

    alpha: float = 2.0
    beta: float | None = 0.5
    keep: float = 0.8
    work: ClassVar[Work] = Work(prompts=3, branches=2)  # the first forward says which parts match
    pictured: ClassVar[str] = "AGLA shows parts of it"
    other: ClassVar[str] = "matching_parts"

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0.0)
        check_beta(self.beta)
        check_number("keep", self.keep, 0.0, 1.0, hint="0 keeps nothing")

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs with all but the matching parts black; none at α = 0.

        Raises:
            UserError: the family's image tokens have no position in the picture.
        """
        if not self.alpha:
            return []
        maps = own_attention(vlm, prompts)
        return [
            vlm.encode(
                [prompt.with_images(partial(self._parts, iter(m))) for prompt, m in zip(prompts, maps, strict=True)]
            )
        ]

    def _parts(self, maps: "Iterator[tuple[np.ndarray, Box]]", image: "Image.Image") -> "Image.Image":
        """Return the picture with all but the matching parts black, by the next of its prompt's ``maps``."""
        return masked(image, largest(over_picture(*next(maps)), self.keep))

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return f + α·f′."""
        return logits.clean + self.alpha * logits.others[0]


def own_attention(vlm: "VLM", prompts: "Sequence[Prompt]") -> "list[list[tuple[np.ndarray, Box]]]":
    """Return the attention of each prompt's last token on each picture, and what part of the picture it covers.

    It is the mean over layers and heads.

    Raises:
        UserError: image tokens without a position in the picture, or with an unknown position.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import patch_map

    vlm.module_map.require_places(vlm.name)
    with record_attention(vlm, queries=Queries.VERDICT, maps=Queries.VERDICT) as record:
        vlm.score(prompts)
    maps = []
    for entry in record.maps:
        weights = entry.weights.mean((0, 1))
        grids = {grid.name.partition(":")[2]: grid for grid in reversed(record.rows[entry.row].grids)}  # the first
        if not grids:
            raise UserError(
                f"agla needs a map over the picture, but the positions of the image tokens of {vlm.name} are unknown; "
                "choose another method"
            )
        ordered = [grids[number] for number in sorted(grids, key=lambda number: int(number or 1))]
        maps.append([(patch_map(weights, grid).double().numpy(), grid.box) for grid in ordered])
    return maps


def over_picture(values: Float[np.ndarray, "height width"], box: "Box") -> Float[np.ndarray, "side side"]:
    """Return the map over the whole picture, ``SIDE`` pixels wide and high, by cubic interpolation; then blurred.

    What the map does not cover gets the value at its nearest edge.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    left, top, right, bottom = box
    middles = (np.arange(SIDE) + 0.5) / SIDE
    rows = (middles - top) / (bottom - top) * values.shape[0] - 0.5
    columns = (middles - left) / (right - left) * values.shape[1] - 0.5
    spread = map_coordinates(values.astype(np.float64), np.meshgrid(rows, columns, indexing="ij"), mode="nearest")
    return gaussian_filter(spread, BLUR * SIDE)


def largest(values: Float[np.ndarray, "height width"], keep: float) -> Bool[np.ndarray, "height width"]:
    """Return True at the share ``keep`` of pixels with the highest values; ties with the last one stay too."""
    count = round(keep * values.size)
    if not count:
        return np.zeros(values.shape, dtype=bool)
    return values >= np.partition(values.ravel(), -count)[-count]


def masked(image: "Image.Image", mask: Bool[np.ndarray, "height width"]) -> "Image.Image":
    """Return the picture at its own size, black where the mask, stretched over it, is False."""
    from PIL import Image

    from interp.pictures import as_seen

    stretched = Image.fromarray((mask * np.uint8(255)).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(as_seen(image), Image.new("RGB", image.size), stretched)


DISTURBANCE = "You are a confused objects detector to provide a fuzzy overview or impression of the image."
"""One of the five role prefixes of ICD's code for LLaVA; its re-implementations quote this one in shortened form."""


@dataclass(frozen=True)
class InstructionContrast(Contrast):
    """ICD (Wang et al. 2024, arXiv 2403.18715): (1 + α)·l − α·l′, l′ under a disturbing instruction.

    Picture and question stay; ``disturbance`` is the system prompt of l′, in place of the prompt's own. ``alpha`` = 1
    and the cutoff ``beta`` = 0.1 are the defaults of the authors' script for LLaVA (github.com/p1k0pan/ICD,
    ``icd_llava_pope.py``). Their sampling function falls back to α = 0.5. Sources disagree: that code weights the clean
    logits by 1 + α, as VCD does, while others read the paper as l − λ·l′ with λ = 1; we follow the code. For
    InstructBLIP the authors pass the disturbance to the Q-Former instead, which is not implemented here.
    """

    disturbance: str = DISTURBANCE
    uncut: ClassVar[bool] = True
    pictured: ClassVar[str] = "ICD is about what an instruction makes of a picture"
    other: ClassVar[str] = "disturbed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.disturbance.strip():
            raise UserError("disturbance=''; ICD contrasts with another instruction; give it some words")

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs under the disturbing instruction.

        Raises:
            UserError: the family has no system prompt.
        """
        return [vlm.encode([replace(prompt, system=self.disturbance) for prompt in prompts])]


@dataclass(frozen=True)
class M3ID(BranchMethod):
    """M3ID (Favero et al. 2024, arXiv 2403.14003, algorithm 1): l_c + 1[max p_c < θ]·(e^{λt} − 1)·(l_c − l_u).

    l are log-probabilities with (c) and without (u) the picture; ``forgetting`` is λ = 0.02, ``threshold`` θ = 0.3 (the
    paper's α), and t counts from 1 at the first token. Hence **it has almost no effect on a verdict**: the weight there
    is e^{0.02} − 1 = 0.0202 (0 if t counts from 0). If a model is at least 30% sure of its first token, nothing is
    corrected. Sources disagree: the re-implementations in AvisC's and later code have no threshold but use VCD's cutoff
    of 0.1; set ``threshold=1.0`` and ``beta=0.1`` to match them.
    """

    forgetting: float = 0.02
    threshold: float = 0.3
    beta: float | None = None
    pictured: ClassVar[str] = "M3ID compares the answers with and without it"
    other: ClassVar[str] = "no_picture"

    def __post_init__(self) -> None:
        check_beta(self.beta)
        check_number("forgetting", self.forgetting, 0.0, 10.0)
        check_number("threshold", self.threshold, 0.0, 1.0)

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs without pictures; none where nothing is corrected.

        Raises:
            UserError: the family does not support prompts without a picture.
        """
        if not (self.forgetting and self.threshold):
            return []
        return prior_inputs(vlm, prompts, "none", pictures=1, seed=0)

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return l_c + 1[max p_c < θ]·(1 − γ)/γ·(l_c − l_u), γ = exp(−λt)."""
        seen, unseen = logits.clean.log_softmax(-1), logits.others[0].log_softmax(-1)
        weight = math.expm1(self.forgetting * (1 + step))  # (1 − γ) / γ
        unsure = seen.amax(-1, keepdim=True) < math.log(self.threshold)
        return (seen + weight * (seen - unseen)).where(unsure, seen)


@dataclass(frozen=True)
class PAI(BranchMethod):
    """PAI (Liu et al. 2024, arXiv 2407.21771): raises attention to the picture, and subtracts the text-only logits.

    Attention logits A on image tokens become A + ``alpha``·|A| at the prompt's last and the generated tokens, in the
    layers from ``first_layer`` on. Scores are γ·log p(picture) − (γ − 1)·log p(only text), with γ = ``gamma``, over the
    tokens above the cutoff ``beta``. α = 0.2, γ = 1.1, layers 2 to 32 and β = 0.1 are the authors' commands for POPE
    and CHAIR on 7B models. They are in README and ``CFG.py`` of github.com/LALBJ/PAI; the script's default for γ is 2.
    Sources disagree: the paper's equation uses probabilities, the code log-probabilities; we follow the code. The
    second branch is not steered, as in the code. For a model with few layers, choose a lower ``first_layer``.
    """

    alpha: float = 0.2
    gamma: float = 1.1
    first_layer: int = 2
    beta: float | None = 0.1
    needs: ClassVar[str] = INSIDE
    pictured: ClassVar[str] = "PAI raises the attention that it gets"
    other: ClassVar[str] = "no_picture"

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_beta(self.beta)
        check_number("gamma", self.gamma, 1.0, hint="1 means no guidance")
        check_count("first_layer", self.first_layer, 0, hint="0 steers all layers")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers with margins by this rule, before the cutoff.

        Raises:
            UserError: the family has no image tokens in its sequence, does not support prompts without a picture, or
                has too few layers.
        """
        from mitigation.attention_edit import steer_attention

        layers = [layer for layer in vlm.module_map.attentions(vlm.model) if layer >= self.first_layer]
        if not layers:
            raise UserError(f"first_layer={self.first_layer}; {vlm.name} has fewer layers; choose an earlier one")
        with steer_attention(vlm, self.alpha, layers=layers, relative=True):
            return super().generate(vlm, prompts, max_new_tokens=max_new_tokens)

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs without pictures; none at γ = 1."""
        return [] if self.gamma == 1 else prior_inputs(vlm, prompts, "none", pictures=1, seed=0)

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return γ·log p(picture) − (γ − 1)·log p(only text)."""
        return self.gamma * logits.clean.log_softmax(-1) - (self.gamma - 1) * logits.others[0].log_softmax(-1)
