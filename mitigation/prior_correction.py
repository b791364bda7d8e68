"""Prior correction: what the picture adds to the answer that the sentence alone would get; and a test whether it helps.

A verdict's margin minus the margin that the sentence has without its picture; free text token by token. Visual
contrastive decoding, (1 + α)·l − α·l′, keeps one whole prior whatever α is, beside 1 + α times what the picture adds;
here a weight of 1 removes it. (Over the same second picture, a weight w < 1 therefore ranks cases as VCD with
α = w / (1 − w) and no cutoff does: the published α = 1 is a weight of one half.) A weight of 1 scores by pointwise
mutual information, as Holtzman et al. 2021 (arXiv 2104.08315) do for multiple-choice answers, with the picture as the
condition.

``prior_share`` says beforehand, without labels, whether the correction can help. It takes a margin as prior + picture:
what the sentence alone gives, and what this case's picture adds. If the pictures of a sentence are safe and unsafe
alike, the prior is a threshold that differs by sentence, and in one AUROC over all sentences it is noise; removing it
leaves the difference between the two kinds as it is and makes the spread smaller.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from interp.errors import UserError
from mitigation.validation import check_beta, check_pictured, check_prior, check_seed, check_weight

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt
    from mitigation.contrastive.processors import Rule

GREY = (127, 127, 127)
NOISE_STEP = 999
WORTH = 1.25
"""``PriorShare.helps`` from this factor of d′ on: from an AUROC of .65 to .68, or from .60 to .62."""


@dataclass(frozen=True)
class PriorCorrection:
    """Greedy answers by log p(token | picture) − ``weight`` × log p(token | ``prior``), over the plausible tokens.

    Where the model's likeliest first token is Yes or No, the answer is one of them by the corrected margin: the margin
    with the picture less ``weight`` × the mean margin of the prior's pictures. ``beta`` is the cutoff
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

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_weight(self.weight, least=0.0)
        check_prior(self.prior, self.pictures)
        check_beta(self.beta)
        check_seed(self.seed)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers with corrected margins.

        Raises:
            UserError: a prompt has no image, or the family cannot be asked without one (``none``) or contrasted at all.
        """
        check_pictured(prompts, "prior correction takes the sentence's part out of what the picture gives")
        if not self.weight:
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        from mitigation.contrastive.formulas import less_prior

        def rule(clean: "Tensor", priors: "Tensor", step: int) -> "Tensor":
            return less_prior(clean, priors, weight=self.weight, answers=None if step else vlm.answer_ids)

        priors = prior_inputs(vlm, prompts, self.prior, pictures=self.pictures, seed=self.seed)
        return answers_by_rule(vlm, prompts, priors, rule, beta=self.beta, max_new_tokens=max_new_tokens)


def prior_inputs(
    vlm: "VLM", prompts: "Sequence[Prompt]", prior: str, *, pictures: int, seed: int
) -> list[Mapping[str, Any]]:
    """The prompts' inputs with each picture of ``prior`` (``PriorCorrection``) in place of their own, in this order.

    One entry for ``none`` and ``blank``, else ``pictures``.

    Raises:
        UserError: as ``PriorCorrection.generate``.
    """
    from PIL import Image

    from mitigation.contrastive.corruption import NONE, bank_picture, corrupt_inputs, diffuse_images

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

    One batch, one forward per picture. ``prior_share`` takes them beside ``vlm.score(prompts)``.

    Raises:
        UserError: as ``PriorCorrection.generate``.
    """
    import torch

    inputs = prior_inputs(vlm, prompts, prior, pictures=pictures, seed=seed)
    return torch.stack([vlm.score(prompts, encoded=encoded) for encoded in inputs]).mean(0)


def answers_by_rule(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    others: "Sequence[Mapping[str, Any]]",
    rule: "Rule",
    *,
    beta: float | None,
    max_new_tokens: int,
) -> "Generation":
    """Greedy answers by ``rule`` over ``prompts`` and the inputs ``others``, with margins before the cutoff.

    See ``mitigation.contrastive.processors.RuleLogitsProcessor``.
    """
    from mitigation.contrastive.processors import RuleLogitsProcessor

    encoded, answers = vlm.encode(prompts), [token for ids in vlm.answer_ids for token in ids]
    ruling = RuleLogitsProcessor(vlm.model, encoded["input_ids"], others, rule, beta=beta, answers=answers)
    generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ruling], encoded=encoded)
    return replace(generation, margins=vlm.margin(ruling.first_scores).cpu())


