"""``explore(vlm)``: the page in a notebook, about a model that is loaded already."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.vlm import VLM


class Page:
    """A running page; a notebook shows it in a frame. ``address`` opens it in any browser of this machine."""

    def __init__(self, address: str, host: Any, server: Any) -> None:
        self.address, self._host, self._server = address, host, server

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 900px; border: 0"
        return f'<iframe src="{self.address}" style="{style}" title="forestlens explore"></iframe>'

    def stop(self) -> None:
        """Ends the page and its thread; the model stays as it is."""
        self._host.should_exit = True
        self._server.desk.close()


def explore(vlm: "VLM", *, run: str | None = None, port: int = 0) -> Page:
    """Opens the page of ``task=explore`` about ``vlm`` in threads of this process, on IconWorld's cases.

    ``run`` is the folder of a finished run, ``port`` 0 any that is free. Leave ``vlm`` to the page while it is open.

    Raises:
        UserError: a package is missing, or the run cannot be read.
    """
    from experiments.config import build_run, composed
    from experiments.serving.exploring.task import HOST, Explore, address
    from experiments.serving.socket_server import bound, check_packages, configured

    check_packages("explore", "explore")
    about = build_run(composed(["task=explore", "name=explore"]))
    task = Explore(port=port, run=run)
    listener = bound(HOST, port)
    server = replace(task.server(about, vlm), frames="http://localhost:* http://127.0.0.1:*", model=vlm)
    host = configured(server)
    listener.listen()
    threading.Thread(target=host.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return Page(address(listener, server.token), host, server)
