"""One batch of requests through one method: how its tokens are drawn, reported and stopped.

The method is passed a VLM that adds a stopping criterion, and a logits processor after its own. So every method that
answers through ``vlm.generate`` can be sampled, stopped and asked for its scores. Imports torch: only the
thread that owns the model does so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteriaList

from experiments.serving.requests import Decoding
from interp.errors import UserError
from mitigation.method import abilities, check_answers
from mitigation.processors import CaseSampler
from mitigation.wrappers import ProcessingVLM

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


@dataclass(frozen=True)
class Token:
    """One token of an answer: its text, its log-probability, and the likeliest tokens in its place, likeliest first."""

    text: str
    logprob: float
    alternatives: list[tuple[str, float]]


@dataclass(frozen=True)
class Answer:
    """``ended`` is whether the model or a stop string ended it; False where its tokens ran out."""

    text: str
    ended: bool
    tokens: int
    scores: list[Token] | None = None


@dataclass
class Row:
    """One prompt of a batch.

    Args:
        draw_key: fixes what is drawn for it, with ``seed``.
        given_up: is asked between tokens whether nobody wants the answer any more.
    """

    prompt: "Prompt"
    draw_key: str = ""
    seed: int = 0
    given_up: Callable[[], bool] = lambda: False


def answer(method: Any, vlm: "VLM", rows: Sequence[Row], decoding: Decoding) -> list[Answer]:
    """Return the answers of ``method`` to the prompts, in order.

    Raises:
        UserError: the method cannot answer one of them, or cannot decode as asked.
    """
    _check(method, decoding)
    watched = _WatchedVLM(vlm, _Watch(vlm, rows, decoding))
    prompts = [row.prompt for row in rows]
    generation = method.generate(cast("VLM", watched), prompts, max_new_tokens=decoding.max_tokens)
    check_answers(method, generation, prompts, margins=False)
    _check_system(generation.prompts, prompts)
    return watched.watch.answers(generation)


def _check(method: Any, decoding: Decoding) -> None:
    if abilities(method).sampled and (decoding.temperature or decoding.alternatives is not None):
        raise UserError(
            "this method samples by its own seed and the request's metadata.key; remove temperature and logprobs, or "
            "ask the method without sampling"
        )


def _check_system(rendered: Sequence[str] | None, prompts: "Sequence[Prompt]") -> None:
    """Refuse a method with its own system prompt, which would silently replace the client's."""
    for text, prompt in zip(rendered or (), prompts, strict=False):
        if prompt.system is not None and prompt.system.strip() not in text:
            raise UserError("this method replaces the system prompt by its own; remove yours")


class _WatchedVLM(ProcessingVLM):
    """A VLM whose first ``generate`` is watched; methods that ask again, for a margin, do so unwatched."""

    def __init__(self, vlm: "VLM", watch: "_Watch") -> None:
        super().__init__(vlm, lambda vlm, prompts, encoded, own: watch)
        self.watch = watch

    def generate(self, prompts: "Sequence[Prompt]", **options: Any) -> Any:
        """Return ``VLM.generate``, watched the first time."""
        if self.watch.made is not None:
            return self._vlm.generate(prompts, **options)
        stopping = StoppingCriteriaList([*options.pop("stopping_criteria", ()), self.watch.stopped])
        generation = super().generate(prompts, stopping_criteria=stopping, **options)
        self.watch.made = generation.token_ids
        return generation


