"""The endpoints, in the form of OpenAI's chat completions: ``/v1/models`` and ``/v1/chat/completions``.

Nothing here touches the model: requests are read, checked and put into the queue, whose thread answers them.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from experiments.benchmarks.images import pixel_digest
from experiments.config import digest
from experiments.serving import replies
from experiments.serving.pictures import read_picture
from experiments.serving.request_queue import QueuedRequest, Waiting
from experiments.serving.requests import BadRequest, Question, read_question
from experiments.serving.streamed_decoding import Answer, Row
from experiments.serving.web import Stream, Talk, application, holds_key, json_body, refusal
from interp.prompt import Prompt

RETRY_AFTER = "1"  # seconds
READERS = 4  # bodies that are parsed, and pictures decoded, at a time
BODIES = 8  # times the largest body, that are held at a time


@dataclass
class Server:
    """What the endpoints know, and what one request may have: bytes of its ``body``, ``pixels``, and ``tokens`` of its
    answer (``default_tokens`` if it names none). ``identity`` is the model's, which stands in replies, hashed
    with a method's settings.

    ``key`` is the one that clients must send, "" for none; ``hosts`` the names that they may call this machine by, none
    for any.
    """

    served: Mapping[str, Any]
    waiting: Waiting
    body: int
    pixels: int
    tokens: int
    default_tokens: int
    identity: str
    key: str = ""
    hosts: Sequence[str] = ()
    started: int = field(default_factory=lambda: int(time.time()))
    _held: int = field(default=0, init=False)  # bytes of bodies
    _readers: anyio.CapacityLimiter | None = field(default=None, init=False)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.completions, methods=["POST"]),
        ]
        return application(routes, _refused, most=self.body, hosts=self.hosts)

    def fingerprint(self, name: str) -> str:
        """A hash of the model and of the method with its settings."""
        return f"fp_{digest([self.identity, repr(self.served[name])])}"

    async def models(self, request: Request) -> Response:
        """What is served, the mitigated model first."""
        self._check_key(request)
        return JSONResponse({"object": "list", "data": [replies.model(name, self.started) for name in self.served]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        self._check_key(request)
        name = request.path_params["name"]
        self._method(name)
        return JSONResponse(replies.model(name, self.started))

    async def completions(self, request: Request) -> Response:
        """Answers a question, whole or as a stream."""
        self._check_key(request)
        question, prompt = await self._read(request)
        method = self._method(question.asked.model)
        head = replies.Head(question.asked.model, self.fingerprint(question.asked.model))
        talk = _Rows()
        queued = [
            QueuedRequest(
                question.asked.model,
                method,
                Row(prompt, key, seed, talk.says(place) if question.asked.stream else None),
                question.decoding,
                talk.says(place),
            )
            for place, (key, seed) in enumerate(_draws(question, prompt.key))
        ]
        self.waiting.put(queued)
        try:
            if question.asked.stream:
                first = await _unless_gone(request, talk.next())
                events, drop = _events(head, question, talk, first, queued), partial(_give_up, queued)
                return Stream(events, drop, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
            answers = await _unless_gone(request, talk.answers(len(queued)))
            return JSONResponse(replies.completion(head, _repeated(answers, question)))
        except BaseException:
            _give_up(queued)
            raise

    def _method(self, name: str) -> Any:
        """The method that is served by this name.

        Raises:
            BadRequest: there is none.
        """
        if name not in self.served:
            names = ", ".join(self.served)
            sentence = f"there is no model {name[:100]!r} here; there are {names}"
            raise BadRequest(sentence, "model", status=404, code="model_not_found")
        return self.served[name]

    async def _read(self, request: Request) -> tuple[Question, Prompt]:
        """The question and its prompt.

        Raises:
            BadRequest: see ``json_body``, ``read_question`` and ``read_picture``.
        """
        held = _Held(self)
        try:
            body = await json_body(request, self.body, held.take)
            self._readers = self._readers or anyio.CapacityLimiter(READERS)
            return await anyio.to_thread.run_sync(partial(self._parsed, body), limiter=self._readers)
        finally:
            held.release()

    def _parsed(self, body: bytes) -> tuple[Question, Prompt]:
        """In a thread of its own, as decoding a picture takes a while."""
        question = read_question(body, default_tokens=self.default_tokens, most_tokens=self.tokens)
        self._method(question.asked.model)
        image = None if question.image_url is None else read_picture(question.image_url, self.pixels)
        if question.asked.key is not None:
            key = question.asked.key
        else:
            key = hashlib.sha256(question.text.encode()).hexdigest() if image is None else pixel_digest(image)
        return question, Prompt(question.text, image, question.system, key)

    def _check_key(self, request: Request) -> None:
        if self.key and not holds_key(request, self.key):
            raise BadRequest("the API key is missing or wrong", status=401, code="invalid_api_key")


class _Held:
    """The bytes of one body, counted among those that the server holds."""

    def __init__(self, server: Server) -> None:
        self._server, self._bytes = server, 0

    def take(self, count: int) -> None:
        if self._server._held + count > BODIES * self._server.body:
            raise BadRequest("too many large requests at once; try again in a moment", status=503)
        self._server._held += count
        self._bytes += count

    def release(self) -> None:
        self._server._held -= self._bytes


class _Rows(Talk[tuple[int, str | Answer | Exception]]):
    """What the model's thread says of the rows of one request."""

    def says(self, place: int) -> Callable[[str | Answer | Exception], None]:
        return lambda found: self.tell((place, found))

    async def next(self) -> tuple[int, str | Answer]:
        """The next piece of text or answer, with the place of its row.

        Raises:
            Exception: what went wrong with a row.
        """
        index, item = await self.hear()
        if isinstance(item, Exception):
            raise item
        return index, item

    async def answers(self, rows: int) -> list[Answer]:
        answers: dict[int, Answer] = {}
        while len(answers) < rows:
            index, item = await self.next()
            if isinstance(item, Answer):
                answers[index] = item
        return [answers[index] for index in sorted(answers)]