class PriorShare(NamedTuple):
    """What margins owe to their sentences; shares are of the variance of the margins, over all cases.

    Attributes:
        cases, sentences: how many there were.
        between: share that lies between sentences (the means of their margins). With one picture a sentence it is 1 and
            says nothing.
        explained: R², the share that a straight line in the prior's margin explains: 0 where every sentence has the
            same prior (one threshold too low for all), near 1 where the prior decides and pictures hardly count.
        correlation: of margin and prior's margin; NaN where either is the same for all cases.
        weight: slope of that line, the label-free choice of ``PriorCorrection.weight``; 0 where the priors are all one.
        left: spread (standard deviation) of the corrected margins at that weight over that of the margins, √(1 − R²).
        factor: by how much d′ is expected to grow, 1 / left: exactly, if the prior says nothing of the truth and the
            two kinds of cases lie equally far apart and spread equally before and after. An expectation, not a promise:
            a prior that knows the truth (sentences that are unsafe with any picture) is lost with it.
        within: spread of the corrected margins within sentences over that of the margins; above 1 the correction adds
            noise of its own (a prior that draws anew for each case), below 1 the prior still sees the picture. NaN
            where no sentence has two pictures.
        helps: ``factor`` is at least ``WORTH``, and ``within`` does not tell that the picture's own part is taken.
    """

    cases: int
    sentences: int
    between: float
    explained: float
    correlation: float
    weight: float
    left: float
    factor: float
    within: float
    helps: bool


def prior_share(
    margins: Float[np.ndarray, "case"], priors: Float[np.ndarray, "other"], sentences: Sequence[str]
) -> PriorShare:
    """``margins`` with the picture and ``priors`` without (means over several) of cases that ask ``sentences``.

    Raises:
        UserError: lengths that differ, fewer than three cases, a number that is not finite, or margins all alike.
    """
    margins, priors = (np.asarray(values, dtype=np.float64) for values in (margins, priors))
    _check(margins, priors, sentences)
    groups, group = np.unique(np.asarray(sentences, dtype=object).astype(str), return_inverse=True)
    total, spread = float(margins.var()), float(priors.var())
    # Priors alike but for rounding have no slope: float32 margins carry about seven digits.
    flat = np.sqrt(spread) <= 1e-6 * max(1.0, float(np.abs(priors).max()))
    covariance = float(((margins - margins.mean()) * (priors - priors.mean())).mean())
    weight = 0.0 if flat else covariance / spread
    explained = 0.0 if flat else min(covariance**2 / (total * spread), 1.0)
    left = float(np.sqrt(1 - explained))
    factor = 1 / left if left > 0 else np.inf
    before, after = (_within(values, group) for values in (margins, margins - weight * priors))
    within = after / before if before > 0 else np.nan
    return PriorShare(
        cases=len(margins),
        sentences=len(groups),
        between=1 - before**2 / total,
        explained=explained,
        correlation=float(np.nan if flat else covariance / np.sqrt(total * spread)),
        weight=weight,
        left=left,
        factor=factor,
        within=within,
        helps=bool(factor >= WORTH and not within < 1 / WORTH),
    )


def _check(margins: np.ndarray, priors: np.ndarray, sentences: Sequence[str]) -> None:
    if not len(margins) == len(priors) == len(sentences):
        raise UserError(
            f"{len(margins)} margins, {len(priors)} priors and {len(sentences)} sentences; a case has one of each; "
            "hand over those of the same cases"
        )
    wrong = int((~(np.isfinite(margins) & np.isfinite(priors))).sum())
    if wrong:
        raise UserError(f"{wrong} of {len(margins)} cases have a margin that is not finite; leave those cases out")
    if len(margins) < 3 or not margins.var() > 0:
        raise UserError(
            f"{len(margins)} margins, all alike or fewer than three; there is no variance to share out; take more cases"
        )


def _within(values: Float[np.ndarray, "case"], group: np.ndarray) -> float:
    """Root mean square of what is left of ``values`` when each group's mean is taken off."""
    means = np.bincount(group, weights=values) / np.bincount(group)
    return float(np.sqrt(((values - means[group]) ** 2).mean()))
