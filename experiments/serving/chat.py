"""The endpoints of ``task=serve``, in OpenAI's form: ``/v1/models`` and ``/v1/chat/completions``.

Nothing here touches the model. Requests are read and checked here, and answered by the worker's thread.
"""

import asyncio
import hashlib
import json
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from experiments.benchmarks.images import pixel_digest
from experiments.config import digest
from experiments.serving.decoding import Answer, Row, answer
from experiments.serving.requests import KEY, Question, read_question
from experiments.serving.server import BadRequest
from experiments.serving.web import Events, application, check_key, parsed_body
from experiments.serving.worker import Job, Worker

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


def model_entry(name: str, created: int) -> dict[str, Any]:
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


def error_body(refusal: "BadRequest") -> dict[str, Any]:
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


POLL = 0.05  # seconds between two looks whether a client is still there
WRONG_KEY = "the API key is missing or wrong; send the header Authorization: Bearer <the key of the server>"


@dataclass
class Server:
    """What the endpoints know.

    Args:
        served: the methods by the names that are served.
        worker: does the jobs.
        body: the bytes that a request may have.
        pixels: the pixels that its picture may have.
        tokens: the tokens that its answer may have.
        default_tokens: the same, if the request names no number.
        identity: of the model. Its hash, with a method's settings, is in
        key: clients must send it; "" for none.
        hosts: the names by which clients may call this machine; empty for any.
    """

    served: Mapping[str, Any]
    worker: Worker
    body: int
    pixels: int
    tokens: int
    default_tokens: int
    identity: str
    key: str = ""
    hosts: Sequence[str] = ()
    started: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.completions, methods=["POST"]),
        ]
        return application(routes, _refused, most=self.body, hosts=self.hosts)

    async def models(self, request: Request) -> Response:
        """List the served models, the mitigated model first."""
        self._check_key(request)
        return JSONResponse({"object": "list", "data": [model_entry(name, self.started) for name in self.served]})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        self._check_key(request)
        name = request.path_params["name"]
        self._method(name)
        return JSONResponse(model_entry(name, self.started))

    async def completions(self, request: Request) -> Response:
        """Answer a question. A stream has the answer in one piece."""
        self._check_key(request)
        body, decoding, prompt = await parsed_body(request, self.body, self._parsed)
        method = self._method(body.model)
        seed = secrets.randbits(32) if body.seed is None else body.seed
        row, events = Row(prompt, prompt.key, seed), Events()

        def do(vlm: Any, batch: Sequence[Job]) -> list[Answer]:
            return answer(method, vlm, [job.payload for job in batch], decoding)

        kind = (body.model, decoding, len(prompt.images))
        job = Job(do, events.tell, kind, prompt, decoding.max_tokens, payload=row)
        row.given_up = lambda: bool(job.dropped)
        self.worker.put(job)
        try:
            event = await _unless_gone(request, events)
        finally:
            self.worker.drop(job)
        if "error" in event:
            raise event["error"]
        head = Head(body.model, f"fp_{digest([self.identity, repr(method)])}")
        if not body.stream:
            return JSONResponse(completion(head, job.length or 0, event["done"]))
        parts = stream(head, job.length or 0, event["done"], usage=body.stream_options.include_usage)
        return StreamingResponse(parts, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    def _method(self, name: str) -> Any:
        """Return the method that is served by this name.

        Raises:
            BadRequest: there is none.
        """
        if name not in self.served:
            names = ", ".join(self.served)
            sentence = f"there is no model {name[:100]!r} here; there are {names}"
            raise BadRequest(sentence, "model", status=404, code="model_not_found")
        return self.served[name]

    def _parsed(self, body: bytes) -> Question:
        """Return the question, its prompt with the key of its case."""
        tokens = {"default_tokens": self.default_tokens, "most_tokens": self.tokens}
        question = read_question(body, most_pixels=self.pixels, **tokens)
        self._method(question.body.model)
        prompt = question.prompt
        if (key := question.body.metadata.get(KEY)) is None:
            text = repr(prompt.content) if prompt.messages else prompt.text
            only = prompt.image if not prompt.messages else None
            key = hashlib.sha256(text.encode()).hexdigest() if only is None else pixel_digest(only)
        return question._replace(prompt=replace(prompt, key=key))

    def _check_key(self, request: Request) -> None:
        if self.key:
            check_key(request, self.key, WRONG_KEY)


async def _unless_gone(request: Request, events: Events) -> dict[str, Any]:
    """Return the next event, unless the client leaves first.

    Raises:
        ClientDisconnect: it left.
    """
    event = asyncio.ensure_future(events.hear())
    while not event.done():
        if await request.is_disconnected():
            event.cancel()
            raise ClientDisconnect
        await asyncio.wait([event], timeout=POLL)
    return event.result()


def _refused(refusal: BadRequest) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(refusal.status_code)
    return JSONResponse(error_body(refusal), refusal.status_code, headers)
