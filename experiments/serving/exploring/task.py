"""``forestlens explore`` (``task=explore``): a page on this machine to try a model on pictures of one's own.

Importing this module loads neither torch nor transformers; the page is there before they are.
"""

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run
from experiments.serving.exploring.arms import arms_of
from experiments.serving.exploring.cases import Cases
from experiments.serving.exploring.desk import Desk
from experiments.serving.exploring.pictures import Pictures
from experiments.serving.socket_server import bound, check_bounds, check_packages, until_stopped

if TYPE_CHECKING:
    from experiments.serving.exploring.app import Server

MEBIBYTE, MEGAPIXEL = 2**20, 1_000_000
HOST = "127.0.0.1"  # no other machine is ever let in; a tunnel reaches it from elsewhere


@dataclass(frozen=True)
class Explore:
    """The task. ``run`` is a finished run whose cases and learned arms the page offers, ``case`` the one to open on.

    Raises:
        UserError: a number that is out of range.
    """

    port: int = 8765
    run: str | None = None
    case: str | None = None
    body_mib: float = 32.0
    megapixels: float = 20.0

    def __post_init__(self) -> None:
        check_bounds(self, "body_mib", "megapixels")

    def __call__(self, run: Run) -> None:
        """Serves the page until Ctrl-C.

        Raises:
            UserError: a package is missing, the port is taken, or the run cannot be read.
        """
        check_packages("explore", "explore")
        _ = run.weights
        console = Console()
        with bound(HOST, self.port) as listener:
            server = self.server(run)
            listener.listen()
            console.print(
                f"exploring {run.model.name}; the model loads meanwhile\nat {address(listener, server.token)}\nuntil "
                "Ctrl-C. From another machine: ssh -L, with the same port.",
                highlight=False, markup=False, soft_wrap=True,
            )  # fmt: skip
            until_stopped(server, listener, server.desk.close)
        console.print("stopped exploring", highlight=False)

    def server(self, run: Run, vlm: Any = None) -> "Server":
        """The endpoints for the run's model, which a thread loads meanwhile unless ``vlm`` is given."""
        from experiments.serving.exploring.app import Server

        folder = None if self.run is None else Path(self.run)
        cases = Cases(run, folder)
        arms, refused = arms_of(run.arms, folder, cases.nodes)
        return Server(
            desk=Desk(lambda: _loaded(run) if vlm is None else vlm, run.batch_rule),
            cases=cases,
            pictures=Pictures(cases.sample),
            arms=arms,
            refused=refused,
            model=run.model,
            token=secrets.token_urlsafe(24),
            body=int(self.body_mib * MEBIBYTE),
            pixels=int(self.megapixels * MEGAPIXEL),
            case=self.case,
            tokens=run.max_new_tokens,
        )


def address(listener: socket.socket, token: str) -> str:
    """The page's address; the token stands in the fragment, which a browser sends to nobody."""
    return f"http://{HOST}:{listener.getsockname()[1]}/#token={token}"


def _loaded(run: Run) -> Any:
    from experiments.evaluation.study import connected

    return connected(run)
