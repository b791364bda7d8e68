"""A socket on this machine and uvicorn behind it. Loads neither torch nor the rest of the package."""

import logging
import socket
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from interp.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
CONNECTIONS = 512
HEADERS = 64 * 1024  # bytes, of all headers of a request
GOODBYE = 5  # seconds that open requests have when the server ends


NEEDED = ("starlette", "uvicorn", "pydantic")


def check_packages(task: str, extra: str) -> None:
    """Raises a ``UserError`` where a package of the server is missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(
            f"task={task} needs {', '.join(missing)}; to install what is missing, type "
            f".venv/bin/pip install -e '.[{extra}]' in the clone"
        )


def check_bounds(task: Any, *positive: str) -> None:
    """Raises a ``UserError`` where the port is none, or one of the options is not above 0."""
    if not 0 <= task.port < 2**16:
        raise UserError(f"task.port={task.port}: must be 0 (any that is free) to 65535")
    for name in positive:
        if not 0 < getattr(task, name) < float("inf"):
            raise UserError(f"task.{name}={getattr(task, name)}: must be above 0")


def until_stopped(server: Any, listener: socket.socket, close: Callable[[], object]) -> None:
    """Answers requests until a signal ends it, then closes."""
    try:
        configured(server).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises it again when all is closed
        pass
    finally:
        close()


def configured(server: Any) -> Any:
    """uvicorn's server for ``server.app()``. Of its log only errors are kept: any client can cause its warnings."""
    import uvicorn

    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            server.app(),
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


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address, which nobody can reach before it listens.

    Raises:
        UserError: it is taken, or is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or asyncio keeps Nagle's delay
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot serve at {host}:{port} ({reason}); choose another task.port or task.host") from None
    return listener
