"""The fit of a probe: ridge regression of the truth on hidden states, with what the question explains taken away.

The probe is affine in the verdict's hidden state v and the question's mean embedding q, and, if asked for, bilinear in
the mean image state i and q:  logit = bias + v·w + q·a + (i − ī) W (q − q̄).  It is solved in the space of the cases,
and its scores are turned into logits by Platt's method on left-out folds. Pure; knows nothing of models or prompts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SHARE_PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Of the regression of hidden states on the question; features are scaled so that a case's mean square length is 1."""

SHUFFLES = 5


class Pooled(NamedTuple):
    """What a probe reads of each prompt: the verdict's hidden state, the mean embedding of the question's tokens and,
    for a conjunction, the mean hidden state of the image's."""

    verdict: Float[Tensor, "row width"]
    question: Float[Tensor, "row width"]
    image: Float[Tensor, "row width"] | None = None

    def rows(self, chosen: Tensor) -> "Pooled":
        """Those of ``chosen``, indices or a mask."""
        image = None if self.image is None else self.image[chosen]
        return Pooled(self.verdict[chosen], self.question[chosen], image)


@dataclass(frozen=True)
class Readout:
    """A fitted probe; see the module's text. Without ``conjunction`` it is linear in v and q."""

    verdict: Float[Tensor, "width"]
    question: Float[Tensor, "width"]
    bias: Float[Tensor, "1"]
    question_mean: Float[Tensor, "width"]
    image_mean: Float[Tensor, "width"] | None = None
    conjunction: Float[Tensor, "width width"] | None = None

    def logits(self, read: Pooled) -> Float[Tensor, "row"]:
        """How likely safe is, in logits."""
        verdict, question, bias = (part.to(read.verdict) for part in (self.verdict, self.question, self.bias))
        scores = read.verdict @ verdict + read.question @ question + bias
        if self.conjunction is not None:
            assert read.image is not None
            assert self.image_mean is not None
            image = read.image - self.image_mean.to(read.image)
            scores += ((image @ self.conjunction.to(image)) * (read.question - self.question_mean.to(image))).sum(1)
        return scores

    def scaled(self, slope: float, offset: float) -> "Readout":
        """The probe with logits slope · logit + offset."""
        return Readout(
            self.verdict * slope,
            self.question * slope,
            self.bias * slope + offset,
            self.question_mean,
            self.image_mean,
            None if self.conjunction is None else self.conjunction * slope,
        )

    def tensors(self) -> dict[str, Tensor]:
        """By field, without those that it does not have."""
        return {name: value for name, value in vars(self).items() if value is not None}


def fit_readout(read: Pooled, labels: Bool[Tensor, "row"], penalty: float, share_penalty: float) -> Readout:
    """The probe of these cases; its logits are not yet calibrated (their mean is that of the ±1 labels)."""
    verdict, question = read.verdict.double(), read.question.double()
    question_mean, verdict_mean = question.mean(0), verdict.mean(0)
    asked = question - question_mean
    share = _regression(asked, verdict - verdict_mean, share_penalty)
    rest = verdict - verdict_mean - asked @ share
    size = _size(rest)
    gram = rest @ rest.T / size
    image_mean, products = None, None
    if read.image is not None:
        image_mean = read.image.double().mean(0)
        products = _size(read.image.double() - image_mean) * _size(asked)
        seen = read.image.double() - image_mean
        gram = gram + (seen @ seen.T) * (asked @ asked.T) / products
    target = labels.double() * 2 - 1
    duals = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype), target - target.mean())
    weights = rest.T @ duals / size
    asking = -share @ weights
    bias = target.mean() - verdict_mean @ weights - question_mean @ asking
    conjunction = None if products is None else (seen.T * duals) @ asked / products
    parts = (weights, asking, bias[None], question_mean, image_mean, conjunction)
    return Readout(*(None if part is None else part.float() for part in parts))  # type: ignore[arg-type]


