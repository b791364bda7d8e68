"""What both servers here do with HTTP: bodies, refusals, and replies that end with their clients.

A server that closes a connection with unread bytes resets it, and a client that is still sending sees the reset and
not the refusal. uvicorn would go on reading without an end, unless the client has asked to close: hence ``ReadsOn``.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from experiments.serving.requests import BadRequest, Failed
from interp.errors import UserError

log = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Heard = TypeVar("Heard")
BODY_SECONDS = 30.0  # within which a body must have arrived
DROPPED = 4  # times the largest body, that is read of a refused one and dropped
IDLE_SECONDS = 1.0  # without a byte, after which a client that was refused is taken to wait for the reply


def application(
    routes: Sequence[Route], refused: Callable[[BadRequest], Response], *, most: int, hosts: Sequence[str]
) -> Starlette:
    """The ASGI application: whatever goes wrong becomes the reply that ``refused`` makes.

    Refusals reach clients whose body, of ``most`` bytes at most, was not read; ``hosts`` (none: any) are the names that
    clients may call this machine by.
    """
    middleware = [Middleware(ReadsOn, most=DROPPED * most, seconds=BODY_SECONDS)]
    middleware += [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))] if hosts else []

    async def told(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and not isinstance(error, BadRequest):  # the router's
            sentence = f"{request.method[:20]} {request.url.path[:100]}: {error.detail}"
            error = BadRequest(sentence, status=error.status_code)
        return refused(refusal(error))

    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, UserError, ClientDisconnect, Exception), told)
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def holds_key(request: Request, key: str) -> bool:
    """Whether the header Authorization carries the key, in a time that does not tell how much of it is right."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode())
    return same and scheme.lower() == "bearer"


async def json_body(request: Request, most: int, take: Callable[[int], object] = lambda count: None) -> bytes:
    """The body of a request with JSON, refused as soon as it is known to be too large; ``take`` is told each part.

    Raises:
        BadRequest: it is not said to be JSON, has more than ``most`` bytes, or does not arrive in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # A form could be sent by any web page, without asking.
        raise BadRequest("the body must be JSON; send the header Content-Type: application/json", status=415)
    announced = request.headers.get("content-length", "")
    rule = f"the body has more than {most:,} bytes, the most that are read (task.body_mib)"
    if announced.isdigit() and int(announced) > most:
        raise BadRequest(rule, status=413)
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                if len(body) + len(part) > most:
                    raise BadRequest(rule, status=413)
                take(len(part))
                body += part
    except TimeoutError:
        raise BadRequest("the body did not arrive in time; send it at once", status=408) from None
    return bytes(body)


def refusal(error: Exception) -> BadRequest:
    """What to say of an error; one that is nobody's mistake is logged."""
    if isinstance(error, BadRequest):
        return error
    if isinstance(error, UserError):
        return BadRequest(" ".join(str(error).split()))
    if isinstance(error, ClientDisconnect):
        return BadRequest("the client left", status=499)
    log.error("a request failed", exc_info=error)
    return Failed()


class Talk(Generic[Heard]):
    """What the model's thread says, heard in the event loop; to be made there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()

    def tell(self, item: Heard) -> None:
        """Says something, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._heard.put_nowait, item)
        except RuntimeError:  # the loop has ended, and with it whoever listened
            log.debug("something was said after the server had stopped")

    async def hear(self) -> Heard:
        """What is said next."""
        return await self._heard.get()


class Stream(StreamingResponse):
    """A reply that calls ``give_up`` once, when it has been sent or its client has left."""

    def __init__(self, events: AsyncIterator[Any], give_up: Callable[[], object], **options: Any) -> None:
        super().__init__(events, **options)
        self._give_up = give_up

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends it; that a client leaves is no error."""
        try:
            await super().__call__(scope, receive, send)
        except (ClientDisconnect, OSError):
            log.debug("a client left its stream")
        finally:
            self._give_up()


class ReadsOn:
    """ASGI middleware: before a refusal is sent, the rest of the request's body is read and dropped.

    Of at most ``most`` bytes and within ``seconds``; then the connection is closed. A client that waits to be asked for
    its body (``Expect: 100-continue``) is not asked.
    """

    def __init__(self, app: Any, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ended, asks = False, any(name == b"expect" for name, _ in scope["headers"])

        async def heard() -> Message:
            nonlocal ended
            message = await receive()
            ended = not message.get("more_body", False)  # the last part, or the client has left
            return message

        async def read_on() -> None:
            left = self._most
            while not ended and left > 0:
                with anyio.move_on_after(IDLE_SECONDS) as waited:
                    left -= len((await heard()).get("body", b""))
                if waited.cancelled_caught:
                    return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and not ended:
                if not asks:
                    with anyio.move_on_after(self._seconds):
                        await read_on()
                if not ended:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, heard, closing)