class _Watch(LogitsProcessor):
    """What is known of one call of ``generate`` while it runs.

    As a logits processor it runs last: it keeps the scores that the token is chosen from, then draws it
    (``CaseSampler``). The log-probabilities come from the method's final scores, before temperature and top-p.
    """

    sampled: ClassVar[bool] = True  # so that margins are read before it

    def __init__(self, vlm: "VLM", rows: Sequence[Row], decoding: Decoding) -> None:
        self.rows, self.decoding, self.tokenizer = rows, decoding, vlm.tokenizer
        self.columns = 0  # of the prompts
        self.made: list[list[int]] | None = None  # the tokens that were watched
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []  # by step: log-probability chosen, of the likeliest, which
        self._sampler: CaseSampler | None = None
        if decoding.temperature:
            keys, seeds = [row.draw_key for row in rows], [row.seed for row in rows]
            self._sampler = CaseSampler(keys, temperature=decoding.temperature, seed=seeds, top_p=decoding.top_p)

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the scores, with noise where tokens are drawn."""
        self.columns = self.columns or input_ids.shape[1]
        final = scores if self._sampler is None else self._sampler(input_ids, scores)
        if self.decoding.alternatives is not None:
            logprobs = scores.float().log_softmax(-1)
            chosen = logprobs.gather(1, final.argmax(-1, keepdim=True))[:, 0]
            likeliest = logprobs.topk(min(max(self.decoding.alternatives, 1), logprobs.shape[1]))
            self.steps.append((chosen, likeliest.values, likeliest.indices))
        return final

    def stopped(self, input_ids: Int[Tensor, "row position"], scores: Any, **_: Any) -> Bool[Tensor, " row"]:
        """Return which rows are done: at a stop string, or if nobody wants the answer any more."""
        done = [row.given_up() for row in self.rows]
        if self.decoding.stop:
            texts = map(self.text, input_ids[:, self.columns :].tolist())
            done = [left or self.stop_in(text) >= 0 for left, text in zip(done, texts, strict=True)]
        return torch.tensor(done, device=input_ids.device)

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stop_in(self, text: str) -> int:
        """Return where the first stop string begins, −1 if there is none."""
        return min((text.find(stop) for stop in self.decoding.stop if stop in text), default=-1)

    def answers(self, generation: Any) -> list[Answer]:
        """Return the answers. Check that they are the ones that were watched.

        Raises:
            UserError: the method made its answers otherwise, and what was asked needs them as they were made.
        """
        drawn = self.decoding.temperature or self.decoding.stop or self.decoding.alternatives is not None
        if drawn and self.made is None:
            raise UserError(
                "this method has its own decoding loop; temperature, stop and logprobs need a method that answers "
                "through vlm.generate"
            )
        if drawn and generation.token_ids != self.made:
            raise UserError(
                "this method makes its answers in several steps; ask it without temperature, stop and logprobs"
            )
        scores = self._scores(generation.token_ids)
        answers = []
        for row, (ids, ended) in enumerate(zip(generation.token_ids, generation.finished, strict=True)):
            text, written = generation.texts[row], self.text(ids)
            if generation.thoughts and generation.thoughts[row]:
                text = written.strip()  # as the model wrote it: whoever asks tells its thought apart
            if (end := self.stop_in(written)) >= 0:
                text, ended = written[:end].strip(), True
            answers.append(Answer(text, bool(ended), len(ids), None if scores is None else scores[row]))
        return answers

    def _scores(self, answers: Sequence[Sequence[int]]) -> list[list[Token]] | None:
        """Return the tokens of each answer with their log-probabilities; None if none were asked for."""
        if self.decoding.alternatives is None:
            return None
        steps = [tuple(part.tolist() for part in step) for step in self.steps]
        return [
            [self._token(token, *(part[row] for part in steps[step])) for step, token in enumerate(ids)]
            for row, ids in enumerate(answers)
        ]

    def _token(self, token: int, logprob: float, values: Sequence[float], ids: Sequence[int]) -> Token:
        listed = [(self._piece(i), value) for i, value in zip(ids, values, strict=True) if value > -float("inf")]
        return Token(self._piece(token), logprob, listed[: self.decoding.alternatives])

    def _piece(self, token: int) -> str:
        """Return one token's text with its first space, which decoding would drop."""
        text, piece = str(self.tokenizer.decode([token])), str(self.tokenizer.convert_ids_to_tokens(token))
        return f" {text}" if piece[:1] in ("▁", "Ġ") and not text.startswith(" ") else text
