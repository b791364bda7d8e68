"""Replies in OpenAI's form, from answers. Plain dictionaries; imports no torch."""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.serving.requests import BadRequest
    from experiments.serving.streamed_decoding import Answer, Token

DONE = "data: [DONE]\n\n"
KINDS = {401: "authentication_error", 429: "rate_limit_error", 503: "rate_limit_error", 500: "server_error"}


@dataclass(frozen=True)
class Head:
    """What all parts of one reply share: the served name, and a hash of weights and method."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields at the top of a reply of this ``kind``."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def model(name: str, created: int) -> dict[str, Any]:
    """An entry of ``/v1/models``."""
    return {"id": name, "object": "model", "created": created, "owned_by": "forestlens"}


def completion(head: Head, answers: "Sequence[Answer]") -> dict[str, Any]:
    """The whole reply; one choice an answer."""
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": _logprobs(answer.scores),
            "finish_reason": _reason(answer),
        }
        for place, answer in enumerate(answers)
    ]
    return head.fields("chat.completion") | {"choices": choices, "usage": usage(answers)}


def usage(answers: "Sequence[Answer]") -> dict[str, int]:
    """Tokens of the prompt, which is counted once, and of all answers."""
    prompt, answered = answers[0].prompt_tokens, sum(answer.tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}


def chunks(head: Head, choice: int, piece: "str | Answer") -> Iterator[dict[str, Any]]:
    """The parts of a stream for a piece of text, or for the end of an answer, which has all log-probabilities."""
    if isinstance(piece, str):
        if piece:
            yield chunk(head, choice, delta={"content": piece})
        return
    if piece.scores is not None:
        yield chunk(head, choice, delta={}, logprobs=_logprobs(piece.scores))
    yield chunk(head, choice, delta={}, finish_reason=_reason(piece))


def chunk(head: Head, choice: int, **fields: Any) -> dict[str, Any]:
    """A part of a stream."""
    inside = {"index": choice, "delta": {}, "logprobs": None, "finish_reason": None} | fields
    return head.fields("chat.completion.chunk") | {"choices": [inside]}


def last_chunk(head: Head, answers: "Sequence[Answer]") -> dict[str, Any]:
    """The part of a stream that only counts tokens."""
    return head.fields("chat.completion.chunk") | {"choices": [], "usage": usage(answers)}


def event(part: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(part, ensure_ascii=False, allow_nan=False)}\n\n"


def error(told: "BadRequest") -> dict[str, Any]:
    """An error, in OpenAI's form."""
    kind = KINDS.get(told.status_code, "invalid_request_error")
    return {"error": {"message": told.detail, "type": kind, "param": told.field, "code": told.code}}


def _reason(answer: "Answer") -> str:
    return "stop" if answer.ended else "length"


def _logprobs(scores: "list[Token] | None") -> dict[str, Any] | None:
    if scores is None:
        return None
    content = [
        _token(token.text, token.logprob) | {"top_logprobs": [_token(*one) for one in token.alternatives]}
        for token in scores
    ]
    return {"content": content, "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
