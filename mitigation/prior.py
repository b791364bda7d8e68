"""Prior correction: what the picture adds to what the sentence alone would have been answered.

A verdict's margin less the margin that the sentence has without its picture; free text token by token. Visual
contrastive decoding, (1 + α)·l − α·l′, keeps one whole prior in whatever α is, beside 1 + α times what the picture
adds; here a weight of 1 removes it. (Over the same second picture, a weight w < 1 therefore ranks cases as VCD with
α = w / (1 − w) does, without a cutoff: the published α = 1 is a weight of a half.) A weight of 1 scores by pointwise
mutual information, as Holtzman et al. 2021 (arXiv 2104.08315) do for answers to choose from, with the picture as the
condition. ``mitigation.prior_share`` says beforehand whether it can help. Importing this module loads neither torch nor
transformers; generating does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.ranges import check_beta, check_prior, check_seed, check_shift, check_weight
from mitigation.shifted import with_shift

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt

GREY = (127, 127, 127)
NOISE_STEP = 999


@dataclass(frozen=True)
class PriorCorrection:
    """Greedy answers by log p(token | picture) − ``weight`` × log p(token | ``prior``), over the plausible tokens.

    Where the model's likeliest first token is Yes or No, the answer is one of them by the corrected margin: the margin
    with the picture less ``weight`` × the mean margin of the prior's pictures, plus ``shift``. ``beta`` is the cutoff
    relative to the likeliest token (None: none), as in ``mitigation.vcd.VCD``; it does not hold between the two
    answers. A weight of 0 is the model as it is.

    ``prior`` is what stands in the picture's place, at its size: ``none`` (no picture; families that cannot be asked so
    refuse), ``blank`` (mid-grey), ``noise`` (the blank one diffused as far as VCD's schedule goes, so that nothing of
    the case's own picture is left), ``neutral`` (drawn shapes, the same for every case) or ``swapped`` (drawn shapes,
    by the case's key). Of the last three the mean over ``pictures`` is taken, each a forward of its own per token.
    ``seed`` draws noise and swapped pictures.
    """

    weight: float = 1.0
    prior: str = "blank"
    pictures: int = 4
    beta: float | None = 0.1
    seed: int = 0
    shift: float = 0.0

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_weight(self.weight, least=0.0)
        check_prior(self.prior, self.pictures)
        check_beta(self.beta)
        check_seed(self.seed)
        check_shift(self.shift)

    @property
    def yes_no_only(self) -> bool:
        """A shift is of a verdict; without one any answer can be corrected."""
        return bool(self.shift)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers with corrected margins.

        UserError where a prompt has no image, where the family cannot be asked without one (``none``) or contrasted at
        all.
        """
        return with_shift(vlm, self.shift, lambda v: self._corrected(v, prompts, max_new_tokens))

    def _corrected(self, vlm: "VLM", prompts: "Sequence[Prompt]", max_new_tokens: int) -> "Generation":
        check_pictured(prompts, "prior correction takes the sentence's part out of what the picture gives")
        if not self.weight:
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        from mitigation.rules import RuleLogitsProcessor, less_prior

        def rule(clean: "Tensor", priors: "Tensor", step: int) -> "Tensor":
            return less_prior(clean, priors, weight=self.weight, answers=None if step else vlm.answer_ids)

        priors = prior_inputs(vlm, prompts, self.prior, pictures=self.pictures, seed=self.seed)
        processor = partial(RuleLogitsProcessor, vlm.model, others=priors, rule=rule, beta=self.beta)
        return ruled(vlm, prompts, processor, max_new_tokens)


def prior_inputs(
    vlm: "VLM", prompts: "Sequence[Prompt]", prior: str, *, pictures: int, seed: int
) -> list[Mapping[str, Any]]:
    """The prompts' inputs with each picture of ``prior`` (``PriorCorrection``) in place of their own, in this order.

    One entry for ``none`` and ``blank``, else ``pictures``. UserError as ``PriorCorrection.generate``.
    """
    from PIL import Image

    from mitigation.corruption import NONE, bank_picture, corrupt_inputs
    from mitigation.noise import diffuse_images

    check_prior(prior, pictures)
    check_pictured(prompts, "its prior is asked with another picture of the same size")

    def shown(image: Image.Image) -> Mapping[str, Any]:
        return vlm.encode([replace(p, image=image.resize(p.image.size)) for p in prompts if p.image is not None])

    if prior == "none":
        return [corrupt_inputs(vlm, prompts, kind=NONE, step=0, seed=0)]
    if prior == "neutral":
        return [shown(bank_picture(number)) for number in range(pictures)]
    if prior == "swapped":
        return [corrupt_inputs(vlm, prompts, kind=prior, step=0, seed=seed + number) for number in range(pictures)]
    blank = shown(Image.new("RGB", (1, 1), GREY))
    if prior == "blank":
        return [blank]
    keys = [[f"prior {number}"] * len(prompts) for number in range(pictures)]
    return [diffuse_images(blank, same, step=NOISE_STEP, seed=seed, model=vlm.model) for same in keys]


def prior_margins(
    vlm: "VLM", prompts: "Sequence[Prompt]", prior: str = "blank", *, pictures: int = 4, seed: int = 0
) -> "Tensor":
    """The margin that each sentence has without its picture, the mean over those of ``prior``; float32 on the CPU.

    One batch, a forward a picture; what ``mitigation.prior_share`` wants beside ``vlm.score(prompts)``. UserError as
    ``PriorCorrection.generate``.
    """
    import torch

    inputs = prior_inputs(vlm, prompts, prior, pictures=pictures, seed=seed)
    return torch.stack([vlm.score(prompts, encoded=encoded) for encoded in inputs]).mean(0)


def check_pictured(prompts: "Sequence[Prompt]", why: str) -> None:
    """UserError if a prompt has no image, with the rule ``why`` it needs one."""
    blind = [prompt.key or prompt.text for prompt in prompts if prompt.image is None]
    if blind:
        raise UserError(f"no image in prompt '{blind[0]}'; {why}; ask it with another method")


def ruled(vlm: "VLM", prompts: "Sequence[Prompt]", processor: Any, max_new_tokens: int) -> "Generation":
    """Greedy answers by a ``RuleLogitsProcessor`` but for its ``prompt_ids``, with margins before the cutoff."""
    encoded = vlm.encode(prompts)
    ruling = processor(prompt_ids=encoded["input_ids"])
    generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ruling], encoded=encoded)
    return replace(generation, margins=vlm.margin(ruling.first_scores).cpu())
