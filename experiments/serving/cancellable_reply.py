"""A streamed reply whose work is given up with it, however it ends."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

log = logging.getLogger(__name__)


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
