"""``task=serve`` (an endpoint of OpenAI's form) and ``forestlens explore`` (a page), both on this machine.

Importing this module loads neither torch nor transformers, nor the web framework.
"""

import ctypes
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.config import Run
from experiments.serving.server import LOOPBACK, ServerTask, bound
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.serving import chat
    from experiments.serving.exploring import app

M_MMAP_THRESHOLD = -3  # glibc's malloc.h
GATHER = 0.02  # seconds that the model waits for more requests to answer together
HOST = "127.0.0.1"  # of the page: no other machine is ever let in; a tunnel reaches it from elsewhere
MOST_WAITING = 8  # pieces of work of the page
PICTURES_WAITING = 20  # times the largest picture, that may wait in main memory


@dataclass(frozen=True, kw_only=True)
class Serve(ServerTask):
    """``task=serve``: the model, with its mitigation. No request leaves the machine.

    Args:
        host: an address that other machines reach needs a key.
        key_env: names the environment variable with the key that clients must send. If it is not set, only this machine
            may ask, without a key.
        waiting: requests that may wait.
        max_tokens: the longest answer that a client may ask for.
        run: the folder of a finished run in which arms learned.

    Raises:
        UserError: a number is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = "FORESTLENS_API_KEY"
    waiting: int = 256
    max_tokens: int = 1024
    run: str | None = None
    name: ClassVar[str] = "serve"
    bounds: ClassVar[tuple[str, ...]] = ("waiting", "max_tokens", *ServerTask.bounds)

    def __call__(self, run: Run) -> None:
        """Serve until Ctrl-C.

        Raises:
            UserError: the address is in use, a package is missing, or the model or an arm cannot be served.
        """
        from experiments.evaluation.study import connected
        from experiments.serving.methods import check_model, served

        self.check_packages()
        key = os.environ.get(self.key_env, "")
        if self.host not in LOOPBACK and not key:
            raise UserError(
                f"task.host={self.host} lets other machines ask, and {self.key_env} is not set; put a key into that "
                "environment variable, or remove task.host"
            )
        _ = run.weights
        arms = served(run)
        _return_freed_blocks()
        with bound(self.host, self.port) as listener:
            vlm = connected(run)
            check_model(run, vlm)
            host, port = listener.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            sentence = f"{', '.join(arms)}\nat http://{address}:{port}/v1, until Ctrl-C"
            self.answer_requests(self.server(run, arms, vlm, key), listener, sentence, "serving")

    def server(self, run: Run, arms: Any, vlm: Any, key: str = "") -> "chat.Server":
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


@dataclass(frozen=True, kw_only=True)
class Explore(ServerTask):
    """``task=explore``: ``case`` of the benchmark is the one to open on.

    Raises:
        UserError: a number is out of range.
    """

    port: int = 8765
    case: str | None = None
    name: ClassVar[str] = "explore"

    def __call__(self, run: Run) -> None:
        """Serve the page until Ctrl-C.

        Raises:
            UserError: a package is missing, or the port is in use.
        """
        self.check_packages()
        _ = run.weights
        with bound(HOST, self.port) as listener:
            server = self.server(run)
            # The token is in the fragment, which a browser sends to nobody.
            address = f"http://{HOST}:{listener.getsockname()[1]}/#token={server.token}"
            tunnel = "until Ctrl-C. From another machine: ssh -L, with the same port."
            sentence = f"{run.model.name}; the model loads meanwhile\nat {address}\n{tunnel}"
            self.answer_requests(server, listener, sentence, "exploring")

    def server(self, run: Run, vlm: Any = None) -> "app.Server":
        """Return the endpoints for the run's model, which a thread loads meanwhile unless ``vlm`` is given."""
        from experiments.serving.exploring.app import Server
        from experiments.serving.exploring.arms import Cases, arms_of
        from experiments.serving.pictures import Pictures
        from experiments.serving.worker import Worker

        cases, (arms, refused) = Cases(run), arms_of(run.arms)

        def load() -> Any:
            from experiments.evaluation.study import connected

            return connected(run) if vlm is None else vlm

        return Server(
            Worker(load, run.batch_rule, most=MOST_WAITING),
            cases=cases,
            pictures=Pictures(cases.sample),
            arms=arms,
            refused=refused,
            model=run.model,
            token=secrets.token_urlsafe(24),
            studied=run.arm if run.arm in arms and run.arm != "baseline" else "",
            case=self.case,
            tokens=run.max_new_tokens,
            **self.limits,
        )


def _return_freed_blocks() -> None:
    """Make glibc return every freed tensor of a MiB or more at once, in this process.

    Otherwise it keeps some, and a process that answers for days grows. Does nothing if the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**20)
