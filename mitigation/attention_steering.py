"""Attention steering: raises attention logits on the picture in chosen layers while the model generates.

After PAI (Liu et al. 2024, arXiv 2407.21771), which steers every layer from a first one on. Use
``interp.tools.knockout`` to find the layers that matter. Importing this module loads neither torch nor
transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.method import Around, Baseline, check_layers, check_number, check_pictured
from mitigation.vcd import in_two_branches

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class AttentionSteering(Around):
    """Greedy answers with ``weight`` added to the attention logits on image tokens in ``layers`` (None: all).

    ``layers`` are decoder layers, from 0. ``relative`` adds weight times the size of the logit instead of a constant.
    ``all_text`` steers every text token after the picture, not only the prompt's last and the generated ones
    (``mitigation.attention_edit.steer_attention``). ``method`` answers under the steering (None: greedily); its second
    branch, if any, is not steered. A weight of 0 leaves the method unchanged.
    """

    weight: float = 1.0
    layers: Any = None  # a sequence of indices, stored as a tuple; a list in a configuration
    relative: bool = False
    all_text: bool = False
    method: Any = None  # a Method; Any because Hydra instantiates it separately

    def __post_init__(self) -> None:
        check_number("weight", self.weight)
        check_layers(self.layers)
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
        if self.method is not None and not callable(getattr(self.method, "generate", None)):
            raise UserError(
                f"method={self.method!r}; it must be a method such as VCD(), which answers under steering; give one"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return answers and margins of the steered model.

        Raises:
            UserError: a prompt has no image, the family has no image tokens in its sequence or no such layer, or
                ``method`` raises it.
        """
        from mitigation.attention_edit import steer_attention

        check_pictured(prompts, "attention is steered towards an image's tokens")
        method = Baseline() if self.method is None else self.method
        with steer_attention(vlm, self.weight, layers=self.layers, relative=self.relative, all_text=self.all_text):
            return in_two_branches(method).generate(vlm, prompts, max_new_tokens=max_new_tokens)  # type: ignore[no-any-return]
