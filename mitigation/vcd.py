"""Visual contrastive decoding as a method: Leng et al. 2023, arXiv 2311.16922.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from interp.errors import UserError
from mitigation.ranges import check_alpha, check_beta, check_noise_step, check_seed

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class VCD:
    """Greedy decoding from (1 + α)·l(image) − α·l(noised image) over the tokens that pass the plausibility cutoff.

    ``alpha`` is the weight of the contrast (0: none), ``beta`` the cutoff relative to the likeliest token (None:
    none), ``noise_step`` how far the second image is diffused (0 to 999). A case's noise depends on its
    ``Prompt.key`` and ``seed`` alone; prompts without a key share theirs. Published settings disagree, so none is
    called the default of the paper.
    """

    alpha: float = 1.0
    beta: float | None = 0.1
    noise_step: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_alpha(self.alpha)
        check_beta(self.beta)
        check_noise_step(self.noise_step)
        check_seed(self.seed)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers; margins are of the contrasted scores before the cutoff, which would make ties.

        UserError where a prompt has no image, and where the processor cannot work on this model (see
        ``VisualContrastiveLogitsProcessor``).
        """
        from mitigation.decoding import VisualContrastiveLogitsProcessor
        from mitigation.noise import diffuse_images

        blind = [prompt.key or prompt.text for prompt in prompts if prompt.image is None]
        if blind:
            raise UserError(f"no image in prompt '{blind[0]}'; VCD contrasts two pictures; ask it with another method")
        encoded = vlm.encode(prompts)
        noised = diffuse_images(encoded, [prompt.key for prompt in prompts], step=self.noise_step, seed=self.seed)
        processor = VisualContrastiveLogitsProcessor(vlm.model, noised, alpha=self.alpha, beta=self.beta)
        generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor], encoded=encoded)
        return replace(generation, margins=vlm.margin(processor.first_scores).cpu())
