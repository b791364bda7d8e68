"""Replies in OpenAI's form, from answers. Plain dictionaries; imports no torch."""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.serving.decoding import Answer
    from experiments.serving.errors import BadRequest

KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


@dataclass(frozen=True)
class Head:
    """What all parts of one reply share: the served name, and a hash of weights and method."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def reply(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        """Return a reply of this ``kind``."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": self.fingerprint, "choices": choices, **more}


def model(name: str, created: int) -> dict[str, Any]:
    """Return an entry of ``/v1/models``."""
    return {"id": name, "object": "model", "created": created, "owned_by": "forestlens"}


def completion(head: Head, prompt_tokens: int, answer: "Answer") -> dict[str, Any]:
    """Return the whole reply."""
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": _logprobs(answer), "finish_reason": _reason(answer)}
    return head.reply("chat.completion", [choice], usage=_usage(prompt_tokens, answer.tokens))


def stream(head: Head, prompt_tokens: int, answer: "Answer", *, usage: bool) -> Iterator[str]:
    """Yield the reply as server-sent events: the answer in one piece, then why it ended, then the ``usage``."""
    message = {"role": "assistant", "content": answer.text}
    parts = [
        head.reply(
            "chat.completion.chunk", [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]
        )
        for delta, logprobs, reason in ((message, _logprobs(answer), None), ({}, None, _reason(answer)))
    ]
    parts += [head.reply("chat.completion.chunk", [], usage=_usage(prompt_tokens, answer.tokens))] if usage else []
    for part in parts:
        yield f"data: {json.dumps(part, ensure_ascii=False, allow_nan=False)}\n\n"
    yield "data: [DONE]\n\n"


def error(refusal: "BadRequest") -> dict[str, Any]:
    """Return an error, in OpenAI's form."""
    kind = KINDS.get(refusal.status_code, "invalid_request_error")
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.field, "code": refusal.code}}


def _reason(answer: "Answer") -> str:
    return "stop" if answer.ended else "length"


def _usage(prompt: int, answer: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _logprobs(answer: "Answer") -> dict[str, Any] | None:
    if answer.scores is None:
        return None
    content = [
        _token(token.text, token.logprob) | {"top_logprobs": [_token(*pair) for pair in token.alternatives]}
        for token in answer.scores
    ]
    return {"content": content, "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
