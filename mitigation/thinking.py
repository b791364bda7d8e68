"""Thinking as a setting: no thought, a bounded one, or one that begins with given words.

Budget forcing as in s1 (Muennighoff et al. 2025, arXiv 2501.19393, section 3): where a thought has taken its tokens,
the closing mark is written, and the model answers. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS
from mitigation.validation import check_count

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

OFF = "off"


@dataclass(frozen=True)
class Thinking:
    """Greedy answers with the thought bounded by ``budget`` tokens (None: by nothing; ``off`` or 0: an empty thought).

    ``begins`` are the words that the thought begins with, as "The picture shows"; they count towards the budget.

    Raises:
        UserError: a budget below 0 or no number, or words to begin a thought that is switched off.
    """

    budget: Any = None
    begins: str = ""
    unscored: ClassVar[str] = "a thought comes first, which a single token does not have"

    def __post_init__(self) -> None:
        if self.budget == OFF:
            object.__setattr__(self, "budget", 0)
        if self.budget is not None:
            check_count("budget", self.budget, 0)
        if self.budget == 0 and self.begins:
            raise UserError(
                f"budget={self.budget} and begins={self.begins!r}: a thought that is switched off begins with nothing; "
                "leave one out"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``Method.generate``. Of a thought that the method wrote in part, ``Generation.thoughts`` has all.

        Raises:
            UserError: the model does not think first, by its chat template.
        """
        if not vlm.thinks:
            raise UserError(
                f"{vlm.name} does not think first, by its chat template, so there is no thought to bound or begin; "
                f"take another method, or {NAME_THE_MARKS}"
            )
        thoughts = vlm.thoughts
        opening, closing = thoughts.tokens(vlm.render(prompts[0]))
        words = tuple(vlm.tokenizer(self.begins, add_special_tokens=False)["input_ids"]) if self.begins else ()
        asked = [replace(one, begun=(*one.begun, *opening, *words)) for one in prompts]
        if self.budget is None:
            return vlm.generate(asked, max_new_tokens=max_new_tokens)
        from mitigation.processors import ThoughtBudgetLogitsProcessor

        bound = ThoughtBudgetLogitsProcessor(max(self.budget - len(words), 0), closing, thoughts.closed)
        return vlm.generate(asked, max_new_tokens=max_new_tokens, logits_processor=[bound])
