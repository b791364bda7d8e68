"""A model behind an endpoint that answers prompts as ``interp.vlm.VLM`` does, without weights, logits or tokens.

Methods that work through prompts only (``mitigation.method.Abilities.works_over_api``) accept it as their model.
"""

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from experiments.api.client import AnswerCache, Endpoint, Failed
from experiments.api.config import ApiConfig
from experiments.api.contrast import Answer, Margin, decode, margin_of_lists, words_in
from experiments.api.engine import Engine, NamesNoTokens, Shown
from experiments.api.reply import Reply, one_line
from experiments.benchmarks.images import data_url, pixel_digest
from experiments.types import Status
from interp.batching import BatchContext
from interp.errors import UserError
from interp.thoughts import Spoken, marks_of, split
from mitigation.branches import BranchMethod
from mitigation.method import Abilities, Method, abilities

T = TypeVar("T")

if TYPE_CHECKING:
    from interp.generation import Generation
    from interp.vlm import Prompt


def check_methods(arms: Mapping[str, Method], config: ApiConfig, *, scored: bool = False) -> None:
    """Refuses arms that need more than the endpoint gives; ``scored`` is whether margins are enough.

    Raises:
        UserError: names the first of them, and its reason.
    """
    for arm, method in arms.items():
        can = abilities(method)
        if not can.works_over_api and (why := _lacking(can, config, scored)):
            who = f"arm {arm} ({type(method).__name__})"
            raise UserError(f"{who} cannot be asked of {config.name}: {why}; leave it out, or run an open model here")


def _lacking(can: Abilities, config: ApiConfig, scored: bool) -> str:
    """What an arm that reads log-probabilities lacks; "" if nothing."""
    if can.needs:
        return can.needs
    if config.temperature != 0 or config.logprobs == "off":
        return "it contrasts log-probabilities, which need model.temperature=0 and model.logprobs=auto"
    if scored:
        return ""
    if config.engine is None:
        return "whole answers are drafted and checked with vLLM's own requests (model.engine=vllm); take protocol=score"
    return can.needs_for_answers and f"{can.needs_for_answers}, or take protocol=score"


