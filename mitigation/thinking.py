"""Thinking as a setting: no thought, a bounded one, or one that begins with given words.

Budget forcing as in s1 (Muennighoff et al. 2025, arXiv 2501.19393, section 3): where a thought has taken its tokens,
the closing mark is written, and the model answers. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS
from mitigation.method import Work
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
        _check_thinks(vlm)
        thoughts = vlm.thoughts
        opening, closing = thoughts.tokens(vlm.render(prompts[0]))
        words = tuple(vlm.tokenizer(self.begins, add_special_tokens=False)["input_ids"]) if self.begins else ()
        asked = [replace(one, begun=(*one.begun, *opening, *words)) for one in prompts]
        if self.budget is None:
            return vlm.generate(asked, max_new_tokens=max_new_tokens)
        from mitigation.processors import ThoughtBudgetLogitsProcessor

        marks = [opening or thoughts.tokens("")[0]]
        bound = ThoughtBudgetLogitsProcessor(max(self.budget - len(words), 0), closing, thoughts.closed, marks)
        return vlm.generate(asked, max_new_tokens=max_new_tokens, logits_processor=[bound])


@dataclass(frozen=True)
class ThoughtAndAnswer:
    """The ``thought`` of one method, and behind it the ``answer`` of another: where does a mitigation act?

    With ``VCD`` and ``Baseline`` as the two, or the other way round, a contrast changes the thought alone, or the
    verdict alone. Either part has ``max_new_tokens``. Margins are those of ``answer``; where no thought came to its end
    both are ``thought``'s.
    """

    thought: Any  # Methods; Any because Hydra instantiates them separately
    answer: Any
    unscored: ClassVar[str] = Thinking.unscored
    work: ClassVar[Work] = Work(prompts=4, branches=2)

    def __post_init__(self) -> None:
        for name, part in (("thought", self.thought), ("answer", self.answer)):
            if not callable(getattr(part, "generate", None)) or isinstance(part, Thinking | ThoughtAndAnswer):
                raise UserError(f"{name}={part!r}: is a method that leaves thinking alone, as VCD() or Baseline()")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``Method.generate``.

        Raises:
            UserError: the model does not think first, by its chat template.
        """
        from interp.margin import Place

        _check_thinks(vlm)
        first = self.thought.generate(vlm, prompts, max_new_tokens=max_new_tokens)
        lengths, closed = first.thought_tokens, vlm.thoughts.closed
        told = [ids[:count] for ids, count in zip(first.token_ids, lengths, strict=True)]
        rows = [row for row, ids in enumerate(told) if ids and closed(ids)]
        if not rows:
            return cast("Generation", first)
        begun = [replace(prompts[row], begun=(*prompts[row].begun, *told[row])) for row in rows]
        second = self.answer.generate(vlm, begun, max_new_tokens=max_new_tokens)
        places = second.verdicts or [Place(0, vlm.answer_ids)] * len(rows)
        behind = [
            place._replace(step=None if place.step is None else place.step + len(told[row]))
            for row, place in zip(rows, places, strict=True)
        ]
        whole = replace(
            second,
            token_ids=[[*told[row], *ids] for row, ids in zip(rows, second.token_ids, strict=True)],
            thoughts=[first.thoughts[row] for row in rows],
            thought_tokens=[lengths[row] for row in rows],
            verdicts=behind,
        )
        return replace(first.with_rows(rows, whole), branch="", branch_margins=None)


def _check_thinks(vlm: "VLM") -> None:
    if not vlm.thinks:
        raise UserError(
            f"{vlm.name} does not think first, by its chat template, so there is no thought to bound or begin; "
            f"take another method, or {NAME_THE_MARKS}"
        )
