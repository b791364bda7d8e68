"""Questions that a method asks before its answer: in batches, recorded by name, and reused while a study is open.

    steps = Steps(vlm, len(prompts))
    descriptions = steps.ask("description", dict(enumerate(prompts)), max_new_tokens=64)
    return steps.answers({row: …}, max_new_tokens=max_new_tokens)

The model itself answers steps, greedily. Wrappers that shift or draw tokens (``mitigation.wrappers``), and tools that
record or edit forwards, only apply to the answer. Importing this module loads no torch.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from interp.errors import UserError
from mitigation.wrappers import unwrapped

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

LOST = ("provider_blocked", "transport_failed", "bad_image")  # of a remote model: such a step has said nothing


@dataclass(frozen=True)
class StepAnswer:
    """The model's answer in one step; ``status`` and ``reason`` as in ``Generation``."""

    text: str
    status: str = ""
    reason: str = ""


_SHARED: ContextVar[tuple[Any, dict[Any, StepAnswer]] | None] = ContextVar("shared_steps", default=None)


@contextmanager
def shared_steps(model: Any) -> Iterator[None]:
    """While open, ask no step of ``model`` twice: methods that ask the same about a picture share the answer."""
    token = _SHARED.set((model, {}))
    try:
        yield
    finally:
        _SHARED.reset(token)


@dataclass
class Steps:
    """The steps of one batch of ``count`` prompts. ``rows`` are the texts by name; ``lost`` are the failed steps."""

    vlm: "VLM"
    count: int
    rows: list[dict[str, str]] = field(init=False)
    lost: dict[int, StepAnswer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = [{} for _ in range(self.count)]

    def ask(self, name: str, prompts: "Mapping[int, Prompt]", *, max_new_tokens: int) -> dict[int, str]:
        """Ask one prompt of each row and record its answer under ``name``. Skip rows with a failed step.

        Raises:
            UserError: the model cannot be asked this.
        """
        wanted = {row: replace(prompt, answer_prefix=()) for row, prompt in prompts.items() if row not in self.lost}
        answers = _answers(unwrapped(self.vlm), wanted, max_new_tokens)
        texts = {}
        for row, answer in answers.items():
            self.rows[row][name] = answer.text
            if answer.status in LOST:
                self.lost[row] = replace(answer, reason=f"{name}: {answer.reason}")
            else:
                texts[row] = answer.text
        return texts

    def note(self, row: int, name: str, text: str) -> None:
        """Record a text that needs no question."""
        self.rows[row][name] = text

    def answers(self, prompts: "Mapping[int, Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return the answers with these steps, by the model as it was passed (wrapped). Failed rows are empty."""
        rows = [row for row in sorted(prompts) if row not in self.lost]
        remaining = [prompts[row] for row in rows]
        if len(rows) == self.count and remaining:
            return self.noted(self.vlm.generate(remaining, max_new_tokens=max_new_tokens))
        answers = self._lost_answers()
        if remaining:
            given = self.vlm.generate(remaining, max_new_tokens=max_new_tokens)
            answers = replace(answers.with_rows(rows, given), sampled=given.sampled)
        return self.noted(answers)

    def noted(self, generation: "Generation") -> "Generation":
        """Return the answers with these steps."""
        return replace(generation, steps=self.rows)

    def _lost_answers(self) -> "Generation":
        """Return empty answers, with the status of each failed step."""
        import torch

        from interp.generation import Generation

        lost = [self.lost.get(row, StepAnswer("")) for row in range(self.count)]
        return Generation(
            texts=[""] * self.count,
            token_ids=[[] for _ in lost],
            margins=torch.full((self.count,), torch.nan),
            finished=[False] * self.count,
            statuses=[answer.status for answer in lost],
            reasons=[answer.reason for answer in lost],
        )


def check_words(vlm: "VLM", way_out: str) -> None:
    """Check, before the first question, that the model answers without a picture.

    Raises:
        UserError: it cannot; ``way_out`` ends the sentence.
    """
    from interp.prompt import Prompt

    model = unwrapped(vlm)
    if not hasattr(model, "inputs"):  # a model behind an API says so itself
        return
    try:
        model.inputs([Prompt("?")])
    except UserError as error:
        if "without an image" not in str(error):
            raise
        raise UserError(f"{str(error).partition(';')[0]}, which judging in words does; {way_out}") from error


def _answers(vlm: Any, prompts: "Mapping[int, Prompt]", budget: int) -> dict[int, StepAnswer]:
    """Return the answer to each prompt; ask in batches with and without pictures, and nothing twice."""
    model, shared = _SHARED.get() or (None, {})
    keys = {row: (prompt.content, budget) for row, prompt in prompts.items()} if model is vlm else {}
    answers = {row: shared[key] for row, key in keys.items() if key in shared}
    for pictured in (True, False):
        rows = [row for row in prompts if row not in answers and (prompts[row].image is not None) is pictured]
        if not rows:
            continue
        fresh = dict(zip(rows, _generated(vlm, [prompts[row] for row in rows], budget), strict=True))
        shared |= {keys[row]: answer for row, answer in fresh.items() if keys and answer.status not in LOST}
        answers |= fresh
    return answers


def _generated(vlm: Any, prompts: "list[Prompt]", budget: int) -> list[StepAnswer]:
    from interp.hooks.forward import paused

    with paused():
        given = cast("Generation", vlm.generate(prompts, max_new_tokens=budget))
    return [
        StepAnswer(
            text,
            "" if given.statuses is None else given.statuses[row],
            "" if given.reasons is None else given.reasons[row],
        )
        for row, text in enumerate(given.texts)
    ]
