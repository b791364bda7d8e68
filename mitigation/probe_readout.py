"""Reading the truth out of the residual stream and bringing it to the verdict.

Importing this module loads neither torch nor transformers; learning and generating do.

Learns a probe of the truth in the residual stream (``mitigation.ridge_probe``), and puts it to work at the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer, residuals
from interp.tensor_file import Vectors, check_model, digest_of, read_vectors, write_vectors
from mitigation.ridge_probe import (
    Pooled,
    Readout,
    area,
    fit_readout,
    held_out,
    platt,
    share_penalty_of,
    shuffled_area,
)
from mitigation.validation import check_point, check_seed, check_shift, check_strength
from mitigation.wrappers import with_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


BATCH = 32
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Of the ridge; features are scaled so that a case's mean square length is 1."""

GRADIENT_CASES = 128


@dataclass
class Bringing:
    """The edit that reads ``readout`` at ``point`` and adds its logit times ``direction`` at the verdict."""

    readout: Readout
    direction: Float[Tensor, "width"]
    point: int
    question: Tensor = field(init=False)

    def edit(self, here: LayerStates) -> Tensor | None:
        """At point 0 the question is read, at ``point`` the verdict changed; decoding steps pass."""
        verdict = here.where("verdict")
        if not bool(verdict.any()):
            return None
        if here.layer == 0:
            self.question = _mean(here.hidden, here.where("user"))
            return None
        image = None if self.readout.conjunction is None else _mean(here.hidden, here.where("image"))
        logits = self.readout.logits(Pooled(here.hidden[verdict].float(), self.question, image))
        edited = here.hidden.clone()
        edited[verdict] += (logits[:, None] * self.direction.to(logits)).to(edited)
        return edited


def pooled(vlm: "VLM", prompts: "Sequence[Prompt]", point: int, *, image: bool) -> Pooled:
    """What a probe at ``point`` reads of each prompt, float32 on the CPU."""
    places = ("verdict", "user", "image") if image else ("verdict", "user")
    read = residuals(vlm, prompts, places=places, layers=(0, point), batch_size=BATCH)
    return Pooled(read.at("verdict", point), read.at("user", 0), read.at("image", point) if image else None)


