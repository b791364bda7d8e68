"""The desk before the model: a few pieces of work wait, and one thread does them, one after another.

Nothing is remembered of a browser tab but its latest piece of work: a newer one takes its place. Imports no torch.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.serving.requests import Full
from interp.batching import BatchRule, Stopped, out_of_memory
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM

log = logging.getLogger(__name__)
MOST_WAITING = 8
TOLD_EVERY = 0.1  # seconds between two words on how far a piece of work is
REPLACED = "a newer request of this page took its place"
NO_MEMORY = (
    "not enough memory for this; take a smaller picture, fewer layers or a shorter text; the model is still there"
)
FAULT = "something went wrong here; the terminal says what, and the model is as it was"


@dataclass(eq=False)
class Work:
    """``do`` is called with the model in its thread, ``tell`` with each event: where it waits, and how it ended.

    ``dropped`` may be set by anyone at any time, and says why the work is wanted no more.
    """

    tab: str
    do: Callable[["VLM"], Any]
    tell: Callable[[dict[str, Any]], object]
    dropped: str = field(default="", init=False)


class Desk:
    """Loads the model by ``load`` in a thread of its own, and does the work there.

    ``vlm`` is None until it is loaded; ``failed`` says why it could not be.
    """

    def __init__(self, load: Callable[[], "VLM"], rule: BatchRule) -> None:
        self._load, self._rule = load, rule
        self._waiting: list[Work] = []
        self._running: Work | None = None
        self._changed = threading.Condition()
        self._closed = False
        self.vlm: VLM | None = None
        self.failed = ""
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Lets ``work`` wait, in place of its tab's earlier one.

        Raises:
            Full: as many as may wait do so.
        """
        with self._changed:
            self._drop([*self._waiting, self._running], work.tab, REPLACED)
            if len(self._waiting) >= MOST_WAITING or self._closed:
                raise Full
            self._waiting.append(work)
            self._tell_places()
            self._changed.notify()

    def drop(self, work: Work) -> None:
        """Gives ``work`` up; one that runs stops before the model's next forward."""
        with self._changed:
            work.dropped = work.dropped or "stopped"
            self._waiting = [one for one in self._waiting if one is not work]
            self._tell_places()

    def close(self, seconds: float = 10.0) -> None:
        """Gives up everything, and ends the thread."""
        with self._changed:
            self._closed = True
            for work in [*self._waiting, *([self._running] if self._running else [])]:
                work.dropped = "the server has ended"
            self._changed.notify()
        self._thread.join(seconds)

    def _drop(self, works: "list[Any]", tab: str, why: str) -> None:
        for work in works:
            if work is not None and work.tab == tab and not work.dropped:
                work.dropped = why
                if work is not self._running:
                    work.tell({"error": why, "stopped": True})
        self._waiting = [one for one in self._waiting if not one.dropped]

    def _tell_places(self) -> None:
        for index, work in enumerate(self._waiting):
            ahead = index + (self._running is not None)
            if ahead or self.vlm is None:
                work.tell({"waiting": ahead, "loading": self.vlm is None})

    def _run(self) -> None:
        try:
            vlm = self._load()
        except Exception as error:
            self.failed = " ".join(str(error).split()) if isinstance(error, UserError) else FAULT
            log.error("the model could not be loaded", exc_info=None if isinstance(error, UserError) else error)
        else:
            self.vlm = vlm
        while (work := self._next()) is not None:
            work.tell(self._done(work) if self.vlm else {"error": self.failed})
            with self._changed:
                self._running = None
                self._tell_places()

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self._running = self._waiting.pop(0)
            self._tell_places()
            return self._running

    def _done(self, work: Work) -> dict[str, Any]:
        """The last event of a piece of work: what it found, or why not, in a sentence."""
        vlm = self.vlm
        assert vlm is not None
        forwards, told = 0, time.monotonic()

        def stop() -> bool:
            nonlocal forwards, told
            forwards += 1
            if time.monotonic() - told > TOLD_EVERY:
                told = time.monotonic()
                work.tell({"forwards": forwards})
            return bool(work.dropped)

        try:
            with (
                vlm.batches.by(self._rule, on_lowered=lambda rows: None),
                vlm.batches.stopping(stop),
            ):
                vlm.batches.go_on()
                return {"done": work.do(vlm), "forwards": forwards}
        except Stopped:
            return {"error": work.dropped, "stopped": True}
        except UserError as error:
            return {"error": " ".join(str(error).split())}
        except Exception as error:
            if isinstance(error, RuntimeError | MemoryError) and out_of_memory(error):
                return {"error": NO_MEMORY}
            log.error("a request failed", exc_info=error)
            return {"error": FAULT}
