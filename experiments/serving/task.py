"""``task=serve``: the model, with its mitigation, behind an endpoint of OpenAI's form on this machine.

Importing this module loads neither torch nor transformers, nor the web framework.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.config import Run
from experiments.evaluation.study import connected
from experiments.runs.host_memory import return_freed_blocks
from experiments.serving.methods import check_model, served
from experiments.serving.server import LOOPBACK, ServerTask, bound
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.serving.chat import Server

GATHER = 0.02  # seconds that the model waits for more requests to answer together
PICTURES_WAITING = 20  # times the largest picture, that may wait in main memory


@dataclass(frozen=True, kw_only=True)
class Serve(ServerTask):
    """The task. No request leaves the machine.

    Args:
        host: an address that other machines reach needs a key.
        key_env: names the environment variable with the key that clients must send. If it is not set, only this machine
            may ask, without a key.
        waiting: requests that may wait.
        max_tokens: the longest answer that a client may ask for.

    Raises:
        UserError: a number is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = "FORESTLENS_API_KEY"
    waiting: int = 256
    max_tokens: int = 1024
    name: ClassVar[str] = "serve"
    bounds: ClassVar[tuple[str, ...]] = ("waiting", "max_tokens", *ServerTask.bounds)

    def __call__(self, run: Run) -> None:
        """Serve until Ctrl-C.

        Raises:
            UserError: the address is in use, a package is missing, or the model or an arm cannot be served.
        """
        self.check_packages()
        key = os.environ.get(self.key_env, "")
        if self.host not in LOOPBACK and not key:
            raise UserError(
                f"task.host={self.host} lets other machines ask, and {self.key_env} is not set; put a key into that "
                "environment variable, or remove task.host"
            )
        _ = run.weights
        arms = served(run)
        return_freed_blocks()
        with bound(self.host, self.port) as listener:
            vlm = connected(run)
            check_model(run, vlm)
            host, port = listener.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            sentence = f"{', '.join(arms)}\nat http://{address}:{port}/v1, until Ctrl-C"
            self.answer_requests(self.server(run, arms, vlm, key), listener, sentence, "serving")

    def server(self, run: Run, arms: Any, vlm: Any, key: str = "") -> "Server":
        """Return the endpoints for ``arms`` (``experiments.serving.methods``), with the model's thread running."""
        from experiments.serving.chat import Server
        from experiments.serving.worker import Worker

        most = {"most": self.waiting, "most_pixels": PICTURES_WAITING * self.limits["pixels"]}
        return Server(
            arms,
            Worker(lambda: vlm, run.batch_rule, gather=GATHER, **most),
            **self.limits,
            tokens=max(self.max_tokens, run.max_new_tokens),
            default_tokens=run.max_new_tokens,
            identity=" ".join(vlm.identity),
            key=key,
            hosts=LOOPBACK if self.host in LOOPBACK else (),
        )
