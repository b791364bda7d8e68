"""What ``task=serve`` and ``task=explore`` share: options, refusals, the socket, and uvicorn.

A refusal is one sentence with an HTTP status. Loads neither torch nor the web framework.
"""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from rich.console import Console

from interp.errors import UserError

FULL = "this server has as many requests waiting as it takes; try again in a moment"
DROPPED = 499  # the status of what nobody wants any more


class BadRequest(UserError):
    """A request that cannot be answered as it is.

    Args:
        sentence: what is wrong, and what to do.
        field: the parameter at fault.
        status: the HTTP status.
        code: OpenAI's short name of the error.
    """

    def __init__(self, sentence: str, field: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(sentence)
        self.field, self.status_code, self.code = field, status, code


class Full(BadRequest):
    """No room for more requests."""

    def __init__(self) -> None:
        super().__init__(FULL, status=429, code="rate_limit_exceeded")


class Failed(BadRequest):
    """A fault of this program. The log says which."""

    def __init__(self) -> None:
        super().__init__(
            "something went wrong here, and the model is as it was; the server's terminal says what", status=500
        )


LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
CONNECTIONS = 512
HEADERS = 64 * 1024  # bytes of all headers of a request
GOODBYE = 5  # seconds that open requests have when the server ends
NEEDED = ("starlette", "uvicorn", "pydantic")
MEBIBYTE, MEGAPIXEL = 2**20, 1_000_000


@dataclass(frozen=True, kw_only=True)
class ServerTask:
    """A task that answers requests until Ctrl-C.

    Args:
        port: 0 for any free one.
        body_mib: the largest body of a request.
        megapixels: the largest picture of a request.

    Raises:
        UserError: a number is out of range.
    """

    port: int
    body_mib: float = 32.0
    megapixels: float = 20.0
    name: ClassVar[str]
    bounds: ClassVar[tuple[str, ...]] = ("body_mib", "megapixels")

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UserError(f"task.port={self.port}: must be 0 (any free port) to 65535")
        for name in self.bounds:
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"task.{name}={getattr(self, name)}: must be above 0")

    @property
    def limits(self) -> dict[str, int]:
        """Return the most bytes of a body and pixels of a picture."""
        return {"body": int(self.body_mib * MEBIBYTE), "pixels": int(self.megapixels * MEGAPIXEL)}

    def check_packages(self) -> None:
        """Raise a ``UserError`` if a package of the server is missing."""
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise UserError(
                f"task={self.name} needs {', '.join(missing)}; to install what is missing, type "
                f".venv/bin/pip install -e '.[{self.name.replace('serve', 'serving')}]' in the clone"
            )

    def answer_requests(self, server: Any, listener: socket.socket, sentence: str, verb: str) -> None:
        """Print ``sentence``, answer requests until a signal ends it, then close the model's thread."""
        console = Console()
        listener.listen()  # whoever reads the sentence can connect
        console.print(f"{verb} {sentence}", highlight=False, markup=False, soft_wrap=True)
        try:
            uvicorn_server(server.app()).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again when all is closed
            pass
        finally:
            server.worker.close()
        console.print(f"stopped {verb}", highlight=False)


def uvicorn_server(app: Any) -> Any:
    """Return uvicorn's server for ``app``. Only errors are logged, because any client can cause warnings."""
    import uvicorn

    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GOODBYE,
        )
    )


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve a socket at the address. Nobody can reach it before it listens.

    Raises:
        UserError: the address is in use, or is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:  # else asyncio keeps Nagle's delay
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot serve at {host}:{port} ({reason}); choose another task.port or task.host"
            ) from None
        yield listener
