"""One batch of requests through one method: how its tokens are drawn, reported, streamed and stopped.

The method is passed a VLM that adds a logits processor after its own and a stopping criterion, so every method that
answers through ``vlm.generate`` can be sampled, stopped, streamed and asked for its scores. Imports torch: only the
thread that owns the model does so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

UNSEEN = "\ufffd"  # what a tokenizer shows of half a character


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
    prompt_tokens: int
    tokens: int
    scores: list[Token] | None = None


@dataclass
class Row:
    """One prompt of a batch. ``draw_key`` and ``seed`` fix what is drawn for it.

    ``on_text`` is called with each new piece of the answer as far as it is certain; ``given_up`` is asked between
    tokens whether anybody still wants the answer.
    """

    prompt: "Prompt"
    draw_key: str = ""
    seed: int = 0
    on_text: Callable[[str], object] | None = None
    given_up: Callable[[], bool] = lambda: False
    sent: str = field(default="", init=False)


def answer(method: Any, vlm: "VLM", rows: Sequence[Row], decoding: Decoding) -> list[Answer]:
    """The answers of ``method`` to the prompts, in order.

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
            "this method draws its tokens itself, by its own seed and the request's metadata.key; leave temperature "
            "and logprobs out, or ask the method that is not sampled"
        )


def _check_system(rendered: Sequence[str] | None, prompts: "Sequence[Prompt]") -> None:
    """A method that sets a system prompt of its own would drop the client's without a word."""
    for text, prompt in zip(rendered or (), prompts, strict=False):
        if prompt.system is not None and prompt.system.strip() not in text:
            raise UserError("this method replaces the system prompt by its own; leave yours out")


class _WatchedVLM(ProcessingVLM):
    """A VLM whose first ``generate`` is watched; methods that ask again, for a margin, do so unwatched."""

    def __init__(self, vlm: "VLM", watch: "_Watch") -> None:
        super().__init__(vlm, lambda vlm, prompts, encoded, own: watch.begun_with(encoded))
        self.watch = watch

    def encode(self, prompts: "Sequence[Prompt]") -> Any:
        """``VLM.encode``; a method with a decoding loop of its own encodes the prompts in order, and nothing else."""
        encoded = self._vlm.encode(prompts)
        if not self.watch.begun:
            self.watch.lengths += encoded["attention_mask"].sum(-1).tolist()
        return encoded

    def generate(self, prompts: "Sequence[Prompt]", **options: Any) -> Any:
        """``VLM.generate``, watched the first time."""
        if self.watch.begun:
            return self._vlm.generate(prompts, **options)
        stopping = StoppingCriteriaList([*options.pop("stopping_criteria", ()), self.watch.stopped])
        generation = super().generate(prompts, stopping_criteria=stopping, **options)
        self.watch.made = generation.token_ids
        return generation


