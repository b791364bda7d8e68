"""vLLM's own requests: tokens by id, their log-probabilities wherever they stand, and answers that are continued.

vLLM 0.32 mixes up two kinds of requests. In a batch with a request that names tokens (``logprob_token_ids``), a request
for the likeliest generated tokens (``top_logprobs``) gets only its own token and token 0. So the second kind is never
sent. The log-probabilities of named tokens, and of a prompt's tokens, are right next to any other request.
"""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from experiments.api.client import TOP_LOGPROBS, Endpoint
from experiments.api.reply import BEFORE, WITHOUT, FailureKind, Reply, Tokens
from experiments.types import Status
from interp.errors import UserError
from interp.prompt import MARK

if TYPE_CHECKING:
    from interp.generation import AnswerIds

OF_TOKENS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "skip_special_tokens": False}
# Otherwise the server takes what the checkpoint's generation_config.json says.
PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
         "frequency_penalty": 0.0}  # fmt: skip


Messages = Sequence[dict[str, Any]]  # of a chat


class Failed(Exception):
    """A request without an answer, whose outcome is ``reply``."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.reason)
        self.reply = reply


@dataclass
class Engine:
    """A vLLM server behind ``endpoint``, which lists ``listed`` tokens at most."""

    endpoint: Endpoint
    listed: int = TOP_LOGPROBS
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict)

    @cached_property
    def answers(self) -> "AnswerIds":
        """Return the first tokens of Yes and No, as ``interp.vlm.VLM.answer_ids`` has them.

        Raises:
            UserError: the server has no ``/tokenize``, or no token tells the two apart.
        """
        from interp.generation import answer_ids

        rendered = self._text(self._tokens({"messages": [{"role": "user", "content": "?"}]}))
        return answer_ids(ServedTokenizer(self), rendered, name=self.endpoint.config.model)

    @cached_property
    def ends(self) -> set[int]:
        """Return the tokens that end an answer: the chat's special token, and any token that ended an answer."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        try:
            tokens = self._tokens({"messages": messages, "add_generation_prompt": False, "return_token_strs": True})
        except UserError:  # a template that takes no answers
            return set()
        return {token for token in tokens[-2:] if re.fullmatch(r"<.*(end|eos|eot|/s).*>", self._text([token]).strip())}

    def ask(
        self,
        messages: Messages,
        answer: Sequence[int] = (),
        *,
        most: int = 1,
        lists: bool = False,
        named: Sequence[int] = (),
        whole_prompt: bool = False,
    ) -> Tokens:
        """Ask for up to ``most`` tokens after ``answer``, the beginning of the answer.

        Args:
            lists: whether to ask for the likeliest tokens at each of ``answer``.
            named: the tokens whose log-probabilities are asked for.
            whole_prompt: whether to return all tokens of the prompt, not only the last ones.

        Raises:
            Failed: no reply, or none with what was asked for.
            UserError: the server does not list the ``named`` tokens.
        """
        config = self.endpoint.config
        extra: dict[str, Any] = {**OF_TOKENS, **PLAIN, **config.extra_body, **config.rendering}
        if answer:
            messages = [*messages, {"role": "assistant", "content": self._text(answer)}]
            extra |= {"add_generation_prompt": False, "continue_final_message": True}
        if named:
            extra["logprob_token_ids"] = list(named)
        if lists:
            extra["prompt_logprobs"] = self.listed
        fields = {"messages": list(messages), "temperature": 0, config.token_field: most, **extra}
        fields |= {"logprobs": True, "top_logprobs": 0} if named else {}
        count = sys.maxsize if whole_prompt else len(answer) + BEFORE
        reply = self.endpoint.send(fields, prompt_tokens=count)
        if reply.kind is FailureKind.NO_LOGPROBS:
            way_out = f"start vLLM with --max-logprobs {self.listed}, or take model.logprobs=off"
            raise UserError(f"{config.base_url} lists no {self.listed} log-probabilities ({reply.reason}); {way_out}")
        if reply.tokens is None:
            raise Failed(reply)
        if named and len(reply.tokens.lists) != len(reply.tokens.ids):
            raise Failed(Reply(Status.TRANSPORT_FAILED, reason=WITHOUT))
        if not all(set(named) <= set(each) for each in reply.tokens.lists):
            raise UserError(
                f"{config.base_url} does not name tokens by id (logprob_token_ids); use vLLM 0.32 or later, or set "
                "model.engine=null, which has no contrasts"
            )
        return reply.tokens

    def name(self, messages: Messages, answer: Sequence[int], tokens: Sequence[int]) -> dict[int, float] | None:
        """Return the log-probabilities of ``tokens``, and of the likeliest one, after ``answer``.

        None if the text of ``answer`` gives other tokens back, so that it cannot be continued.

        Raises:
            Failed, UserError: as ``ask``.
        """
        reply = self.ask(messages, answer, named=tokens)
        return reply.lists[0] if list(answer) == reply.before[len(reply.before) - len(answer) :] else None

    def follow(self, messages: Messages, answer: Sequence[int]) -> list[dict[int, float]]:
        """Return the lists at each of the ``answer``'s tokens, as far as its text gives its tokens back.

        The last list is of the first token that the text does not give back, because it depends only on those before.
        """
        reply = self.ask(messages, answer, lists=True)
        count = len(answer)
        if reply.before[-count:] != list(answer):  # how many tokens the text has, decides where the answer begins
            count = reply.length - self.ask(messages).length
            if not 0 < count <= len(reply.before):
                return []
        given = reply.before[-count:]
        same = next((at for at, pair in enumerate(zip(given, answer, strict=False)) if pair[0] != pair[1]), count)
        return reply.lists_before[-count:][: same + 1]

    def likelihoods(self, messages: Messages, answers: Sequence[tuple[int, ...]]) -> list[float]:
        """Return the log-probability that an answer begins with each of ``answers``.

        It is NaN if the text of a beginning does not give its tokens back. A beginning of another one is read with it.

        Raises:
            Failed, UserError: as ``ask``.
        """
        chances: dict[tuple[int, ...], float] = {}
        for answer in sorted(answers, key=len, reverse=True):
            if answer in chances:
                continue
            total = 0.0
            for size, (token, listed) in enumerate(zip(answer, self.follow(messages, answer), strict=False), 1):
                total += listed.get(token, math.nan)
                chances[answer[:size]] = total
        return [chances.get(answer, math.nan) for answer in answers]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer's ``tokens``, without the token that ends it."""
        return self._text([token for token in tokens if token not in self.ends]).strip()

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        chat = self.endpoint.config.rendering if "messages" in body else {}
        tokens = self.endpoint.post("/tokenize", body | chat).get("tokens")
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


class ServedTokenizer:
    """The server's tokenizer, as far as ``interp.generation.answer_ids`` and refusal margins call it."""

    unk_token_id = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self._engine._tokens({"prompt": text, "add_special_tokens": add_special_tokens})}

    def decode(self, tokens: Sequence[int]) -> str:
        return self._engine._text(tokens)
