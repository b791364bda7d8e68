"""Prior correction: subtracts the margin that the sentence has without its picture; and what it could gain at best.

Free text is corrected token by token. Visual contrastive decoding, (1 + α)·l − α·l′, always keeps one full prior next
to 1 + α times the picture's contribution; here a weight of 1 removes the prior. (With the same second picture, a weight
w < 1 ranks cases as VCD with α = w / (1 − w) and no cutoff does: the published α = 1 is a weight of one half.) A weight
of 1 scores by pointwise mutual information, as Holtzman et al. 2021 (arXiv 2104.08315) do for multiple-choice answers,
with the picture as the condition.

``prior_share`` says without labels whether the correction has anything to remove. That is necessary for a gain and does
not make one likely. It models a margin as prior + picture: the margin of the sentence without its picture, and the
contribution of this case's picture. If a sentence occurs with safe and unsafe pictures alike, the prior acts as a
threshold that differs by sentence, which is noise in an AUROC over all sentences. Removing it keeps the difference
between the classes and reduces the spread.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from interp.errors import UserError
from mitigation.branches import BranchLogits, BranchMethod, Inputs
from mitigation.method import Work, check_beta, check_number, check_pictured, check_prior, check_seed, set_images

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from interp.vlm import VLM, Prompt

GREY = (127, 127, 127)
NOISE_STEP = 999
WORTH = 1.25
"""The factor on d′ from which ``PriorShare.helps``: for example an AUROC of .65 becomes .68, or .60 becomes .62."""


@dataclass(frozen=True)
class PriorCorrection(BranchMethod):
    """Greedy answers by log p(token | picture) − ``weight`` × log p(token | ``prior``), over the plausible tokens.

    If the model's most likely first token is Yes or No, the corrected margin decides between the two: the margin with
    the picture minus ``weight`` × the mean margin of the prior's pictures. ``beta`` is the cutoff relative to the most
    likely token (None: no cutoff), as in ``mitigation.vcd.VCD``; it does not apply between the two answers. A weight of
    0 is the unmodified model.

    ``prior`` replaces the picture, at its size: ``none`` (no picture; not all families support this), ``blank``
    (mid-grey), ``noise`` (the blank picture at the last diffusion step of VCD's schedule, so that nothing of the case's
    own picture remains), ``neutral`` (drawn shapes, the same for every case) or ``swapped`` (drawn shapes, chosen by
    the case's key). The last three are averaged over ``pictures`` pictures; each costs a forward per token. ``seed`` is
    for noise and swapped pictures. ``images`` are the numbers of the pictures to replace, from 1, if a prompt has
    several (None: all).
    """

    weight: float = 1.0
    prior: str = "blank"
    pictures: int = 4
    beta: float | None = 0.1
    seed: int = 0
    images: Any = None  # a sequence of numbers, stored as a tuple; a list in a configuration
    pictured: ClassVar[str] = "prior correction takes the sentence's part out of what the picture gives"
    other: ClassVar[str] = "prior"

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0.0)
        check_prior(self.prior, self.pictures)
        check_beta(self.beta)
        check_seed(self.seed)
        set_images(self)

    @property
    def needs(self) -> str:  # type: ignore[override]
        """See ``mitigation.method.Abilities``."""
        return (
            "prior=noise is on processed pixels, which no picture carries; take blank" if self.prior == "noise" else ""
        )

    @property
    def work(self) -> Work:  # type: ignore[override]
        """See ``mitigation.method.Abilities``."""
        branches = 2 if self.prior in ("none", "blank") else 1 + self.pictures
        return Work(prompts=branches, branches=branches)

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """``prior_inputs``; none at a weight of 0."""
        if not self.weight:
            return []
        return prior_inputs(vlm, prompts, self.prior, pictures=self.pictures, seed=self.seed, only=self.images or ())

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """log p(token | picture) − weight × the mean over the prior's pictures of log p(token | prior).

        For the verdict every spelling of an answer gets the prior of the answer over all spellings. The margin is
        then exactly the clean one minus weight × the mean of the priors' margins, and a spelling does not win because
        it is rare in the prior. For the same reason, all other tokens are −inf if the most likely clean token is an
        answer. A later token is the verdict if verdicts may come late and the most likely clean token is an answer.
        """
        import torch

        clean, prior = logits.clean.log_softmax(-1), logits.others.log_softmax(-1)
        plain = clean - self.weight * prior.mean(0)
        if step and not logits.late_verdicts:
            return plain
        for ids in logits.answers:
            prior[..., ids] = prior[..., ids].logsumexp(-1, keepdim=True)
        either = torch.tensor([token for ids in logits.answers for token in ids], device=clean.device)
        other = ~torch.isin(torch.arange(clean.shape[1], device=clean.device), either)
        verdict = torch.isin(logits.clean.argmax(-1, keepdim=True), either)
        scores = (clean - self.weight * prior.mean(0)).masked_fill(verdict & other, -torch.inf)
        return torch.where(verdict, scores, plain) if step else scores


def grey_picture(size: tuple[int, int]) -> "Image":
    """Return a mid-grey picture of this width and height, in RGB."""
    from PIL import Image

    return Image.new("RGB", size, GREY)


def prior_inputs(
    vlm: "VLM", prompts: "Sequence[Prompt]", prior: str, *, pictures: int, seed: int, only: Sequence[int] = ()
) -> list[Mapping[str, Any]]:
    """Return the prompts' inputs with their pictures replaced by ``prior`` (see ``PriorCorrection``).

    One entry for ``none`` and ``blank``, else ``pictures`` entries.

    Raises:
        UserError: a prompt has no image, or the family does not support prompts without one (``none``).
    """
    from mitigation.contrastive.corruption import bank_picture, blind_inputs, diffuse_prompts, donor, with_pictures

    check_prior(prior, pictures)
    check_pictured(prompts, "its prior is asked with another picture of the same size")
    if prior == "none":
        return [blind_inputs(vlm, prompts, only)]
    if prior in ("neutral", "swapped"):

        def drawn(number: int, key: str, image: "Image") -> "Image":
            return bank_picture(number) if prior == "neutral" else donor(key, seed + number)

        return [with_pictures(vlm, prompts, partial(drawn, number), only) for number in range(pictures)]
    blank = with_pictures(vlm, prompts, lambda _, image: grey_picture(image.size), only)
    if prior == "blank":
        return [blank]
    again = [[replace(prompt, key=f"prior {number}") for prompt in prompts] for number in range(pictures)]
    return [diffuse_prompts(vlm, same, blank, step=NOISE_STEP, seed=seed, only=only) for same in again]


def prior_margins(
    vlm: "VLM", prompts: "Sequence[Prompt]", prior: str = "blank", *, pictures: int = 4, seed: int = 0
) -> "Tensor":
    """Return the margin of each sentence without its picture, averaged over the pictures of ``prior``; float32 on the
    CPU.

    One batch, one forward per picture. Use with ``vlm.score(prompts)`` in ``prior_share``.

    Raises:
        UserError: as ``prior_inputs``.
    """
    import torch

    inputs = prior_inputs(vlm, prompts, prior, pictures=pictures, seed=seed)
    return torch.stack([vlm.score(prompts, encoded=encoded) for encoded in inputs]).mean(0)


class PriorShare(NamedTuple):
    """How much of the margins is due to the sentences. Shares are of the variance of the margins over all cases.

    Attributes:
        cases, sentences: their numbers.
        between: share between sentences (the means of their margins). Uninformative (1) with one picture per sentence.
        explained: R², the share explained by a linear fit on the prior's margin: 0 if every sentence has the same
            prior, near 1 if the prior decides and pictures hardly matter.
        correlation: of margins and prior margins; NaN if either is constant.
        weight: slope of the fit, the label-free choice of ``PriorCorrection.weight``; 0 if all priors are equal.
        left: standard deviation of the corrected margins at that weight divided by that of the margins, √(1 − R²).
        factor: expected gain in d′, 1 / left. Exact if the prior is independent of the truth and the distance and
            equal spread of the two classes do not change. Informative priors (sentences that are unsafe with any
            picture) are lost.
        within: spread of the corrected margins within sentences divided by that of the margins. Above 1 the correction
            adds noise (a prior drawn anew for each case); below 1 the prior still depends on the picture. NaN if no
            sentence has two pictures.
        helps: ``factor`` is at least ``WORTH``, and ``within`` does not show a loss of the picture's contribution.
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
    margins: Float[np.ndarray, " case"], priors: Float[np.ndarray, " other"], sentences: Sequence[str]
) -> PriorShare:
    """Decompose ``margins`` (with the picture) by ``priors`` (without it, averaged) of the cases' ``sentences``.

    Raises:
        UserError: lengths that differ, fewer than three cases, a number that is not finite, or margins all alike.
    """
    margins, priors = (np.asarray(values, dtype=np.float64) for values in (margins, priors))
    _check(margins, priors, sentences)
    groups, group = np.unique(np.asarray(sentences, dtype=object).astype(str), return_inverse=True)
    total, spread = float(margins.var()), float(priors.var())
    # Priors that are equal up to rounding have no slope: float32 margins have about seven digits.
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
            "pass those of the same cases"
        )
    wrong = int((~(np.isfinite(margins) & np.isfinite(priors))).sum())
    if wrong:
        raise UserError(f"{wrong} of {len(margins)} cases have a margin that is not finite; leave those cases out")
    if len(margins) < 3 or not margins.var() > 0:
        raise UserError(
            f"{len(margins)} margins, all alike or fewer than three; there is no variance to share out; take more cases"
        )


def _within(values: Float[np.ndarray, " case"], group: np.ndarray) -> float:
    """Root mean square of ``values`` after subtracting each group's mean."""
    means = np.bincount(group, weights=values) / np.bincount(group)
    return float(np.sqrt(((values - means[group]) ** 2).mean()))
