"""vLLM's own requests: tokens by id, their log-probabilities wherever they stand, and answers that are continued.

vLLM 0.32 mixes up two kinds of requests. In a batch with a request that names tokens (``logprob_token_ids``), a request
for the likeliest (``top_logprobs``) gets only its own token and token 0. So the two kinds are never in flight together
here (``_Turns``). A list that another client's request made shorter is asked for again. The log-probabilities of a
prompt are disturbed by neither.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Condition
from typing import TYPE_CHECKING, Any

from experiments.api.client import TOP_LOGPROBS, AnswerCache, Endpoint, Failed
from experiments.api.reply import CUT, FailureKind, Garbage, Reply, read_completion
from experiments.types import Status
from interp.errors import UserError
from interp.prompt import MARK

if TYPE_CHECKING:
    from interp.margin import AnswerIds

OF_TOKENS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "skip_special_tokens": False}
ATTEMPTS = 16  # at a list, each a little later than the one before: another client's requests end meanwhile
PAUSE = 0.05  # seconds, times the attempts so far
BEFORE = 8  # tokens before an answer that are kept with it
NOTHING = -9999.0  # vLLM's log-probability of what it does not list


@dataclass(frozen=True)
class Shown:
    """A prompt as chat ``messages``, with its picture; in ``named``, the picture's digest stands in its place."""

    messages: list[dict[str, Any]]
    named: list[dict[str, Any]]
    pictured: bool


@dataclass(frozen=True)
class Asked:
    """What one request gave.

    ``tokens`` are generated; ``lists`` have, for each, the log-probabilities of the likeliest or named tokens by id.
    ``before`` are the last tokens that the server read, of ``length``, and ``lists_before`` theirs.
    """

    tokens: list[int]
    lists: list[dict[int, float]]
    before: list[int]
    lists_before: list[dict[int, float]]
    length: int
    ended: bool
    model: str
    read: int  # tokens of prompt and answer


