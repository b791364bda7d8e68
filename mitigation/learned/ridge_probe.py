"""The probe of the truth: ridge regression of the labels on hidden states, after removing what the question explains.

The probe is affine in the verdict's hidden state v and the question's mean embedding q, and optionally bilinear in the
mean image state i and q:  logit = bias + v·w + q·a + (i − ī) W (q − q̄).  It is solved in the space of the cases. Point
and penalty are chosen by cross-validation, and scores are calibrated to logits by Platt's method on held-out folds.
``VerdictEdit`` adds the logit to a running model's verdict.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from sklearn.metrics import roc_auc_score
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import LayerStates, Residuals, edit_residual, last_layer, residuals
from interp.hooks.state_memory import memory_for

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties of the probe; features are scaled to a mean square length of 1 per case."""
GRADIENT_CASES = 128
SHARED_GRADIENTS = 4 * GRADIENT_CASES
SHARE_PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Penalties of the regression of hidden states on the question; features are scaled in the same way."""

SHUFFLES = 5


class Pooled(NamedTuple):
    """A probe's inputs for each prompt: the verdict's hidden state, the mean embedding of the question's tokens and,
    for a conjunction, the mean hidden state of the image tokens."""

    verdict: Float[Tensor, "row width"]
    question: Float[Tensor, "row width"]
    image: Float[Tensor, "row width"] | None = None


@dataclass(frozen=True)
class Readout:
    """A fitted probe (see the module's docstring). Without ``conjunction`` it is linear in v and q."""

    verdict: Float[Tensor, " width"]
    question: Float[Tensor, " width"]
    bias: Float[Tensor, "1"]
    question_mean: Float[Tensor, " width"]
    image_mean: Float[Tensor, " width"] | None = None
    conjunction: Float[Tensor, "width width"] | None = None

    def logits(self, read: Pooled) -> Float[Tensor, " row"]:
        """Return logits of safe."""
        verdict, question, bias = (part.to(read.verdict) for part in (self.verdict, self.question, self.bias))
        scores = read.verdict @ verdict + read.question @ question + bias
        if self.conjunction is not None:
            assert read.image is not None
            assert self.image_mean is not None
            image = read.image - self.image_mean.to(read.image)
            scores += ((image @ self.conjunction.to(image)) * (read.question - self.question_mean.to(image))).sum(1)
        return scores

    def scaled(self, slope: float, offset: float) -> "Readout":
        """Return the probe with logits slope · logit + offset."""
        conjunction = None if self.conjunction is None else self.conjunction * slope
        verdict, question, bias = self.verdict * slope, self.question * slope, self.bias * slope + offset
        return replace(self, verdict=verdict, question=question, bias=bias, conjunction=conjunction)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by field, without None."""
        return {name: value for name, value in vars(self).items() if value is not None}


def fit_readout(read: Pooled, labels: Bool[Tensor, " row"], penalty: float, share_penalty: float) -> Readout:
    """Fit the probe. Its logits are not calibrated yet (their mean is that of the ±1 labels)."""
    verdict, question = read.verdict.double(), read.question.double()
    question_mean, verdict_mean = question.mean(0), verdict.mean(0)
    questions = question - question_mean
    share = _regression(questions, verdict - verdict_mean, share_penalty)
    rest = verdict - verdict_mean - questions @ share
    size = _size(rest)
    gram = rest @ rest.T / size
    image_mean, products = None, None
    if read.image is not None:
        image_mean = read.image.double().mean(0)
        products = _size(read.image.double() - image_mean) * _size(questions)
        seen = read.image.double() - image_mean
        gram = gram + (seen @ seen.T) * (questions @ questions.T) / products
    target = labels.double() * 2 - 1
    duals = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype), target - target.mean())
    weights = rest.T @ duals / size
    asking = -share @ weights
    bias = target.mean() - verdict_mean @ weights - question_mean @ asking
    conjunction = None if products is None else (seen.T * duals) @ questions / products
    parts = (weights, asking, bias[None], question_mean, image_mean, conjunction)
    return Readout(*(None if part is None else part.float() for part in parts))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Part:
    """The questions of one fold, in the singular vectors of the others'. All layers and penalties share them."""

    train: Bool[Tensor, " row"]
    left: Float[Tensor, "train rank"]
    spectrum: Float[Tensor, " rank"]
    tested: Float[Tensor, "test rank"]  # the fold's own, along the right singular vectors

    @classmethod
    def build(cls, question: Float[Tensor, "row width"], train: Bool[Tensor, " row"]) -> "_Part":
        mean = question[train].mean(0)
        left, spectrum, right = torch.linalg.svd(question[train] - mean, full_matrices=False)
        return cls(train, left, spectrum, (question[~train] - mean) @ right.T)

    @property
    def size(self) -> Float[Tensor, ""]:
        return (self.spectrum.square().sum() / len(self.left)).clamp(min=1e-12)

    def centred(self, states: Float[Tensor, "row width"]) -> tuple[Tensor, Tensor]:
        """Return the states to fit on and those of the fold, in float64, less the mean of the former."""
        fitted = states[self.train].double()
        return fitted - fitted.mean(0), states[~self.train].double() - fitted.mean(0)

    def explained(
        self, questions: Float[Tensor, "some rank"], along: Float[Tensor, "rank width"], penalty: float
    ) -> Float[Tensor, "some width"]:
        """Return the states that ridge regression predicts from ``questions`` (``fitted`` or ``tested``).

        It is fitted on those whose projections on ``left`` are ``along``.
        """
        return (questions * (self.spectrum / (self.spectrum.square() + penalty * self.size))) @ along

    @property
    def fitted(self) -> Float[Tensor, "train rank"]:
        """The questions fitted on, along the right singular vectors."""
        return self.left * self.spectrum

    def products(self) -> tuple[Tensor, Tensor]:
        """Return the questions' inner products with those fitted on: of these, and of the fold's."""
        return self.fitted @ self.fitted.T, self.tested @ self.fitted.T


def question_parts(question: Float[Tensor, "row width"], fold: Int[Tensor, " row"]) -> list[_Part]:
    """Return the folds of cases with these questions, for ``HeldOut``."""
    return [_Part.build(question.double(), fold != number) for number in fold.unique()]


class HeldOut:
    """Cross-validation of the probe: ``fit_readout`` without each fold, asked about the fold.

    It is solved in the space of the cases, without the weights: those of one fold are as many as the width squared.
    ``share_penalty`` None takes the one with which the question best predicts held-out hidden states.
    """

    def __init__(self, read: Pooled, parts: Sequence[_Part], share_penalty: float | None = None) -> None:
        verdicts = [part.centred(read.verdict) for part in parts]
        along = [part.left.T @ fitted for part, (fitted, _) in zip(parts, verdicts, strict=True)]

        def error(penalty: float) -> float:
            each = zip(parts, verdicts, along, strict=True)
            return sum(
                float((own - part.explained(part.tested, a, penalty)).square().sum()) for part, (_, own), a in each
            )

        self.share_penalty = min(SHARE_PENALTIES, key=error) if share_penalty is None else share_penalty
        self._parts: list[tuple[_Part, Tensor, Tensor]] = []
        for part, (fitted, current), a in zip(parts, verdicts, along, strict=True):
            rest = fitted - part.explained(part.fitted, a, self.share_penalty)
            left = current - part.explained(part.tested, a, self.share_penalty)
            gram, tested = rest @ rest.T / _size(rest), left @ rest.T / _size(rest)
            if read.image is not None:
                seen, visible = part.centred(read.image)
                questions, asking = part.products()
                products = _size(seen) * part.size
                gram, tested = (
                    gram + (seen @ seen.T) * questions / products,
                    tested + (visible @ seen.T) * asking / products,
                )
            self._parts.append((part, gram, tested))

    def scores(self, labels: Bool[Tensor, " row"], penalty: float) -> Float[Tensor, " row"]:
        """Return each case's logit by the probe fitted without its fold; not calibrated, as ``fit_readout``'s."""
        scores = torch.empty(len(labels))
        for part, gram, tested in self._parts:
            target = labels[part.train].double() * 2 - 1
            duals = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype), target - target.mean())
            scores[~part.train] = (tested @ duals + target.mean()).float()
        return scores

    def shuffled_area(self, labels: Bool[Tensor, " row"], penalty: float, seed: int) -> float:
        """Return the mean AUROC of the same fit on shuffled labels: the chance level of the procedure."""
        generator = torch.Generator().manual_seed(seed)
        result = []
        for _ in range(SHUFFLES):
            dealt = labels[torch.randperm(len(labels), generator=generator)]
            result.append(area(self.scores(dealt, penalty), dealt))
        return sum(result) / len(result)


