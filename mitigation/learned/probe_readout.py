"""Adds the logit of a probe of the truth (``mitigation.learned.ridge_probe``) to the verdict.

Importing this module loads neither torch nor transformers; learning and generating do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interp.tensor_file import check_model, write_tensors
from mitigation.method import TrainedFile, check_layer, check_number, check_seed

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt
    from mitigation.learned.ridge_probe import Readout

FOLDS = 5


@dataclass(frozen=True)
class TruthReadout:
    """Learns a probe of the truth from labelled cases, and adds its logit to the model's own verdict.

    *What it is:* a classifier of the model's own hidden states, trained on n labelled cases. At the verdict column
    (``layer`` of the residual stream; None: the best one) a linear probe predicts safe against unsafe, in logits. The
    part of the hidden state that the question alone explains is removed first (by a linear regression on the mean
    embedding of the question's tokens, which needs no labels), because it would dominate. While generating,
    ``strength`` times that logit is added at the same place along the mean gradient of the margin, scaled to
    move the margin by as many logits to first order. The rest of the answer follows from its first token. ``strength``
    0 changes nothing.

    With ``conjunction`` the probe also reads products of the mean image state and the question's embedding. It then
    *computes* which pictures make which sentences safe, a combination that the model itself may not represent.

    *What it cannot show:* that the model "knows" more than a linear probe finds in these cases; that the probe
    generalises to sentences unlike the training ones; or that it is more than a shift of the threshold (compare with
    ``Shifted``). The file and ``LearnedReadout.about`` hold the number of cases, the cross-validated AUROC (folds of
    whole questions) and the AUROC with shuffled labels.
    """

    strength: float = 4.0
    layer: int | None = None
    conjunction: bool = False
    seed: int = 0
    follows_margin: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("strength", self.strength)
        check_layer(self.layer)
        check_seed(self.seed)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Checks, before any weights load, that these cases can teach it.

        Raises:
            UserError: a class is missing, or there are too few different questions.
        """
        from mitigation.learned.ridge_probe import question_folds

        question_folds(questions, safe, folds=FOLDS, seed=self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedReadout":
        """Fit the probe on all cases, at the layer and penalty with the best cross-validated AUROC.

        Raises:
            UserError: a class is missing, there are too few questions, or the model does not have ``layer``.
        """
        from mitigation.learned.ridge_probe import learn_readout, margin_gradient

        tensors, about = learn_readout(
            vlm, prompts, safe, layer=self.layer, conjunction=self.conjunction, folds=FOLDS, seed=self.seed
        )
        gradient = margin_gradient(vlm, prompts, layer=about["layer"])
        tensors["direction"] = gradient / gradient.square().sum()
        write_tensors(out, LearnedReadout.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedReadout":
        """Read what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        return LearnedReadout.from_file(out, strength=self.strength)


@dataclass(frozen=True)
class LearnedReadout(TrainedFile):
    """A trained ``TruthReadout``.

    ``about`` holds ``layer``, ``n``, ``n_safe``, the held-out ``auroc`` and ``auroc_shuffled``, and the penalties.
    """

    KIND: ClassVar[str] = "TruthReadout"
    strength: float = 4.0

    def __post_init__(self) -> None:
        check_number("strength", self.strength)

    def logits(self, vlm: "VLM", prompts: "Sequence[Prompt]") -> "Float[Tensor, ' row']":
        """Return the probe's logit of safe for each prompt, with one forward per batch; float32 on the CPU."""
        from mitigation.learned.ridge_probe import pooled

        return self._readout(vlm).logits(pooled(vlm, prompts, self.about["layer"], image=self.about["conjunction"]))

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with the probe's logit added to the verdict; margins include it.

        Raises:
            UserError: it was learned on another model.
        """
        from interp.hooks.residual import edit_residual
        from mitigation.learned.ridge_probe import VerdictEdit

        layer, tensors = int(self.about["layer"]), self._vectors.tensors
        added = VerdictEdit(self._readout(vlm), self.strength * tensors["direction"], layer=layer)
        with edit_residual(vlm, added.edit, layers=sorted({0, layer})):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)

    def _readout(self, vlm: "VLM") -> "Readout":
        from mitigation.learned.ridge_probe import Readout

        tensors = self._vectors.tensors
        check_model(vlm, self._vectors)
        return Readout(**{name: tensor for name, tensor in tensors.items() if name != "direction"})
