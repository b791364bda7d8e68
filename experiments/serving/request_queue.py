"""The queue in front of the model: requests wait here, and one thread answers those together that may be.

Batches are formed by the run's rule (``interp.batching``), from requests that name the same model and are decoded
alike; the oldest one is always among the next. Imports torch only in that thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.serving.requests import Decoding, Failed, Full
from experiments.serving.streamed_decoding import Answer, Row, answer
from interp.batching import BatchRule, MemoryLimit
from interp.errors import UserError
from interp.prompt_length import Lengths

if TYPE_CHECKING:
    from interp.vlm import VLM

log = logging.getLogger(__name__)
MOST_GATHERING = 5  # times ``gather`` seconds, before those that are there are answered in any case


@dataclass(eq=False)
class QueuedRequest:
    """One row that waits: what ``method`` (by its ``name``) is asked, and whom to tell.

    ``deliver`` is called once, in the model's thread, with the answer or what went wrong. ``given_up`` may be set by
    anyone at any time.
    """

    name: str
    method: Any
    row: Row
    decoding: Decoding
    deliver: Callable[[Answer | Exception], object]
    given_up: bool = False
    length: int | None = field(default=None, init=False)  # in tokens; None until the model's thread has counted

    def __post_init__(self) -> None:
        self.row.given_up = lambda: self.given_up

    @property
    def pixels(self) -> int:
        image = self.row.prompt.image
        return 0 if image is None else image.width * image.height

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests that are equal in this are answered together."""
        return self.name, self.decoding, self.row.prompt.image is not None


class Waiting:
    """At most ``most`` requests with at most ``most_pixels`` pixels wait at a time.

    ``gather`` is how many seconds without a new request the thread waits for more before it answers, so that clients
    that work in step are answered together. It waits no longer when there are as many as there lately were.
    """

    def __init__(self, vlm: "VLM", rule: BatchRule, *, most: int, most_pixels: int, gather: float) -> None:
        self._vlm, self._rule, self._gather = vlm, rule, gather
        self._most, self._most_pixels = most, most_pixels
        self._limit = MemoryLimit(rule.rows, self._lowered)
        self._asked: list[QueuedRequest] = []
        self._changed = threading.Condition()
        self._running: Sequence[QueuedRequest] = ()
        self._lately: int | None = None  # requests in the last batch, and waiting at its end
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def put(self, asked: Sequence[QueuedRequest]) -> None:
        """Lets all of ``asked`` wait, or none.

        Raises:
            Full: there is no room for them.
        """
        with self._changed:
            self._asked = [one for one in self._asked if not one.given_up]
            pixels = sum(one.pixels for one in [*self._asked, *asked])
            crowded = bool(self._asked) and pixels > self._most_pixels
            if self._closed or len(self._asked) + len(asked) > self._most or crowded:
                raise Full
            self._asked += asked
            self._changed.notify()

    def close(self, seconds: float = 10.0) -> None:
        """Gives up whatever waits or runs, and ends the thread."""
        with self._changed:
            self._closed = True
            for request in [*self._asked, *self._running]:
                request.given_up = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        with self._vlm.batches.by(self._rule, on_lowered=self._lowered):
            while batch := self._next():
                self._answer(batch)
                self._running = ()
                del batch  # its pictures, while nothing else is asked

    def _next(self) -> list[QueuedRequest]:
        """The next batch, in the order of its requests; empty when closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return []
                self._gather_more()
                here = [one for one in self._asked if not one.given_up]
            self._count([one for one in here if one.length is None])
            with self._changed:
                self._asked = [one for one in self._asked if not one.given_up]
                same = [one for one in self._asked if one.length is not None and one.kind == self._asked[0].kind]
                if not same:
                    continue
                lengths = [one.length or 0 for one in same]
                pictured = [one.row.prompt.image is not None for one in same]
                chosen = next(batch for batch in self._rule.form(lengths, pictured) if 0 in batch)
                batch = [same[place] for place in chosen]
                self._asked = [one for one in self._asked if one not in batch]
                self._running = batch
                return batch

    def _gather_more(self) -> None:
        """Waits while requests keep coming, as long as they fit into the first batch and more may come."""
        until = time.monotonic() + self._gather * MOST_GATHERING
        enough = self._limit.rows if self._lately is None else min(self._limit.rows, self._lately)
        while len(self._asked) < enough and not self._closed and time.monotonic() < until:
            before = len(self._asked)
            if not self._changed.wait_for(lambda before=before: len(self._asked) != before, self._gather):  # type: ignore[misc]
                return

    def _count(self, asked: Sequence[QueuedRequest]) -> None:
        """Counts the tokens of new requests; refuses those that the model cannot hold."""
        lengths = Lengths(self._vlm)  # anew, because it remembers every text
        for request in asked:
            try:
                request.length = lengths.of_prompts([request.row.prompt])[0]
                check_length(self._vlm, request.length, request.decoding.max_tokens)
            except Exception as error:
                self._end(request, self._judged(error, request))

    def _answer(self, batch: Sequence[QueuedRequest]) -> None:
        """Answers a batch; where that fails, each request by itself, so that none fails for another."""
        try:
            for request, answer in zip(batch, self._asked_together(batch), strict=True):
                self._end(request, answer)
        except Exception as error:
            if len(batch) == 1:
                self._end(batch[0], self._judged(error, batch[0]))
                return
            for request in batch:  # what was streamed of an answer stands, and is continued
                self._answer([request])

    def _asked_together(self, batch: Sequence[QueuedRequest]) -> list[Answer]:
        method, decoding = batch[0].method, batch[0].decoding
        parts = self._limit.parts(
            batch, lambda part: answer(method, self._vlm, [one.row for one in part], decoding), name=_name
        )
        answers = [one for part in parts for one in part]
        with self._changed:  # before anybody who is answered asks again
            self._lately = len(batch) + sum(not one.given_up for one in self._asked)
        return answers

    def _judged(self, error: Exception, asked: QueuedRequest) -> Exception:
        """The error that the client is told: whose fault it is."""
        if isinstance(error, UserError):
            return error
        try:
            self._vlm.inputs([asked.row.prompt])
        except Exception as cause:
            reason = f"{type(cause).__name__}: {cause}".splitlines()[0][:200]
            return UserError(f"{self._vlm.name} cannot take this prompt in ({reason}); change its picture or its words")
        log.error("a request to %s failed", asked.name, exc_info=error)
        return Failed()

    def _end(self, one: QueuedRequest, found: Answer | Exception) -> None:
        one.given_up = True  # out of the queue
        one.deliver(found)

    def _lowered(self, rows: int) -> None:
        log.warning("out of memory; answering %d requests at once from here on", rows)


def _name(asked: QueuedRequest) -> str:
    return asked.row.prompt.text[:40]


def check_length(vlm: "VLM", prompt: int, answer: int) -> None:
    """Refuses so many tokens of a prompt and of its answer where they are more than the model can hold.

    Raises:
        UserError: says how many it can; a model that does not say so takes all.
    """
    most = getattr(vlm.model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < prompt + answer:
        raise UserError(
            f"{prompt:,} tokens of the prompt and {answer} of an answer are more than the {most:,} that {vlm.name} can "
            "hold; shorten the one or the other"
        )