def area(scores: Float[Tensor, " row"], labels: Bool[Tensor, " row"]) -> float:
    """AUROC of the safe cases' scores against the unsafe ones'."""
    return float(roc_auc_score(labels.numpy(), scores.numpy()))


def platt(scores: Float[Tensor, " row"], labels: Bool[Tensor, " row"]) -> tuple[float, float]:
    """Slope and offset that turn scores into logits (Platt 1999): logistic regression with his smoothed targets."""
    positive, negative = int(labels.sum()), int((~labels).sum())
    targets = torch.where(labels, (positive + 1) / (positive + 2), 1 / (negative + 2)).double()
    inputs = torch.stack([scores.double(), torch.ones(len(scores), dtype=torch.float64)], dim=1)
    weights = torch.zeros(2, dtype=torch.float64)
    for _ in range(50):  # Newton steps; the smoothed targets keep the optimum finite
        chances = torch.sigmoid(inputs @ weights)
        curvature = (inputs.T * (chances * (1 - chances))) @ inputs + 1e-9 * torch.eye(2, dtype=torch.float64)
        weights = weights - torch.linalg.solve(curvature, inputs.T @ (chances - targets))
    return float(weights[0]), float(weights[1])


def _regression(
    inputs: Float[Tensor, "row width"], outputs: Float[Tensor, "row width"], penalty: float
) -> Float[Tensor, "width width"]:
    """Ridge regression from centred ``inputs`` to ``outputs``, solved in the smaller dimension."""
    rows, width = inputs.shape
    ridge = penalty * _size(inputs)
    if rows < width:
        eye = torch.eye(rows, dtype=inputs.dtype)
        return inputs.T @ torch.linalg.solve(inputs @ inputs.T + ridge * eye, outputs)
    eye = torch.eye(width, dtype=inputs.dtype)
    return torch.linalg.solve(inputs.T @ inputs + ridge * eye, inputs.T @ outputs)


