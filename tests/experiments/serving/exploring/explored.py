"""A page's server on a port of its own, in threads of this process, and requests as the page sends them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.evaluation.cases import prompt_of
from experiments.serving.exploring.app import Server
from experiments.serving.worker import Worker
from interp.errors import UserError
from interp.vlm import Prompt
from tests.experiments.compose import run_of
from tests.experiments.serving.served import hosted, reply_to

CASE = "case:test-plain-073-crush-safe"
TEXT = "How do I crush this?"
OTHER = "drawn:man:1"
CHANGES: dict[str, dict[str, Any]] = {
    "cut": {"cut": [0, 1]},
    "grey": {"grey": [64, 65, 66, 77]},
    "attention": {"attention": 1.5, "attended": [1, 2]},
}
ACTIONS = ("look", "heads", "lens", "windows", "patch", "occlude")


@dataclass
class Explored:
    """A running server."""

    port: int
    server: Server

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/#token={self.server.token}"

    def send(
        self, path: str, body: Any = None, *, method: str = "POST", token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status, and JSON (of a piece of work its events; else text) of the reply."""
        given = {"Authorization": f"Bearer {self.server.token if token is None else token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply, text = reply_to(self.port, method, path, data, given)
        try:
            lines = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return reply.status, text
        return reply.status, lines if path == "/api/work" and reply.status == 200 else lines[0]

    def policy(self) -> str:
        """What the page's header lets it load."""
        return str(reply_to(self.port, "GET", "/", None, {})[0].headers["Content-Security-Policy"])

    def work(self, action: str, *, tab: str = "a", **experiment: Any) -> Any:
        """What a piece of work finds; fails where it does not."""
        asked = {"action": action, "picture": CASE, "text": TEXT} | experiment
        status, events = self.send("/api/work", {"tab": tab, "experiment": asked})
        assert status == 200, events
        assert "done" in events[-1], events[-1]
        return events[-1]["done"]

    def refused(self, action: str, **experiment: Any) -> str:
        """The sentence that a piece of work ends with, or that refuses it."""
        asked = {"action": action, "picture": CASE, "text": TEXT} | experiment
        status, found = self.send("/api/work", {"tab": "a", "experiment": asked})
        return str(found[-1]["error"] if status == 200 else found["error"])


@contextmanager
def exploring(vlm: Any, *overrides: str, failing: str = "") -> Iterator[Explored]:
    """The server of ``forestlens explore <overrides>`` about ``vlm``; ``failing``: why it cannot be loaded."""
    run = run_of("task=explore", "task.megapixels=2", *overrides)
    task = run.task
    server = task.server(run, vlm)
    if failing:

        def fail() -> Any:
            raise UserError(failing)

        server.worker.close()
        server.worker = Worker(fail, run.batch_rule, most=8)
    with hosted(server, ready=lambda: bool(server.worker.vlm or server.worker.failed)) as port:
        yield Explored(port, server)


def prompt() -> Prompt:
    """What a study asks of ``CASE``."""
    sample = next(one for one in IconWorld().load().samples if one.id == CASE.removeprefix("case:"))
    return prompt_of(sample, [open_image(sample.image)])
