"""A thought is a prefix of the answer: it may be empty, bounded, begun with given words, or another method's.

Each has two steps: *think*, then *answer* with the finished thought as a prefix. A budget is as in s1 (Muennighoff et
al. 2025, arXiv 2501.19393, section 3): if a thought has used its tokens, the method writes the closing mark, and the
model answers. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS
from mitigation.method import Work, check_count

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

    Generate = Callable[..., Generation]  # as ``Method.generate``

OFF = "off"


@dataclass(frozen=True)
class Thinking:
    """Greedy answers with the thought bounded by ``budget`` tokens (None: by nothing; ``off`` or 0: an empty thought).

    ``begins`` are the words that the thought begins with, as "The picture shows"; they count towards the budget. With a
    budget, thought and answer are two steps, and each has at most ``max_new_tokens``.

    Raises:
        UserError: a budget below 0 or no number, or words to begin a thought that is switched off.
    """

    budget: Any = None
    begins: str = ""
    unscored: ClassVar[str] = "a thought comes first, which a single token does not have"
    work: ClassVar[Work] = Work(prompts=2)  # the second time to answer

    def __post_init__(self) -> None:
        if self.budget == OFF:
            object.__setattr__(self, "budget", 0)
        if self.budget is not None:
            check_count("budget", self.budget, 0)
        if self.budget == 0 and self.begins:
            raise UserError(
                f"budget={self.budget} and begins={self.begins!r}: a thought that is switched off begins with nothing; "
                "remove one of them"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``Method.generate``. The answers' tokens include the tokens that the method wrote.

        Raises:
            UserError: the model does not think first, by its chat template.
        """
        _check_thinks(vlm)
        thoughts = vlm.thoughts
        opening, closing = thoughts.tokens(vlm.render(prompts[0]))
        marks = [list(closing), list(opening or thoughts.tokens("")[0])]
        # A thought with a budget may not go on after it.
        once: dict[str, Any] = {} if self.budget is None else {"bad_words_ids": marks}
        if all(prompt.answer_prefix and thoughts.closed(vlm.prefix_tokens(prompt)) for prompt in prompts):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens, **once)
        words = tuple(vlm.tokenizer(self.begins, add_special_tokens=False)["input_ids"]) if self.begins else ()
        written = [(*opening, *words)] * len(prompts)
        begun = _continued(prompts, written)
        if self.budget is None:
            return _joined(vlm, prompts, written, vlm.generate(begun, max_new_tokens=max_new_tokens))
        left = min(self.budget - len(words), max_new_tokens)
        first = vlm.generate(begun, max_new_tokens=left) if left > 0 else None
        rows = [row for row in range(len(prompts)) if first is None or not first.finished[row]]
        if first is not None and not rows:
            return _joined(vlm, prompts, written, first)
        prefixes = [closing if first is None else _closed(vlm, first, row, closing) for row in rows]
        unfinished = [begun[row] for row in rows]
        second = vlm.generate(_continued(unfinished, prefixes), max_new_tokens=max_new_tokens, **once)
        second = _joined(vlm, unfinished, prefixes, second)
        return _joined(vlm, prompts, written, second if first is None else first.with_rows(rows, second))


@dataclass(frozen=True)
class TwoSteps:
    """The ``thought`` of one method, and the ``answer`` of another from the verdict on: where does a mitigation act?

    Use VCD for one step and the baseline for the other to contrast only the thought or only the verdict. Either step
    has ``max_new_tokens``. Margins belong to ``answer``. If no verdict comes, answer and margin belong to ``thought``.
    """

    thought: Any  # Methods; Any because Hydra instantiates them separately
    answer: Any
    unscored: ClassVar[str] = Thinking.unscored
    work: ClassVar[Work] = Work(prompts=4, branches=2)

    def __post_init__(self) -> None:
        for name, part in (("thought", self.thought), ("answer", self.answer)):
            if not callable(getattr(part, "generate", None)) or isinstance(part, Thinking | TwoSteps):
                raise UserError(
                    f"{name}={part!r}: must be a method that does not change thinking, such as VCD() or Baseline()"
                )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``Method.generate``.

        Raises:
            UserError: the model does not think first, by its chat template.
        """
        _check_thinks(vlm)
        return in_two_steps(vlm, prompts, self.thought.generate, self.answer.generate, max_new_tokens)


def in_two_steps(
    vlm: "VLM", prompts: "Sequence[Prompt]", think: "Generate", answer: "Generate", max_new_tokens: int
) -> "Generation":
    """Return answers by ``think`` up to their verdicts, and by ``answer`` from the verdicts on.

    A verdict is then the next token after a prompt and its prefix. The prefix is the thought with the model's own
    tokens before its verdict.
    """
    first = think(vlm, prompts, max_new_tokens=max_new_tokens)
    steps = first.verdict_steps or [0] * len(prompts)
    rows = [row for row, step in enumerate(steps) if step is not None]
    if not rows:
        return first
    scored = [prompts[row] for row in rows]
    prefixes = [first.token_ids[row][: steps[row]] for row in rows]
    second = _joined(vlm, scored, prefixes, answer(vlm, _continued(scored, prefixes), max_new_tokens=max_new_tokens))
    if second.unshifted is not None:
        first = replace(first, unshifted=first.margins)
    if second.branch_margins is None:
        first = replace(first, branch_margins=None)
    branch = second.branch if second.branch == first.branch else ""
    return replace(first.with_rows(rows, second), sampled=first.sampled or second.sampled, branch=branch)


def _continued(prompts: "Sequence[Prompt]", prefixes: Sequence[Sequence[int]]) -> "list[Prompt]":
    """Return each prompt with more tokens of its answer."""
    return [
        replace(prompt, answer_prefix=(*prompt.answer_prefix, *ids))
        for prompt, ids in zip(prompts, prefixes, strict=True)
    ]


def _joined(
    vlm: "VLM", prompts: "Sequence[Prompt]", prefixes: Sequence[Sequence[int]], generation: "Generation"
) -> "Generation":
    """Return the answers to ``prompts`` that begin with ``prefixes`` and go on as in ``generation``."""
    rows = [[*ids, *more] for ids, more in zip(prefixes, generation.token_ids, strict=True)]
    later = generation.verdict_steps or [0] * len(rows)
    steps = [None if step is None else len(ids) + step for ids, step in zip(prefixes, later, strict=True)]
    spoken = vlm.split_thoughts(rows, generation.prompts or (), [vlm.prefix_tokens(prompt) for prompt in prompts])
    return replace(generation, token_ids=rows, verdict_steps=steps, **spoken)


def _closed(vlm: "VLM", generation: "Generation", row: int, closing: Sequence[int]) -> Sequence[int]:
    """Return the thought of one answer: without the tokens after it, or with the mark that it lacks."""
    ids, length = generation.token_ids[row], (generation.thought_tokens or [0])[row]
    return ids[:length] if vlm.thoughts.closed(ids) else [*ids, *closing]


def _check_thinks(vlm: "VLM") -> None:
    if not vlm.thinks:
        raise UserError(
            f"{vlm.name} does not think first, by its chat template, so there is no thought to bound or begin; choose "
            f"another method, or {NAME_THE_MARKS}"
        )