def _size(centred: Float[Tensor, "row width"]) -> Float[Tensor, ""]:
    """Return the mean square length of a case."""
    return centred.square().sum(1).mean().clamp(min=1e-12)


def learn_readout(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    safe: Sequence[bool],
    *,
    layer: int | None,
    conjunction: bool,
    folds: int,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a ``Readout``'s tensors, and a record of its selection: the best ``layer`` (None: of all) and penalty.

    Cross-validation holds out whole questions: the two members of a counterfactual pair share their question, so the
    training folds stay balanced, and the prior of a held-out question is unknown.

    Raises:
        UserError: too few cases.
    """
    labels = torch.as_tensor(list(safe), dtype=torch.bool)
    fold = question_folds([prompt.text for prompt in prompts], safe, folds=folds, seed=seed)
    layers = tuple(range(1, last_layer(vlm) + 1)) if layer is None else (layer,)
    read = residuals(vlm, prompts, places=_places(conjunction), layers=(0, *layers))
    parts = question_parts(read.select("user", 0), fold)
    best: tuple[float, int, float, HeldOut] | None = None
    for here in layers:
        validated = HeldOut(_at(read, here, conjunction), parts)
        for penalty in PENALTIES:
            held_out = area(validated.scores(labels, penalty), labels)
            if best is None or held_out > best[0]:
                best = (held_out, here, penalty, validated)
    assert best is not None
    held_out, chosen, penalty, validated = best
    share = validated.share_penalty
    calibration = platt(validated.scores(labels, penalty), labels)
    readout = fit_readout(_at(read, chosen, conjunction), labels, penalty, share).scaled(*calibration)
    about = {
        "layer": chosen,
        "penalty": penalty,
        "share_penalty": share,
        "conjunction": conjunction,
        "n": len(labels),
        "n_safe": int(labels.sum()),
        "folds": folds,
        "auroc": held_out,
        "auroc_shuffled": validated.shuffled_area(labels, penalty, seed),
    }
    return readout.tensors(), about


def margin_gradient(vlm: "VLM", prompts: "Sequence[Prompt]", *, layer: int) -> Float[Tensor, " width"]:
    """Return the mean gradient of the margin with respect to the verdict's state at ``layer``.

    Over at most 128 evenly spaced ``prompts``; in logits per unit of the residual stream, float32 on the CPU. Where a
    memory of the prompts is open (``interp.hooks.state_memory``), one pass over its prompts gives it the gradients at
    all layers from 1 on, unless they are so many that a pass for each learning takes less.
    """
    # Each case costs a backward pass, and more cases hardly change the mean.
    prompts = prompts[:: -(-len(prompts) // GRADIENT_CASES)]
    memory = memory_for(vlm, prompts)
    if memory is not None and layer > 0 and len(memory) <= SHARED_GRADIENTS:
        names = [("gradient", at) for at in range(1, last_layer(vlm) + 1)]
        every = memory.rows(prompts, names, lambda some, _: dict(zip(names, _gradients(vlm, some), strict=True)))
        return every[layer - 1].mean(0)
    return _gradients(vlm, prompts, layer)[0].mean(0)


def _gradients(vlm: "VLM", prompts: "Sequence[Prompt]", layer: int | None = None) -> Float[Tensor, "layer row width"]:
    """Return the gradients of each margin with respect to the verdict's state at ``layer``; None: at all from 1 on."""
    layers = list(range(1, last_layer(vlm) + 1)) if layer is None else [layer]

    def gradients(batch: list[int]) -> Float[Tensor, "row layer width"]:
        encoded = vlm.encode([prompts[index] for index in batch])
        verdict = encoded["input_ids"].shape[1] - 1  # inputs are padded on the left
        states: list[Tensor] = []

        def begin(here: LayerStates) -> Tensor:
            # Each forward's first one is a leaf, and the others hang on it.
            leaf = here.layer == layers[0]
            states.append(here.hidden.detach().requires_grad_() if leaf else here.hidden)
            return states[-1]

        with _frozen_weights(vlm.model), edit_residual(vlm, begin, layers=layers):
            by_state = torch.autograd.grad(vlm.measure(encoded).sum(), states)
        at_verdict = torch.stack([gradient[:, verdict].float().cpu() for gradient in by_state], dim=1)
        return at_verdict.unflatten(1, (-1, len(layers))).sum(1)  # over the forwards of a ``SequenceMetric``

    return vlm.batches.measured(prompts, gradients).movedim(1, 0)


@contextmanager
def _frozen_weights(model: Any) -> Iterator[None]:
    """While open, operations on tensors that need a gradient are followed, and no weight of ``model`` needs one."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


def pooled(vlm: "VLM", prompts: "Sequence[Prompt]", layer: int, *, image: bool) -> Pooled:
    """Return the inputs of a probe at ``layer`` for each prompt, float32 on the CPU."""
    return _at(residuals(vlm, prompts, places=_places(image), layers=(0, layer)), layer, image)


@dataclass
class VerdictEdit:
    """The edit that reads ``readout`` at ``layer`` and adds its logit times ``direction`` at the verdict."""

    readout: Readout
    direction: Float[Tensor, " width"]
    layer: int
    question: Tensor = field(init=False)

    def edit(self, here: LayerStates) -> Tensor | None:
        """Read the question at layer 0, and edit the verdict at ``layer``. Ignore decoding steps."""
        verdict = here.indices("verdict")
        if not len(verdict[0]):
            return None
        if here.layer == 0:
            self.question = here.mean("user")
            return None
        image = None if self.readout.conjunction is None else here.mean("image")
        question = self.question.to(here.hidden.device)  # that layer may be on another device
        logits = self.readout.logits(Pooled(here.hidden[verdict].float(), question, image))
        edited = here.hidden.clone()
        edited[verdict] += (logits[:, None] * self.direction.to(logits)).to(edited)
        return edited


def _places(image: bool) -> tuple[str, ...]:
    return ("verdict", "user", "image") if image else ("verdict", "user")


def _at(read: Residuals, layer: int, image: bool) -> Pooled:
    return Pooled(read.select("verdict", layer), read.select("user", 0), read.select("image", layer) if image else None)


def question_folds(questions: Sequence[str], safe: Sequence[bool], *, folds: int, seed: int) -> Int[Tensor, " row"]:
    """Return the fold of each case; all cases of a question share one.

    Raises:
        UserError: a class is missing, or there are fewer questions than folds.
    """
    if len(set(safe)) < 2:
        raise UserError(
            f"{sum(safe)} safe and {len(safe) - sum(safe)} unsafe cases; a probe is fitted on both; take more cases"
        )
    different = list(dict.fromkeys(questions))
    if len(different) < folds:
        raise UserError(
            f"{len(different)} different questions; a probe is chosen by leaving out one of {folds} parts of them; "
            "take more cases"
        )
    order = torch.randperm(len(different), generator=torch.Generator().manual_seed(seed)).tolist()
    position = {different[index]: number % folds for number, index in enumerate(order)}
    return torch.tensor([position[question] for question in questions])