class NamesNoTokens(UserError):
    """The server does not know ``logprob_token_ids``."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} does not name tokens by id, which whole answers of contrasts need; take vLLM 0.32 or later, or "
            "protocol=score"
        )


@dataclass
class Engine:
    """A vLLM server behind ``endpoint``. Replies are cached in ``cache``, without prompts."""

    endpoint: Endpoint
    cache: AnswerCache | None = None
    listed: int = TOP_LOGPROBS
    _turns: "_Turns" = field(default_factory=lambda: _Turns())
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict)

    @cached_property
    def answers(self) -> "AnswerIds":
        """The first tokens of Yes and No, as ``interp.vlm.VLM.answer_ids`` has them.

        Raises:
            UserError: the server has no ``/tokenize``, or no token tells the two apart.
        """
        from interp.margin import answer_ids

        rendered = self._text(self._tokens({"messages": [{"role": "user", "content": "?"}]}))
        return answer_ids(_Tokenizer(self), rendered, name=self.endpoint.config.model)

    @cached_property
    def ends(self) -> set[int]:
        """The tokens that end an answer: the special one behind an answer in the chat, and those that ended one."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        try:
            tokens = self._tokens({"messages": messages, "add_generation_prompt": False, "return_token_strs": True})
        except UserError:  # a template that takes no answers
            return set()
        return {token for token in tokens[-2:] if re.fullmatch(r"<.*(end|eos|eot|/s).*>", self._text([token]).strip())}

    def ask(
        self,
        spent: Counter[str],
        shown: Shown,
        so_far: Sequence[int] = (),
        *,
        most: int = 1,
        lists: bool = True,
        before: bool = False,
        named: Sequence[int] = (),
    ) -> Asked:
        """Asks for up to ``most`` tokens after ``so_far``, the beginning of the answer.

        ``lists`` asks for those of the likeliest tokens, or of the ``named``; ``before`` also for those of ``so_far``.
        ``spent`` counts requests and tokens.

        Raises:
            Failed: no reply, or none with what was asked for.
            NamesNoTokens: the server lists other tokens than ``named``.
        """
        fields = self._fields(shown.messages, so_far, most, lists=lists, before=before, named=named)
        name = fields | {"messages": shown.named + fields["messages"][len(shown.messages) :], "picture": shown.pictured}
        key = hashlib.sha256(json.dumps([self.endpoint.config.identity(), name], sort_keys=True).encode()).hexdigest()
        spent["requests"] += 1
        if self.cache is not None and (cached := _kept(self.cache.read(key))) is not None:
            spent["requests_cached"] += 1
            spent["request_tokens"] += cached.read
            return cached
        for attempt in range(ATTEMPTS):
            self.endpoint.stop.wait(PAUSE * attempt)
            kind = "named" if named else "likeliest" if lists else ""
            with self._turns.of(kind):
                reply = self._read(self._sent(fields, shown.pictured), len(so_far))
            spent["request_tokens"] += reply.read
            if named and not all(set(named) <= set(one) for one in reply.lists):
                raise NamesNoTokens(self.endpoint.config.base_url)
            if (lists or named) and len(reply.lists) != len(reply.tokens):
                raise Failed(Reply(Status.TRANSPORT_FAILED, reason=WITHOUT))
            if named or not lists or all(len(one) >= self.listed for one in reply.lists):
                if self.cache is not None:
                    self.cache.write(key, asdict(reply))
                return reply
            spent["requests"] += 1
        why = (
            f"the server lists fewer than the {self.listed} tokens asked for, as vLLM does while a client names tokens"
        )
        raise Failed(Reply(Status.TRANSPORT_FAILED, reason=f"{why}; ask again when it is alone"))

    def prompt(self, shown: Shown) -> list[int]:
        """The tokens that the server reads, those of the picture among them.

        Raises:
            Failed: no reply, or none with tokens.
        """
        body = self._sent(self._fields(shown.messages, (), 1, lists=False, before=False, named=()), shown.pictured)
        try:
            return [int(one) for one in body["prompt_token_ids"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Failed(Reply(Status.TRANSPORT_FAILED, reason=WITHOUT)) from error

    def name(self, spent: Counter[str], shown: Shown, so_far: Sequence[int], tokens: Sequence[int]) -> dict[int, float]:
        """The log-probabilities of ``tokens``, and of the likeliest one, after ``so_far``.

        Raises:
            Failed, NamesNoTokens: as ``ask``; or the text of ``so_far`` gives other tokens back.
        """
        logprobs: dict[int, float] = {}
        for start in range(0, len(tokens), self.listed):
            reply = self.ask(spent, shown, so_far, named=tokens[start : start + self.listed])
            if list(so_far) != reply.before[len(reply.before) - len(so_far) :]:
                raise OtherTokens
            logprobs |= reply.lists[0]
        return logprobs

    def follow(
        self, spent: Counter[str], shown: Shown, answer: Sequence[int], *, then: int | None = None
    ) -> tuple[list[dict[int, float]], Asked]:
        """The lists at each of the ``answer``'s tokens and behind it, as far as its text gives its tokens back.

        With ``then``, the token behind it, all lists are a prompt's, which other clients' requests leave alone, if its
        text gives it back.
        """
        count = len(answer)
        if then is not None:
            reply = self.ask(spent, shown, [*answer, then], lists=False, before=True)
            if reply.before[-count - 1 :] == [*answer, then]:
                return reply.lists_before[-count - 1 :], reply
        reply = self.ask(spent, shown, answer, before=bool(answer))
        if not count or reply.before[-count:] == list(answer):
            return [*reply.lists_before[len(reply.lists_before) - count :], reply.lists[0]], reply
        tokens_of_text = reply.length - self.ask(spent, shown).length  # tokens of the answer's text
        if not 0 < tokens_of_text <= len(reply.before):
            return [], reply
        given, lists = reply.before[-tokens_of_text:], reply.lists_before[-tokens_of_text:]
        same = next(
            (at for at, pair in enumerate(zip(given, answer, strict=False)) if pair[0] != pair[1]),
            min(tokens_of_text, count),
        )
        return lists[: same + 1], reply

    def text(self, tokens: Sequence[int]) -> str:
        """The words of an answer's ``tokens``, without the one that ends it."""
        return self._text([token for token in tokens if token not in self.ends]).strip()

    def _fields(
        self, messages: list[dict[str, Any]], so_far: Sequence[int], most: int, *, lists: bool, before: bool, named: Any
    ) -> dict[str, Any]:
        config = self.endpoint.config
        own: dict[str, Any] = {**OF_TOKENS, **config.extra_body, **config.rendering}
        fields: dict[str, Any] = {"messages": messages, "temperature": 0, config.token_field: most}
        if so_far:
            fields["messages"] = [*messages, {"role": "assistant", "content": self._text(so_far)}]
            own |= {"add_generation_prompt": False, "continue_final_message": True}
        if lists:
            fields |= {"logprobs": True, "top_logprobs": 0 if named else self.listed}
        if named:
            own["logprob_token_ids"] = list(named)
        if before:
            own["prompt_logprobs"] = self.listed
        return fields | {"extra_body": own}

    def _sent(self, fields: dict[str, Any], pictured: bool) -> dict[str, Any]:
        try:
            raw = self.endpoint.sent(fields, with_image=pictured)
            reply = read_completion(raw)
        except Garbage as error:
            raise Failed(Reply(Status.TRANSPORT_FAILED, reason=str(error))) from error
        except Failed as error:
            most = re.search(r"(?:max(?:imum)?|at most)[^0-9]{0,30}(\d+)", error.reply.reason)
            if error.kind is FailureKind.NO_LOGPROBS and most and 0 < int(most[1]) < self.listed:
                raise UserError(
                    f"{self.endpoint.config.base_url} lists at most {most[1]} tokens and {self.listed} are asked for; "
                    "start it with --max-logprobs 20"
                ) from error
            raise
        if reply.status in (Status.PROVIDER_BLOCKED, Status.TRANSPORT_FAILED):
            raise Failed(reply)
        body: dict[str, Any] = json.loads(raw)
        return body

    def _read(self, body: Mapping[str, Any], count: int) -> Asked:
        """The parts of a reply that are used."""
        choice = body["choices"][0]
        try:
            tokens, prompt = [int(one) for one in choice["token_ids"]], [int(one) for one in body["prompt_token_ids"]]
            content = (choice.get("logprobs") or {}).get("content") or []
            lists = [{_id(one["token"]): float(one["logprob"]) for one in step["top_logprobs"]} for step in content]
            lists = [{token: value for token, value in one.items() if value > NOTHING} for one in lists]
            given = (body.get("prompt_logprobs") or [])[-(count + BEFORE) :] if count else []
            before = [{int(token): float(one["logprob"]) for token, one in (step or {}).items()} for step in given]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Failed(Reply(Status.TRANSPORT_FAILED, reason=WITHOUT)) from error
        return Asked(
            tokens=tokens,
            lists=lists,
            before=prompt[-(count + BEFORE) :],
            lists_before=before,
            length=len(prompt),
            ended=str(choice.get("finish_reason")) not in CUT,
            model=str(body.get("model") or ""),
            read=len(prompt) + len(tokens),
        )

    def _tokens(self, asked: dict[str, Any]) -> list[int]:
        chat = self.endpoint.config.rendering if "messages" in asked else {}
        tokens = self.endpoint.post("/tokenize", asked | chat).get("tokens")
        if not isinstance(tokens, list):
            raise UserError(f"{self.endpoint.config.base_url} is no vLLM server: its /tokenize gives no tokens; set "
                            "model.engine=null")  # fmt: skip
        return [int(token) for token in tokens]

    def _text(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return ""
        key = tuple(tokens)
        if key not in self._texts:
            self._texts[key] = str(self.endpoint.post("/detokenize", {"tokens": list(tokens)}).get("prompt", ""))
        return self._texts[key]


WITHOUT = (
    "the reply lacks token ids or log-probabilities, which model.engine=vllm asks for; take vLLM 0.32 or later, or "
    "model.engine=null"
)


class OtherTokens(Exception):
    """The text of an answer's tokens gives other tokens back, so that it cannot be continued."""


class _Tokenizer:
    """The server's tokenizer, as far as ``interp.margin.answer_ids`` calls it."""

    unk_token_id = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self._engine._tokens({"prompt": text, "add_special_tokens": add_special_tokens})}


class _Turns:
    """Lets requests of one kind through at a time; those of no kind always."""

    def __init__(self) -> None:
        self._changed, self._kind = Condition(), ""
        self._running, self._waiting = 0, Counter[str]()

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        if not kind:
            yield
            return
        with self._changed:
            self._waiting[kind] += 1
            self._changed.wait_for(lambda: not self._running or (self._kind == kind and not self._others_wait(kind)))
            self._waiting[kind] -= 1
            self._kind, self._running = kind, self._running + 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _others_wait(self, kind: str) -> bool:
        return any(count for other, count in self._waiting.items() if other != kind)


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _kept(value: dict[str, Any]) -> Asked | None:
    """A cached reply, whose lists JSON has given words for keys."""
    if "lists_before" not in value:
        return None
    for name in ("lists", "lists_before"):
        value[name] = [{int(token): logprob for token, logprob in one.items()} for one in value[name]]
    return Asked(**value)
