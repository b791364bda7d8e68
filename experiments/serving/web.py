"""The web application of both servers: keys, bodies, refusals, and replies that end with their clients.

A server that closes a connection with unread bytes resets it. A client that is still sending then sees the reset and
not the refusal. So the rest of a refused body is read and dropped, within bounds.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from experiments.serving.server import DROPPED, BadRequest, Failed
from interp.errors import UserError

log = logging.getLogger(__name__)
BODY_SECONDS = 30.0  # within which a body must arrive
READERS = 8  # bodies that are read and parsed at a time; others wait unread
REFUSED = 4  # times the largest body, that is read of a refused one and dropped
IDLE_SECONDS = 1.0  # without a byte, after which a client that was refused waits for the reply


def application(
    routes: Sequence[Route], refused: Callable[[BadRequest], Response], *, most: int, hosts: Sequence[str]
) -> Starlette:
    """Return the ASGI application.

    Args:
        routes: its endpoints. They raise a ``UserError`` to refuse a request.
        refused: makes the reply for every error.
        most: the bytes of the largest body.
        hosts: the names by which clients may call this machine; empty for any.
    """

    async def reply_to(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):  # the router's
            sentence = f"{request.method[:20]} {request.url.path[:100]}: {error.detail}"
            error = BadRequest(sentence, status=error.status_code)
        reply = refused(refusal(error))
        if not await _body_ended(request, REFUSED * most):
            reply.headers["connection"] = "close"
        return reply

    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))] if hosts else []
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, UserError, ClientDisconnect, Exception), reply_to)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.state.readers = anyio.CapacityLimiter(READERS)
    return app


async def _body_ended(request: Request, most: int) -> bool:
    """Read and drop the rest of a body; return whether it ended within the bounds."""
    headers = request.headers
    if request.scope.get("body_read") or not {"content-length", "transfer-encoding"} & set(headers):
        return True
    if "expect" in headers:  # the client waits to be asked for its body
        return False
    with anyio.move_on_after(BODY_SECONDS):
        while most > 0:
            with anyio.move_on_after(IDLE_SECONDS) as waited:
                message = await request.receive()
                most -= len(message.get("body", b""))
                if not message.get("more_body", False):  # the last part, or the client has left
                    return True
            if waited.cancelled_caught:
                return False
    return False


def check_key(request: Request, key: str, sentence: str) -> None:
    """Compare the header Authorization with the key, in a time that does not tell how much of it is right.

    Raises:
        BadRequest: with ``sentence``, if the key is missing or wrong.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode())
    if not same or scheme.lower() != "bearer":
        raise BadRequest(sentence, status=401, code="invalid_api_key")


async def parsed_body(request: Request, most: int, parse: Callable[[bytes], Any]) -> Any:
    """Return ``parse`` of a JSON body, called in a thread of its own.

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
    async with request.app.state.readers:
        body = bytearray()
        try:
            with anyio.fail_after(BODY_SECONDS):
                async for part in request.stream():
                    if len(body) + len(part) > most:
                        raise BadRequest(rule, status=413)
                    body += part
        except TimeoutError:
            raise BadRequest("the body did not arrive in time; send it at once", status=408) from None
        request.scope["body_read"] = True
        return await anyio.to_thread.run_sync(parse, bytes(body))


def refusal(error: Exception) -> BadRequest:
    """Return what to say of an error. Log it if it is nobody's mistake."""
    if isinstance(error, BadRequest):
        return error
    if isinstance(error, UserError):
        return BadRequest(" ".join(str(error).split()))
    if isinstance(error, ClientDisconnect):
        return BadRequest("the client left", status=DROPPED)
    log.error("a request failed", exc_info=error)
    return Failed()


class Events:
    """What the model's thread says, heard in the event loop. Make it there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(self, event: dict[str, Any]) -> None:
        """Log a line, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:  # the loop has ended, and with it whoever listened
            log.debug("something was said after the server had stopped")

    async def hear(self) -> dict[str, Any]:
        """Return what is said next."""
        return await self._queue.get()