def held_out(
    read: Pooled, labels: Bool[Tensor, "row"], fold: Int[Tensor, "row"], penalty: float, share_penalty: float
) -> Float[Tensor, "row"]:
    """Each case's logit from the probe fitted without its fold."""
    scores = torch.empty(len(labels))
    for number in fold.unique():
        out = fold == number
        scores[out] = fit_readout(read.rows(~out), labels[~out], penalty, share_penalty).logits(read.rows(out))
    return scores


def area(scores: Float[Tensor, "row"], labels: Bool[Tensor, "row"]) -> float:
    """AUROC: the share of (safe, unsafe) pairs in which the safe one has the higher score, ties half."""
    differences = scores[labels][:, None] - scores[~labels][None, :]
    return float((differences > 0).double().mean() + (differences == 0).double().mean() / 2)


def platt(scores: Float[Tensor, "row"], labels: Bool[Tensor, "row"]) -> tuple[float, float]:
    """Slope and offset that turn scores into logits (Platt 1999): logistic regression with his smoothed targets."""
    positive, negative = int(labels.sum()), int((~labels).sum())
    targets = torch.where(labels, (positive + 1) / (positive + 2), 1 / (negative + 2)).double()
    inputs = torch.stack([scores.double(), torch.ones(len(scores), dtype=torch.float64)], dim=1)
    weights = torch.zeros(2, dtype=torch.float64)
    for _ in range(50):  # Newton's steps; the smoothed targets keep the optimum finite
        chances = torch.sigmoid(inputs @ weights)
        curvature = (inputs.T * (chances * (1 - chances))) @ inputs + 1e-9 * torch.eye(2, dtype=torch.float64)
        weights = weights - torch.linalg.solve(curvature, inputs.T @ (chances - targets))
    return float(weights[0]), float(weights[1])


def share_penalty_of(read: Pooled, fold: Int[Tensor, "row"]) -> float:
    """The penalty with which the question explains left-out hidden states best."""
    errors = dict.fromkeys(SHARE_PENALTIES, 0.0)
    for number in fold.unique():
        out = fold == number
        asked, verdict = read.question[~out].double(), read.verdict[~out].double()
        left = read.question[out].double() - asked.mean(0), read.verdict[out].double() - verdict.mean(0)
        for penalty in SHARE_PENALTIES:
            share = _regression(asked - asked.mean(0), verdict - verdict.mean(0), penalty)
            errors[penalty] += float((left[1] - left[0] @ share).square().sum())
    return min(errors, key=errors.__getitem__)


def _regression(
    inputs: Float[Tensor, "row width"], outputs: Float[Tensor, "row width"], penalty: float
) -> Float[Tensor, "width width"]:
    """Ridge from centred ``inputs`` to ``outputs``, in whichever space is smaller."""
    rows, width = inputs.shape
    ridge = penalty * _size(inputs)
    if rows < width:
        eye = torch.eye(rows, dtype=inputs.dtype)
        return inputs.T @ torch.linalg.solve(inputs @ inputs.T + ridge * eye, outputs)
    eye = torch.eye(width, dtype=inputs.dtype)
    return torch.linalg.solve(inputs.T @ inputs + ridge * eye, inputs.T @ outputs)


def _size(centred: Float[Tensor, "row width"]) -> Float[Tensor, ""]:
    """The mean square length of a case."""
    return centred.square().sum(1).mean().clamp(min=1e-12)


def shuffled_area(
    read: Pooled, labels: Bool[Tensor, "row"], fold: Int[Tensor, "row"], penalty: float, share: float, seed: int
) -> float:
    """The mean AUROC that the same fit reaches on labels dealt out at random: what it finds where there is nothing."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(SHUFFLES):
        dealt = labels[torch.randperm(len(labels), generator=generator)]
        found.append(area(held_out(read, dealt, fold, penalty, share), dealt))
    return sum(found) / len(found)
