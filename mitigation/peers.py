"""ICD (arXiv 2403.18715), M3ID (arXiv 2403.14003) and PAI (arXiv 2407.21771) at their published settings.

Each docstring notes where sources disagree. All three were published for image captioning and for yes/no questions
about objects, mostly with sampling; here they decode greedily.

Importing this module loads neither torch nor transformers; generating does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from interp.errors import UserError
from mitigation.branches import BranchLogits, BranchMethod, Contrast, Inputs
from mitigation.method import INSIDE, check_alpha, check_beta, check_count, check_number
from mitigation.prior_correction import prior_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt

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
