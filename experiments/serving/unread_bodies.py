"""Refusals that reach clients whose body was not read.

A server that closes a connection with unread bytes resets it, and a client that is still sending sees the reset and
not the refusal. uvicorn would go on reading without an end, unless the client has asked to close.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio

Message = MutableMapping[str, Any]
IDLE_SECONDS = 1.0  # without a byte, after which the client is taken to wait for the reply


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
