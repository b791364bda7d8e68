"""``forestlens explore`` (``task=explore``): a page on this machine to try a model on pictures of one's own.

Importing this module loads neither torch nor transformers, nor the web framework. The page is there before they are.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.config import Run
from experiments.serving.server import ServerTask, bound

if TYPE_CHECKING:
    from experiments.serving.exploring.app import Server

HOST = "127.0.0.1"  # no other machine is ever let in; a tunnel reaches it from elsewhere
MOST_WAITING = 8  # pieces of work


@dataclass(frozen=True, kw_only=True)
class Explore(ServerTask):
    """The task. ``run`` is a finished run whose cases and learned arms the page offers, ``case`` the one to open on.

    Raises:
        UserError: a number is out of range.
    """

    port: int = 8765
    case: str | None = None
    name: ClassVar[str] = "explore"

    def __call__(self, run: Run) -> None:
        """Serve the page until Ctrl-C.

        Raises:
            UserError: a package is missing, the port is in use, or the run cannot be read.
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

    def server(self, run: Run, vlm: Any = None) -> "Server":
        """Return the endpoints for the run's model, which a thread loads meanwhile unless ``vlm`` is given."""
        from experiments.serving.exploring.app import Server
        from experiments.serving.exploring.arms import arms_of
        from experiments.serving.exploring.cases import Cases
        from experiments.serving.pictures import Pictures
        from experiments.serving.worker import Worker

        folder = None if self.run is None else Path(self.run)
        cases = Cases(run, folder)
        arms, refused = arms_of(run.arms, folder, cases.nodes)

        def load() -> Any:
            from experiments.evaluation.study import connected

            return cases.checked(connected(run) if vlm is None else vlm)

        return Server(
            Worker(load, run.batch_rule, most=MOST_WAITING),
            cases=cases,
            pictures=Pictures(cases.sample),
            arms=arms,
            refused=refused,
            model=run.model,
            token=secrets.token_urlsafe(24),
            case=self.case,
            tokens=run.max_new_tokens,
            **self.limits,
        )