class _Watch(LogitsProcessor):
    """What is known of one call of ``generate`` while it runs.

    As a logits processor it runs last: it keeps the scores that the token is chosen from, then draws it
    (``CaseSampler``). The log-probabilities are those of the method's final scores, before temperature and top-p.
    """

    sampled: ClassVar[bool] = True  # so that margins are read before it

    def __init__(self, vlm: "VLM", rows: Sequence[Row], decoding: Decoding) -> None:
        self.rows, self.decoding, self.tokenizer, self.ends = rows, decoding, vlm.tokenizer, vlm.end_ids
        self.begun = False
        self.columns: int | None = None  # of the prompts
        self.lengths: list[int] = []  # of the prompts, in tokens
        self.made: list[list[int]] = []  # the tokens that were watched
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []  # by step: log-probability chosen, of the likeliest, which
        self._sampler: CaseSampler | None = None
        if decoding.temperature:
            keys, seeds = [row.draw_key for row in rows], [row.seed for row in rows]
            self._sampler = CaseSampler(keys, temperature=decoding.temperature, seed=seeds, top_p=decoding.top_p)

    def begun_with(self, encoded: Mapping[str, Any]) -> "_Watch":
        """Notes the prompts' lengths; itself."""
        self.begun = True
        self.lengths = encoded["attention_mask"].sum(-1).tolist()
        return self

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores, with noise where tokens are drawn."""
        if self.columns is None:
            self.columns = input_ids.shape[1]
        final = scores if self._sampler is None else self._sampler(input_ids, scores)
        if self.decoding.alternatives is not None:
            logprobs = scores.float().log_softmax(-1)
            chosen = logprobs.gather(1, final.argmax(-1, keepdim=True))[:, 0]
            likeliest = logprobs.topk(min(max(self.decoding.alternatives, 1), logprobs.shape[1]))
            self.kept.append((chosen, likeliest.values, likeliest.indices))
        return final

    def stopped(self, input_ids: Int[Tensor, "row position"], scores: Any, **_: Any) -> Bool[Tensor, " row"]:
        """Which rows are done: at a stop string, or where nobody wants the answer any more. Streams on the way."""
        done = [row.given_up() for row in self.rows]
        if self.decoding.stop or any(row.on_text is not None for row in self.rows):
            assert self.columns is not None  # the processor ran before
            for place, tokens in enumerate(input_ids[:, self.columns :].tolist()):
                done[place] = self._stops(self.rows[place], tokens) or done[place]
        return torch.tensor(done, device=input_ids.device)

    def _stops(self, row: Row, tokens: list[int]) -> bool:
        """Whether a stop string is in the answer; streams it otherwise. Nothing is new after an end token."""
        if any(token in self.ends for token in tokens[:-1]):
            return False  # ended before this step: what follows is padding
        if self.stop_in(self.text(tokens)) >= 0:
            return True
        if row.on_text is not None:
            self.stream_certain(row, tokens)
        return False

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stop_in(self, text: str) -> int:
        """Where the first stop string begins, −1 where there is none."""
        positions = [place for stop in self.decoding.stop if (place := text.find(stop)) >= 0]
        return min(positions, default=-1)

    def stream_certain(self, row: Row, tokens: Sequence[int]) -> None:
        """Streams what is certain of the answer so far: whole words, and nothing that may begin a stop string."""
        assert row.on_text is not None
        text = self.text(tokens).lstrip()
        longest = max(map(len, self.decoding.stop), default=1)
        certain = text[: max(text.rfind(" "), text.rfind("\n"), 0)].rstrip()
        certain = certain[: max(0, min(len(certain), len(text) - longest + 1))].rstrip()
        if len(certain) > len(row.sent) and certain.startswith(row.sent) and UNSEEN not in certain:
            piece, row.sent = certain[len(row.sent) :], certain
            row.on_text(piece)

    def answers(self, generation: Any) -> list[Answer]:
        """The answers, checked to be those that were watched.

        Raises:
            UserError: the method made its answers otherwise, and what was asked needs them as they were made.
        """
        drawn = self.decoding.temperature or self.decoding.stop or self.decoding.alternatives is not None
        if drawn and not self.begun:
            raise UserError(
                "this method decodes in a loop of its own; temperature, stop and logprobs need one that answers "
                "through vlm.generate"
            )
        if drawn and generation.token_ids != self.made:
            raise UserError(
                "this method makes its answers in several steps; ask it without temperature, stop and logprobs"
            )
        scores = self._scores(generation.token_ids)
        answers = []
        for place, (row, ids, ended) in enumerate(
            zip(self.rows, generation.token_ids, generation.finished, strict=True)
        ):
            text, whole = generation.texts[place], self.text(ids)
            if generation.thoughts and generation.thoughts[place]:
                text = whole.strip()  # as the model wrote it: whoever asks tells its thought apart
            if (at := self.stop_in(whole)) >= 0:
                text, ended = whole[:at].strip(), True
            if row.on_text is not None:
                if not text.startswith(row.sent):
                    raise UserError("this method changed its answer after it was streamed; ask without stream")
                row.on_text(text[len(row.sent) :])
            length = self.lengths[place] if self.lengths else 0
            answers.append(Answer(text, bool(ended), length, len(ids), None if scores is None else scores[place]))
        return answers

    def _scores(self, answers: Sequence[Sequence[int]]) -> list[list[Token]] | None:
        """The tokens of each answer with their log-probabilities; None where none were asked for."""
        if self.decoding.alternatives is None:
            return None
        steps = [tuple(part.tolist() for part in step) for step in self.kept]
        pieces = []
        for row, ids in enumerate(answers):
            tokens = []
            for step, token in enumerate(ids):
                chosen, values, which = (part[row] for part in steps[step])
                listed = [(self._piece(i), v) for i, v in zip(which, values, strict=True) if v > -float("inf")]
                tokens.append(Token(self._piece(token), chosen, listed[: self.decoding.alternatives]))
            pieces.append(tokens)
        return pieces

    def _piece(self, token: int) -> str:
        """One token's text, with the space that it begins with, which decoding alone would drop."""
        text, piece = str(self.tokenizer.decode([token])), str(self.tokenizer.convert_ids_to_tokens(token))
        return f" {text}" if piece[:1] in ("▁", "Ġ") and not text.startswith(" ") else text