class ApiModel:
    """One model of an endpoint; nothing is sent before the first prompt. Answers are cached in ``cache``, if given.

    ``batches`` forms batches as a VLM's do, in the order of the prompts. ``reported``
    collects the names under which the endpoint answered, which may be more specific than ours.

    Raises:
        UserError: see ``ApiConfig.check``; or the ``openai`` package is not installed.
    """

    revision = None

    def __init__(self, config: ApiConfig, *, cache: Path | None = None) -> None:
        self.config = config
        self.name = config.name
        self.batches = BatchContext(self)
        self.reported: set[str] = set()
        # Sampled answers are meant to differ each time.
        self._cache = AnswerCache(cache) if cache is not None and config.temperature == 0 else None
        self._endpoint = Endpoint(config)
        self._engine = Engine(self._endpoint, self._cache) if config.engine else None

    def __repr__(self) -> str:
        return f"ApiModel({self.config!r})"

    def generate(self, prompts: "Sequence[Prompt]", *, max_new_tokens: int = 16) -> "Generation":
        """Answers, ``concurrency`` at a time and in the order of ``prompts``, each with its status and reason.

        ``margins`` are NaN where the endpoint gives no log-probabilities; see ``reply.first_token_margin``.

        Raises:
            UserError: no prompts, or the endpoint refuses the key, the model or the account.
        """
        import torch

        from interp.generation import Generation

        if not prompts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark and its limit")
        budget = self.config.max_tokens or max_new_tokens
        if self._by_token:
            try:
                return self.contrasted(AsItIs(), prompts, [], max_new_tokens=budget)
            except NamesNoTokens:
                self._lists_alone()
        answers = self._each(prompts, lambda row: self._answer(prompts[row], budget))
        self.reported |= {answer.model for answer in answers if answer.model}
        return Generation(
            **self._told_apart(answers),
            token_ids=[[] for _ in answers],
            margins=torch.tensor([answer.margin for answer in answers], dtype=torch.float32),
            bounds=[_bounds(answer) for answer in answers] if self.config.logprobs != "off" else None,
            finished=[answer.status is Status.ANSWERED for answer in answers],
            statuses=[answer.status.value for answer in answers],
            reasons=[answer.reason for answer in answers],
            sampled=self.config.temperature != 0,
            spent={"requests": len(answers)},
        )

    def _told_apart(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Thoughts and answers (``interp.thoughts``): as the endpoint gives them, or by the marks in a reply's text.

        Where marks are named, a reply that was cut off before any is all thought: the template has opened it.
        """
        named = self.config.thinking
        marks = marks_of(named)
        spoken = [
            Spoken(reply.thought, reply.text, finished=bool(reply.text))
            if reply.thought
            else split(reply.text, marks, opened=named is not None and reply.status is Status.TRUNCATED)
            for reply in replies
        ]
        return {"texts": [one.answer.strip() for one in spoken], "thoughts": [one.thought for one in spoken]}

    def tokens_of(self, prompt: "Prompt") -> list[int] | None:
        """The tokens that the server reads of ``prompt``; None where it gives none (``engine`` is not set).

        Raises:
            Failed: no reply, or none with tokens.
        """
        return self._engine.prompt(self._shown(prompt)) if self._engine else None

    def encode(self, prompts: "Sequence[Prompt]") -> dict[str, Any]:
        """The prompts themselves: what a branch of a contrast is asked (``mitigation.branches``)."""
        return {"prompts": list(prompts)}

    def contrasted(
        self, method: BranchMethod, prompts: "Sequence[Prompt]", others: Sequence[Any], *, max_new_tokens: int
    ) -> "Generation":
        """Answers by ``method`` from replies to the ``prompts`` and to its ``others`` branches (``encode``).

        One token: its margin alone is asked for (``protocol=score``).

        Raises:
            UserError: as ``generate``; or the server gives no token ids, which whole answers need.
        """
        import torch

        from interp.generation import Generation

        def ask(row: int) -> "tuple[Answer, Reply, Counter[str]]":
            spent: Counter[str] = Counter()
            rendered = [prompts[row], *(other["prompts"][row] for other in others)]
            try:
                answer = self._contrast(method, [self._shown(one) for one in rendered], max_new_tokens, spent)
            except Failed as failure:
                return Answer([], False, Margin(math.nan, math.nan)), failure.reply, spent
            text = self._engine.text(answer.tokens) if self._engine and answer.tokens else ""
            status = Status.ANSWERED if answer.ended else Status.TRUNCATED
            if max_new_tokens > 1 and not text:
                status = Status.EMPTY
            return answer, Reply(status, text, answer.fault, answer.margin.value, answer.model), spent

        found = self._each(prompts, ask)
        answers, replies, _ = zip(*found, strict=True)
        self.reported |= {reply.model for reply in replies if reply.model}
        generation = Generation(
            **self._told_apart(replies),
            token_ids=[answer.tokens for answer in answers],
            margins=torch.tensor([reply.margin for reply in replies], dtype=torch.float32),
            bounds=[(answer.margin.low, answer.margin.high) for answer in answers],
            finished=[answer.ended for answer in answers],
            statuses=[reply.status.value for reply in replies],
            reasons=[reply.reason for reply in replies],
            spent=dict(sum((one for _, _, one in found), Counter[str]())),
        )
        if not others:
            return generation
        none = [math.nan] * (1 + len(others))
        margins = torch.tensor([answer.margin.branches or none for answer in answers], dtype=torch.float32)
        return method.with_branch_margins(generation, margins.T)

    def _contrast(self, method: BranchMethod, shown: "list[Shown]", budget: int, spent: Counter[str]) -> Answer:
        """One answer, or its margin alone."""
        if budget > 1:
            if not self._by_token:
                raise NamesNoTokens(self.config.base_url)
            return decode(self._engine_here, method, shown[0], shown[1:], budget, spent)
        if self._by_token:
            yes, no = self._engine_here.answers
            try:
                lists: list[Any] = [self._engine_here.name(spent, one, [], [*yes, *no]) for one in shown]
            except NamesNoTokens:
                self._lists_alone()
            else:
                return Answer([], True, margin_of_lists(method, lists, yes, no))
        lists = []
        for one in shown:
            spent["requests"] += 1
            lists.append(self._endpoint.first_list(one.messages, with_image=one.pictured))
        return Answer([], True, margin_of_lists(method, lists, *words_in(lists)))

    @property
    def _engine_here(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @cached_property
    def _by_token(self) -> bool:
        """Whether the server knows tokens by their ids; says so where it should and does not."""
        if self._engine is None or self.config.logprobs == "off" or self.config.temperature != 0:
            return False
        try:
            _ = self._engine.answers
        except UserError as error:
            print(f"{error}: lists of the likeliest tokens are read instead", file=sys.stderr)
            return False
        return True

    def _lists_alone(self) -> None:
        """From now on reads the lists of the likeliest tokens."""
        if self.__dict__.get("_by_token"):
            print(f"{self.config.base_url} does not know logprob_token_ids; Yes and No are looked for among the tokens "
                  "that it lists, and a margin is a bound where they are not", file=sys.stderr)  # fmt: skip
        self.__dict__["_by_token"] = False

    def _each(self, prompts: "Sequence[Prompt]", ask: "Callable[[int], T]") -> "list[T]":
        """``ask`` of every row, ``concurrency`` at a time.

        Raises:
            UserError: an answer that has begun, which no request says.
        """
        if begun := [prompt.key or prompt.text for prompt in prompts if prompt.begun]:
            raise UserError(
                f"prompt '{begun[0]}' has an answer that has begun, and a request to {self.name} says nothing of one; "
                "ask a model whose weights are here"
            )
        self._endpoint.stop.clear()
        with ThreadPoolExecutor(min(self.config.concurrency, len(prompts))) as pool:
            futures = [pool.submit(ask, row) for row in range(len(prompts))]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
                return [future.result() for future in futures]
            except BaseException:  # Ctrl-C, or an error that every request would meet: do not send the rest
                self._endpoint.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _answer(self, prompt: "Prompt", budget: int) -> Reply:
        try:
            content = self._shown(prompt)
        except Failed as failure:
            return failure.reply
        key = self._content_key(content, budget)
        cached = self._cache.get(key) if self._cache else None
        if cached is not None:
            return cached
        answer = self._endpoint.ask(content.messages, budget, with_image=content.pictured)
        if self._cache:
            self._cache.put(key, answer)
        return answer

    def _shown(self, prompt: "Prompt") -> Shown:
        """The prompt as it is sent.

        Raises:
            Failed: its picture cannot be.
        """
        try:
            picture = None if prompt.image is None else self._fitted(prompt.image)
            url = "" if picture is None else data_url(picture)  # lossless: what is recorded is seen
            digest = "" if picture is None else pixel_digest(picture)
        except Exception as error:  # Pillow may raise anything while scaling or writing
            reason = f"the image cannot be sent ({type(error).__name__}: {one_line(str(error))})"
            raise Failed(Reply(Status.BAD_IMAGE, reason=reason)) from error
        return Shown(_messages(prompt, url), _messages(prompt, digest), picture is not None)

    def _content_key(self, shown: Shown, budget: int) -> str:
        """The hash of a request whose picture is given by the digest of its pixels."""
        sent = self.config.identity() | {"max_tokens": budget, "token_field": self.config.token_field}
        sent |= {"messages": shown.named}
        return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()

    def _fitted(self, image: Image.Image) -> Image.Image:
        longest = self.config.max_image_side
        if longest is not None and max(image.size) > longest:
            image = image.copy()
            image.thumbnail((longest, longest))
        return image


@dataclass(frozen=True)
class AsItIs(BranchMethod):
    """The plain model, as a method of no further branch: its tokens and margins by their ids."""

    def scores(self, logits: Any, step: int) -> Any:
        """Those of the model."""
        return logits.clean


def _bounds(reply: Reply) -> tuple[float, float]:
    return (reply.margin if reply.bound >= 0 else -math.inf, reply.margin if reply.bound <= 0 else math.inf)


def _messages(prompt: "Prompt", url: str) -> list[dict[str, Any]]:
    """The prompt as chat messages, the image before the words as in the templates of the open models."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
    if not url:
        return [*system, {"role": "user", "content": prompt.text}]
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt.text}]
    return [*system, {"role": "user", "content": parts}]
