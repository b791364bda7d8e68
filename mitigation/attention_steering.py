"""Attention steering: attention logits on the picture raised in chosen layers while the model generates.

The idea is PAI's (Liu et al. 2024, arXiv 2407.21771), which raises every layer from a first one on; which layers matter
is what ``interp.attention_knockout`` measures. Importing this module loads neither torch nor transformers; generating
does (``mitigation.attention_edit``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.method import Baseline, abilities
from mitigation.validation import check_layers, check_pictured, check_weight

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class AttentionSteering:
    """Greedy answers with ``weight`` added to the attention logits on image tokens in ``layers`` (None: all).

    ``layers`` count decoder layers from 0. ``relative`` and ``all_text`` as in
    ``mitigation.attention_edit.steer_attention``: weight times the logit's size instead of a constant, and every
    token of text after the picture instead of the prompt's last and the generated ones. ``method`` answers under the
    steering (None: greedily); a second branch of it, as prior correction's, is not steered. A weight of 0 is that
    method as it is.
    """

    weight: float = 1.0
    layers: Any = None  # a sequence of indices, kept as a tuple: a configuration's is a list
    relative: bool = False
    all_text: bool = False
    method: Any = None  # a Method; the type of a Hydra node that is built by itself

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_weight(self.weight)
        check_layers(self.layers)
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
        if self.method is not None and not callable(getattr(self.method, "generate", None)):
            raise UserError(f"method={self.method!r}; what answers under steering is a method such as VCD(); name one")

    @property
    def yes_no_only(self) -> bool:
        """As the method that answers."""
        return abilities(self.method).yes_no_only

    @property
    def unscored(self) -> str:
        """The method's own reason; see ``mitigation.method.Abilities``."""
        return abilities(self.method).unscored

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers with margins as steered.

        Raises:
            UserError: a prompt has no image, the family has no image tokens in its sequence or no such layer, or as
                ``method``'s.
        """
        from mitigation.attention_edit import steer_attention

        check_pictured(prompts, "attention is steered towards an image's tokens")
        method = Baseline() if self.method is None else self.method
        with steer_attention(vlm, self.weight, layers=self.layers, relative=self.relative, all_text=self.all_text):
            return method.generate(vlm, prompts, max_new_tokens=max_new_tokens)