async def _events(
    head: replies.Head, question: Question, talk: _Rows, first: tuple[int, str | Answer], asked: Sequence[QueuedRequest]
) -> AsyncIterator[str]:
    """The server-sent events of a streamed answer; an error is the last of them."""
    copies = question.asked.n // len(asked)
    for choice in range(question.asked.n):
        yield replies.event(replies.chunk(head, choice, delta={"role": "assistant", "content": ""}))
    ended: dict[int, Answer] = {}
    try:
        heard: tuple[int, str | Answer] | None = first
        while len(ended) < len(asked):
            index, item = heard or await talk.next()
            heard = None
            for choice in range(index, index + copies):
                for chunk in replies.chunks(head, choice, item):
                    yield replies.event(chunk)
            if isinstance(item, Answer):
                ended[index] = item
        if question.asked.stream_options.include_usage:
            answers = [ended[index] for index in sorted(ended)]
            yield replies.event(replies.last_chunk(head, _repeated(answers, question)))
    except Exception as error:  # the status is sent already
        yield replies.event(replies.error(refusal(error)))
    yield replies.DONE


def _draws(question: Question, key: str = "") -> list[tuple[str, int]]:
    """What fixes the draws of each row: one row for all choices of a greedy answer, which are the same."""
    seed = secrets.randbits(32) if question.asked.seed is None else question.asked.seed
    choices = question.asked.n if question.decoding.temperature else 1
    return [(key if place == 0 else f"{key}\nchoice {place}", seed) for place in range(choices)]


def _repeated(answers: Sequence[Answer], question: Question) -> list[Answer]:
    return list(answers) * (question.asked.n // len(answers))


def _give_up(asked: Sequence[QueuedRequest]) -> None:
    for request in asked:
        request.given_up = True


async def _unless_gone(request: Request, wanted: Any) -> Any:
    """What is awaited, unless the client leaves first.

    Raises:
        ClientDisconnect: it left.
    """
    waiting = asyncio.ensure_future(wanted)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([waiting, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(told: BadRequest) -> Response:
    headers = {"Retry-After": RETRY_AFTER} if told.status_code in (429, 503) else {}
    if told.status_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(replies.error(told), told.status_code, headers)