def learn_readout(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    safe: Sequence[bool],
    *,
    point: int | None,
    conjunction: bool,
    folds: int,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A ``Readout``'s tensors, and how it was chosen: the best of ``point`` (None: every one) and penalty.

    All is cross-validated with whole questions left out: the two members of a counterfactual pair share their question,
    so what is left stays balanced, and no question's prior is known beforehand. UserError where the cases are too few.
    """
    labels = torch.as_tensor(list(safe), dtype=torch.bool)
    fold = _folds(prompts, labels, folds=folds, seed=seed)
    points = tuple(range(1, last_layer(vlm) + 1)) if point is None else (point,)
    places = ("verdict", "user", "image") if conjunction else ("verdict", "user")
    read = residuals(vlm, prompts, places=places, layers=(0, *points), batch_size=BATCH)
    best: tuple[float, int, float, float] | None = None
    for here in points:
        at = _at(read, here, conjunction)
        share = share_penalty_of(at, fold)
        for penalty in PENALTIES:
            auroc = area(held_out(at, labels, fold, penalty, share), labels)
            if best is None or auroc > best[0]:
                best = (auroc, here, penalty, share)
    assert best is not None
    auroc, chosen, penalty, share = best
    at = _at(read, chosen, conjunction)
    scores = held_out(at, labels, fold, penalty, share)
    readout = fit_readout(at, labels, penalty, share).scaled(*platt(scores, labels))
    about = {
        "point": chosen,
        "penalty": penalty,
        "share_penalty": share,
        "conjunction": conjunction,
        "n": len(labels),
        "n_safe": int(labels.sum()),
        "folds": folds,
        "auroc": auroc,
        "auroc_shuffled": shuffled_area(at, labels, fold, penalty, share, seed),
    }
    return readout.tensors(), about


def margin_gradient(vlm: "VLM", prompts: "Sequence[Prompt]", *, point: int) -> Float[Tensor, "width"]:
    """The mean gradient of the Yes/No margin with respect to the verdict's state at ``point``.

    Over an even choice of at most 128 of ``prompts``; logits per unit of the residual stream, float32 on the CPU.
    """
    # A mean over many cases hardly moves with the last of them, and each costs a backward pass.
    prompts = prompts[:: -(-len(prompts) // GRADIENT_CASES)]
    total = torch.zeros(1)
    for first in range(0, len(prompts), BATCH):
        encoded = dict(vlm.encode(prompts[first : first + BATCH]))
        if vlm.layout.position_kind == "1d":  # as generate() counts them
            encoded["position_ids"] = (encoded["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
        leaves: list[Tensor] = []

        def begin(here: LayerStates, leaves: list[Tensor] = leaves) -> Tensor:
            leaves.append(here.hidden.detach().requires_grad_())
            return leaves[0]

        with torch.enable_grad(), edit_residual(vlm, begin, layers=[point]):
            margins = vlm.margin(vlm.model(**encoded, logits_to_keep=1).logits[:, -1])
            (gradient,) = torch.autograd.grad(margins.sum(), leaves)
        total = total + gradient[:, -1].float().sum(0).cpu()  # left padding: the verdict is the last column
    return total / len(prompts)


def _at(read: Any, point: int, image: bool) -> Pooled:
    return Pooled(read.at("verdict", point), read.at("user", 0), read.at("image", point) if image else None)


def _folds(prompts: "Sequence[Prompt]", labels: Bool[Tensor, "row"], *, folds: int, seed: int) -> Int[Tensor, "row"]:
    """The fold of each case, whole questions together."""
    if not labels.any() or labels.all():
        raise UserError(
            f"{int(labels.sum())} safe and {int((~labels).sum())} unsafe cases; a probe is fitted on both; take more "
            "cases"
        )
    questions = list(dict.fromkeys(prompt.text for prompt in prompts))
    if len(questions) < folds:
        raise UserError(
            f"{len(questions)} different questions; a probe is chosen by leaving out one of {folds} parts of them; "
            "take more cases"
        )
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(seed)).tolist()
    place = {questions[index]: number % folds for number, index in enumerate(order)}
    return torch.tensor([place[prompt.text] for prompt in prompts])


def _mean(hidden: Float[Tensor, "row column width"], where: Bool[Tensor, "row column"]) -> Float[Tensor, "row width"]:
    return torch.stack([row[there].float().mean(0) for row, there in zip(hidden, where, strict=True)])


KIND = "TruthReadout"
FOLDS = 5


@dataclass(frozen=True)
class TruthReadout:
    """Learns a probe of the truth from labelled cases, and adds its logit to the model's own verdict.

    *What it is:* a classifier trained on n labelled cases that reads the model's own hidden states. At the verdict
    column (``point`` of the residual stream; None: the one that reads best) a linear probe says how much more likely
    safe is than unsafe, in logits. What the question alone explains of the hidden state is taken away first (a linear
    regression on the mean embedding of the question's tokens, which needs no label), for it drowns the rest. While
    generating, ``strength`` times that logit is added at the same place, along the mean gradient of the Yes/No margin,
    of such a length that the margin moves by as many logits to first order; the answer's text follows its first token.
    ``strength`` 0 changes nothing.

    With ``conjunction`` the probe also reads products of the mean image state and the question's embedding. Then it
    *computes* which pictures make which sentences safe, and finds what the model may never have joined.

    *What it cannot claim:* that the model "knows" more than a linear probe of these cases finds; that it holds for
    sentences unlike those learned from, whose prior it has never seen; or that it is no threshold: ``shift`` and the
    table of a study tell. The number of cases, the cross-validated AUROC (folds of whole questions) and the AUROC with
    the labels shuffled stand in the file and in ``LearnedReadout.about``.
    """

    strength: float = 4.0
    shift: float = 0.0
    point: int | None = None
    conjunction: bool = False
    seed: int = 0
    yes_no_only: ClassVar[bool] = True  # what is read is brought to the Yes/No margin

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_strength(self.strength)
        check_shift(self.shift)
        check_point(self.point)
        check_seed(self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedReadout":
        """The probe of the point and penalty with the best cross-validated AUROC, fitted on all cases.

        Raises:
            UserError: one kind of case or nearly all questions missing, or a point that the model does not have.
        """

        tensors, about = learn_readout(
            vlm, prompts, safe, point=self.point, conjunction=self.conjunction, folds=FOLDS, seed=self.seed
        )
        gradient = margin_gradient(vlm, prompts, point=about["point"])
        tensors["direction"] = gradient / gradient.square().sum()
        write_vectors(out, KIND, tensors, {**about, "model": vlm.name, "revision": vlm.revision})
        return self.read(out)

    def read(self, out: Path) -> "LearnedReadout":
        """What was learned into ``out``; UserError for another file."""
        read_vectors(out, KIND)
        return LearnedReadout(out, digest_of(out), strength=self.strength, shift=self.shift)


@dataclass(frozen=True)
class LearnedReadout:
    """What ``TruthReadout`` has learned, at work; see there. ``digest`` is that of the file ``path``."""

    path: Path = field(repr=False, compare=False)
    digest: str
    strength: float = 4.0
    shift: float = 0.0
    yes_no_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_strength(self.strength)
        check_shift(self.shift)

    @cached_property
    def _vectors(self) -> Vectors:
        return read_vectors(self.path, KIND)

    @property
    def about(self) -> dict[str, Any]:
        """How it was learned: ``point``, ``n``, ``n_safe``, held-out ``auroc`` and ``auroc_shuffled``, penalties."""
        return self._vectors.about

    def logits(self, vlm: "VLM", prompts: "Sequence[Prompt]") -> "Float[Tensor, 'row']":
        """What the probe says of each prompt, one forward a batch: logits that it is safe, float32 on the CPU."""

        return self._readout(vlm).logits(pooled(vlm, prompts, self.about["point"], image=self.about["conjunction"]))

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with the probe's logit brought to the verdict; margins are those of the changed model.

        Raises:
            UserError: another model than it was learned on.
        """
        from interp.hooks.residual import edit_residual

        def answer(asked: "VLM") -> "Generation":
            return asked.generate(prompts, max_new_tokens=max_new_tokens, encoded=asked.encode(prompts))

        point, tensors = int(self.about["point"]), self._vectors.tensors
        bring = Bringing(self._readout(vlm), self.strength * tensors["direction"], point=point)
        with edit_residual(vlm, bring.edit, layers=sorted({0, point})):
            return with_shift(vlm, self.shift, answer) if self.shift else answer(vlm)

    def _readout(self, vlm: "VLM") -> "Readout":
        from mitigation.ridge_probe import Readout

        tensors = self._vectors.tensors
        check_model(vlm, self._vectors, len(tensors["direction"]))
        return Readout(**{name: tensor for name, tensor in tensors.items() if name != "direction"})
