"""A model behind an endpoint that answers prompts as ``interp.vlm.VLM`` does, without weights, logits or tokens.

Methods that work through prompts only (``mitigation.method.Abilities.works_over_api``) accept it as their model.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.api.client import Endpoint
from experiments.api.config import ApiConfig
from experiments.api.contrast import Answer, AsItIs, Decoder, Margin, margin_of_lists, margin_of_words
from experiments.api.engine import Engine, Failed, ServedTokenizer
from experiments.api.reply import Reply, one_line
from experiments.benchmarks.images import data_url
from experiments.types import Status
from interp.batching import BatchContext
from interp.errors import UserError
from interp.thoughts import Spoken, marks_of, split
from mitigation.branches import BranchMethod
from mitigation.method import Method, abilities

if TYPE_CHECKING:
    from jaxtyping import Float
    from PIL import Image
    from torch import Tensor

    from interp.generation import Generation
    from interp.vlm import Prompt

CONTRASTS = (
    "it contrasts log-probabilities of tokens by their ids, which need model.engine=vllm, model.logprobs=auto and "
    "model.temperature=0"
)
HIDDEN = "answers have no margin: the model thinks first, and the listed log-probabilities are its thought's"
USED_UP = "replies used up max_new_tokens before any answer, as models do that think first; set model.max_tokens"
DEFAULTS = (
    "requests name no penalties, top_p or top_k, so the server's sampling defaults may act; take model.engine=vllm, or "
    "name them in model.extra_body"
)
UNREAD = "requests have no refusal margin: the server did not give the log-probabilities of every opening"
Ask = Callable[[int], tuple[Reply, Answer]]


def check_methods(arms: Mapping[str, Method], config: ApiConfig, *, scored: bool = False) -> None:
    """Refuse arms that need more than the endpoint gives. ``scored`` is whether margins are enough.

    Raises:
        UserError: names the first of them, and its reason.
    """
    for arm, method in arms.items():
        can = abilities(method)
        short = not scored and can.needs_for_answers and f"{can.needs_for_answers}, or take protocol=score"
        if not can.works_over_api and (why := can.needs or ("" if config.by_token else CONTRASTS) or short):
            who = f"arm {arm} ({type(method).__name__})"
            raise UserError(f"{who} cannot be asked of {config.name}: {why}; remove it, or run an open model here")


class ApiModel:
    """One model of an endpoint. Nothing is sent before the first prompt.

    ``batches`` forms batches as a VLM's do, in the order of the prompts. ``reported`` collects the names under which
    the endpoint answered, which may be more specific than ours.

    Raises:
        UserError: see ``ApiConfig.check``; or the ``httpx2`` package is not installed.
    """

    revision = None
    thinks = False  # the template is not read; a thought is seen in the answers

    def __init__(self, config: ApiConfig) -> None:
        self.config = config
        self.name = config.name
        self.batches = BatchContext(self)
        self.reported: set[str] = set()
        self._endpoint = Endpoint(config)
        self._engine = Engine(self._endpoint)
        self.tokenizer = ServedTokenizer(self._engine)
        self._notes: set[str] = set()

    def __repr__(self) -> str:
        return f"ApiModel({self.config!r})"

    def generate(self, prompts: "Sequence[Prompt]", *, max_new_tokens: int = 16) -> "Generation":
        """Answer, ``concurrency`` prompts at a time and in their order, each with its status and reason.

        ``margins`` are NaN if the endpoint gives no log-probabilities of the answer; see ``contrast.margin_of_words``.

        Raises:
            UserError: no prompts, or the endpoint refuses the key, the model or the account.
        """
        if not prompts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark and its limit")
        budget = self.config.max_tokens or max_new_tokens
        if self.config.by_token:
            return self.contrasted(AsItIs(), prompts, [], max_new_tokens=budget)

        def ask(row: int) -> tuple[Reply, Answer]:
            reply = self._split(self._endpoint.ask(self._messages(prompts[row]), budget))
            return reply, Answer([], reply.status is Status.ANSWERED, margin_of_words(reply.listed))

        self._note(DEFAULTS, [self.config.local and not self.config.extra_body] * len(prompts))
        return self._generation(prompts, ask)[0]

    @property
    def requests(self) -> int:
        """The requests for answers that were sent so far."""
        return self._endpoint.requests

    @property
    def end_ids(self) -> set[int]:
        """The tokens that end an answer; see ``Engine.ends``."""
        return self._engine.ends

    def read_openings(
        self, prompts: "Sequence[Prompt]", openings: Sequence[tuple[int, ...]]
    ) -> "Float[Tensor, 'row opening']":
        """Return log P(opening | prompt) from the log-probabilities of prompts; NaN if the server gives none.

        Raises:
            UserError: as ``generate``.
        """
        import torch

        chances = torch.full((len(prompts), len(openings)), math.nan)

        def ask(row: int) -> tuple[Reply, Answer]:
            chances[row] = torch.tensor(self._engine.likelihoods(self._messages(prompts[row]), openings))
            return Reply(Status.ANSWERED), Answer()

        self._each(len(prompts), ask)
        self._note(UNREAD, [bool(row.isnan().any()) for row in chances])
        return chances

    def encode(self, prompts: "Sequence[Prompt]") -> dict[str, Any]:
        """Return the prompts themselves: what a branch of a contrast is asked (``mitigation.branches``)."""
        return {"prompts": list(prompts)}

    def tokens_of(self, prompt: "Prompt") -> list[int] | None:
        """Return the tokens that the server reads of ``prompt``; None if it gives none (``engine`` is not set).

        Raises:
            Failed: no reply, or none with tokens.
        """
        if self.config.engine is None:
            return None
        return self._engine.ask(self._messages(prompt), whole_prompt=True).before

    def contrasted(
        self, method: BranchMethod, prompts: "Sequence[Prompt]", others: Sequence[Any], *, max_new_tokens: int
    ) -> "Generation":
        """Return answers by ``method`` from replies to the ``prompts`` and to its ``others`` branches (``encode``).

        For one token only the margin is asked for (``protocol=score``).

        Raises:
            UserError: as ``generate``; or the server gives no token ids, which whole answers need.
        """
        import torch

        if not self.config.by_token:
            raise UserError(f"{self.name} cannot be asked: {CONTRASTS}; or remove {type(method).__name__}")

        def ask(row: int) -> tuple[Reply, Answer]:
            branches = [self._messages(one) for one in (prompts[row], *(other["prompts"][row] for other in others))]
            if max_new_tokens > 1:
                answer = Decoder(self._engine, method, branches).decode(max_new_tokens)
            else:
                yes, no = self._engine.answers
                lists = [self._engine.name(branch, [], [*yes, *no]) or {} for branch in branches]
                answer = Answer([], True, margin_of_lists(method, lists, yes, no))
            text = self._engine.text(answer.tokens) if answer.tokens else ""
            status = Status.ANSWERED if answer.ended else Status.TRUNCATED
            if max_new_tokens > 1 and not text:
                status = Status.EMPTY
            reply = self._split(Reply(status, text, answer.fault, answer.model))
            return reply, replace(answer, margin=Margin()) if reply.hidden else answer

        generation, answers = self._generation(prompts, ask)
        if not others:
            return generation
        none = [math.nan] * (1 + len(others))
        margins = torch.tensor([answer.margin.branches or none for answer in answers], dtype=torch.float32)
        return method.with_branch_margins(generation, margins.T)

    def _generation(self, prompts: "Sequence[Prompt]", ask: Ask) -> "tuple[Generation, list[Answer]]":
        """Return what ``ask`` says of each row.

        Raises:
            UserError: an answer that has begun, which no request says.
        """
        import torch

        from interp.generation import Generation

        if begun := [prompt.key or prompt.text for prompt in prompts if prompt.answer_prefix]:
            raise UserError(
                f"prompt '{begun[0]}' has an answer that has begun, and a request to {self.name} says nothing of one; "
                "ask a model whose weights are here"
            )
        replies, answers = zip(*self._each(len(prompts), ask), strict=True)
        self.reported |= {reply.model for reply in replies if reply.model}
        self._note(HIDDEN, [reply.hidden and self.config.logprobs != "off" for reply in replies])
        self._note(USED_UP, [reply.status is Status.TRUNCATED and not reply.text for reply in replies])
        generation = Generation(
            texts=[reply.text for reply in replies],
            thoughts=[reply.thought for reply in replies],
            token_ids=[answer.tokens for answer in answers],
            margins=torch.tensor([answer.margin.value for answer in answers], dtype=torch.float32),
            bounds=None if self.config.logprobs == "off" else [(one.margin.low, one.margin.high) for one in answers],
            finished=[answer.ended for answer in answers],
            statuses=[reply.status.value for reply in replies],
            reasons=[reply.reason for reply in replies],
            sampled=self.config.temperature != 0,
        )
        return generation, list(answers)

    def _split(self, reply: Reply) -> Reply:
        """Tell thought and answer apart, as the endpoint gives them or by the marks in a reply's text.

        If marks are named, a reply that was cut off before any is all thought: the template has opened it.
        """
        named = self.config.thinking
        if reply.thought:
            return reply
        opened = named is not None and reply.status is Status.TRUNCATED
        spoken: Spoken = split(reply.text, marks_of(named), starts_thought=opened)
        reply = replace(reply, text=spoken.answer.strip(), thought=spoken.thought)
        # The log-probabilities of a thought in the text come first.
        return replace(reply, listed={}, hidden=True) if spoken.thought else reply

    def _note(self, sentence: str, concerned: Sequence[bool]) -> None:
        """Print once how many replies a sentence is true of."""
        if any(concerned) and sentence not in self._notes:
            self._notes.add(sentence)
            print(f"note: {self.name}: {sum(concerned)} of {len(concerned)} {sentence}", file=sys.stderr)

    def _each(self, rows: int, ask: Ask) -> list[tuple[Reply, Answer]]:
        """Return what ``ask`` says of every row, ``concurrency`` at a time."""

        def answer(row: int) -> tuple[Reply, Answer]:
            try:
                return ask(row)
            except Failed as failure:
                return failure.reply, Answer()

        self._endpoint.stop.clear()
        with ThreadPoolExecutor(min(self.config.concurrency, rows)) as pool:
            futures = [pool.submit(answer, row) for row in range(rows)]
            try:
                for future in as_completed(futures):
                    future.result()
                return [future.result() for future in futures]
            except BaseException:  # Ctrl-C, or an error that every request would meet: do not send the rest
                self._endpoint.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _messages(self, prompt: "Prompt") -> list[dict[str, Any]]:
        """Return the prompt as chat messages; a turn of words only is a string.

        Raises:
            Failed: a picture cannot be sent.
        """
        chat = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        for turn in prompt.turns:
            chat.append(turn.as_chat(self._image) if turn.images else {"role": turn.role, "content": turn.text})
        return chat

    def _image(self, image: "Image.Image") -> dict[str, Any]:
        try:
            picture, longest = image.copy(), self.config.max_image_side or max(image.size)
            picture.thumbnail((longest, longest))
            return {"type": "image_url", "image_url": {"url": data_url(picture)}}  # lossless: what is recorded is seen
        except Exception as error:  # Pillow may raise anything while scaling or writing
            reason = f"the image cannot be sent ({type(error).__name__}: {one_line(str(error))})"
            raise Failed(Reply(Status.BAD_IMAGE, reason=reason)) from error
