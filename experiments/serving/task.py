"""``task=serve``: the model, with its mitigation, behind an endpoint of OpenAI's form on this machine.

Importing this module loads neither torch nor transformers, nor the web framework.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation.study import connected
from experiments.runs.host_memory import return_freed_blocks
from experiments.serving.served import check_model, served
from experiments.serving.socket_server import LOOPBACK, bound, check_bounds, check_packages, until_stopped
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.serving.app import Server

MEBIBYTE = 2**20
MEGAPIXEL = 1_000_000
PICTURES_WAITING = 20  # times the largest picture, that may wait in main memory


@dataclass(frozen=True)
class Serve:
    """The task. ``key_env`` names the environment variable with the key that clients must send; none is asked for
    where it is not set, on this machine alone.

    ``waiting`` requests wait at most. ``gather_ms`` is how long the model waits for one more request to answer
    together. ``max_tokens`` is the longest answer that a client may ask for. ``run`` is that
    which arms have learned in. No request leaves the machine.

    Raises:
        UserError: a number that is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = "FORESTLENS_API_KEY"
    waiting: int = 256
    gather_ms: float = 5.0
    max_tokens: int = 1024
    body_mib: float = 32.0
    megapixels: float = 20.0
    run: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self, "waiting", "max_tokens", "body_mib", "megapixels")
        if not 0 <= self.gather_ms <= 1000:
            raise UserError(f"task.gather_ms={self.gather_ms}: must be 0 to 1000")

    def __call__(self, run: Run) -> None:
        """Serves until Ctrl-C.

        Raises:
            UserError: the address is taken, a package is missing, or the model or an arm cannot be served.
        """
        check_packages("serve", "serving")
        key = os.environ.get(self.key_env, "")
        if self.host not in LOOPBACK and not key:
            raise UserError(
                f"task.host={self.host} lets other machines ask, and {self.key_env} is not set; put a key into that "
                "environment variable, or leave task.host out"
            )
        console = Console()
        _ = run.weights
        arms = served(run)
        return_freed_blocks()
        with bound(self.host, self.port) as listener:
            vlm = connected(run)
            check_model(run, vlm)
            server = self.server(run, arms, vlm, key)
            listener.listen()  # whoever reads the line below can connect
            host, port = listener.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            console.print(f"serving {', '.join(arms)}\nat http://{address}:{port}/v1, until Ctrl-C", highlight=False,
                          markup=False, soft_wrap=True)  # fmt: skip
            until_stopped(server, listener, server.waiting.close)
        console.print("stopped serving", highlight=False)

    def server(self, run: Run, arms: Any, vlm: Any, key: str = "") -> "Server":
        """The endpoints for ``arms`` (``experiments.serving.served``), with the model's thread running."""
        from experiments.serving.app import Server
        from experiments.serving.request_queue import Waiting

        pixels = int(self.megapixels * MEGAPIXEL)
        waiting = Waiting(
            vlm,
            run.batch_rule,
            most=self.waiting,
            most_pixels=PICTURES_WAITING * pixels,
            gather=self.gather_ms / 1000,
        )
        return Server(
            arms,
            waiting,
            body=int(self.body_mib * MEBIBYTE),
            pixels=pixels,
            tokens=max(self.max_tokens, run.max_new_tokens),
            default_tokens=run.max_new_tokens,
            identity=" ".join(vlm.identity),
            key=key,
            hosts=LOOPBACK if self.host in LOOPBACK else (),
        )
