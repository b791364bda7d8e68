"""A probe of the truth in the residual stream (``mitigation.ridge_probe``), whose logit is added to the verdict.

Importing this module loads neither torch nor transformers; learning and generating do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interp.tensor_file import check_model, digest_of, read_tensors, write_tensors
from mitigation.method import TrainedFile
from mitigation.validation import check_point, check_seed, check_strength

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt
    from mitigation.ridge_probe import Readout

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
    sentences unlike those learned from, whose prior it has never seen; or that it is no threshold: ``Shifted`` and the
    table of a study tell. The number of cases, the cross-validated AUROC (folds of whole questions) and the AUROC with
    the labels shuffled stand in the file and in ``LearnedReadout.about``.
    """

    strength: float = 4.0
    point: int | None = None
    conjunction: bool = False
    seed: int = 0
    yes_no_only: ClassVar[bool] = True  # what is read is brought to the Yes/No margin

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_strength(self.strength)
        check_point(self.point)
        check_seed(self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedReadout":
        """The probe of the point and penalty with the best cross-validated AUROC, fitted on all cases.

        Raises:
            UserError: one kind of case or nearly all questions missing, or a point that the model does not have.
        """
        from mitigation.ridge_probe import learn_readout, margin_gradient

        tensors, about = learn_readout(
            vlm, prompts, safe, point=self.point, conjunction=self.conjunction, folds=FOLDS, seed=self.seed
        )
        gradient = margin_gradient(vlm, prompts, point=about["point"])
        tensors["direction"] = gradient / gradient.square().sum()
        write_tensors(out, LearnedReadout.KIND, tensors, about, vlm=vlm)
        return self.read(out)

    def read(self, out: Path) -> "LearnedReadout":
        """What was learned into ``out``.

        Raises:
            UserError: the file is another method's.
        """
        read_tensors(out, LearnedReadout.KIND)
        return LearnedReadout(out, digest_of(out), strength=self.strength)


@dataclass(frozen=True)
class LearnedReadout(TrainedFile):
    """What ``TruthReadout`` has learned, in use; see there.

    ``about`` holds ``point``, ``n``, ``n_safe``, the held-out ``auroc`` and ``auroc_shuffled``, and the penalties.
    """

    KIND: ClassVar[str] = "TruthReadout"
    strength: float = 4.0
    yes_no_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_strength(self.strength)

    def logits(self, vlm: "VLM", prompts: "Sequence[Prompt]") -> "Float[Tensor, 'row']":
        """What the probe says of each prompt, one forward a batch: logits that it is safe, float32 on the CPU."""
        from mitigation.ridge_probe import pooled

        return self._readout(vlm).logits(pooled(vlm, prompts, self.about["point"], image=self.about["conjunction"]))

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with the probe's logit brought to the verdict; margins are those of the changed model.

        Raises:
            UserError: another model than it was learned on.
        """
        from interp.hooks.residual import edit_residual
        from mitigation.ridge_probe import VerdictEdit

        point, tensors = int(self.about["point"]), self._vectors.tensors
        added = VerdictEdit(self._readout(vlm), self.strength * tensors["direction"], point=point)
        with edit_residual(vlm, added.edit, layers=sorted({0, point})):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)

    def _readout(self, vlm: "VLM") -> "Readout":
        from mitigation.ridge_probe import Readout

        tensors = self._vectors.tensors
        check_model(vlm, self._vectors, len(tensors["direction"]))
        return Readout(**{name: tensor for name, tensor in tensors.items() if name != "direction"})
