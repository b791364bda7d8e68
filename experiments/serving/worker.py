"""The thread that owns the model. Jobs of both servers wait in front of it, and it does those together that may be.

Batches are formed by the run's rule (``interp.batching``) from jobs of one kind. The oldest job is always in the next
batch. Imports torch only in that thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiments.serving.server import DROPPED, BadRequest, Failed, Full
from interp.batching import BatchRule, Lengths, Stopped, out_of_memory
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

log = logging.getLogger(__name__)
TOLD_EVERY = 0.1  # seconds between two events on the forwards so far
REPLACED = "a newer request of this page took its place"
NO_MEMORY = (
    "not enough memory for this; take a smaller picture, fewer layers or a shorter text; the model is still there"
)


@dataclass(eq=False)
class Job:
    """One piece of work.

    Args:
        do: is called in the model's thread with all jobs of a batch; returns a result for each.
        tell: hears events. The last is ``{"done": result, "forwards": …}`` or ``{"error": a UserError}``. A job with a
            ``tab`` also hears ``{"waiting": jobs before it, "loading": …}`` and ``{"forwards": so far}``.
        kind: jobs of equal kind are done together; None for a job that shares no batch.
        prompt: what the model is asked, to count its tokens; None if ``do`` counts them.
        tokens: of the answer, at most.
        tab: of a browser. A job replaces the earlier ones of its tab. "" for none.
        payload: what ``do`` needs of this job.
    """

    do: Callable[["VLM", Sequence["Job"]], Sequence[Any]]
    tell: Callable[[dict[str, Any]], object]
    kind: Hashable = None
    prompt: "Prompt | None" = None
    tokens: int = 0
    tab: str = ""
    payload: Any = None
    dropped: str = field(default="", init=False)  # why nobody wants it any more
    length: int | None = field(default=None, init=False)  # of the prompt in tokens, once counted


@dataclass(eq=False)
class Worker:
    """Loads the model by ``load`` in a thread of its own, and does the jobs there.

    ``vlm`` is None until the model is loaded. ``failed`` says why it could not be.

    Args:
        rule: how jobs of one kind are put into batches.
        most: jobs that may wait.
        most_pixels: of all pictures that wait.
        gather: seconds that the thread waits for a full batch, so that clients in step are answered together.
    """

    load: Callable[[], "VLM"]
    rule: BatchRule
    most: int
    most_pixels: float = float("inf")
    gather: float = 0.0

    def __post_init__(self) -> None:
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self.vlm: VLM | None = None
        self.failed = ""
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Let a job wait. It replaces the earlier one of its tab.

        Raises:
            Full: there is no room for it.
        """
        with self._changed:
            for other in [*self._waiting, *self._running]:
                if job.tab and job.tab == other.tab:
                    self._drop(other, REPLACED)
            crowded = bool(self._waiting) and sum(map(_pixels, [*self._waiting, job])) > self.most_pixels
            if self._closed or crowded or len(self._waiting) >= self.most:
                raise Full
            self._waiting.append(job)
            self._tell_places()
            self._changed.notify()

    def drop(self, job: Job) -> None:
        """Cancel a job. If it runs, it ends before the model's next forward, or its next token in a batch."""
        with self._changed:
            self._drop(job, "stopped")
            self._tell_places()

    def close(self, seconds: float = 10.0) -> None:
        """Cancel all jobs, and end the thread."""
        with self._changed:
            self._closed = True
            for job in [*self._waiting, *self._running]:
                self._drop(job, "the server has ended")
            self._changed.notify()
        self._thread.join(seconds)

    def _drop(self, job: Job, reason: str) -> None:
        job.dropped = job.dropped or reason
        if job in self._waiting:
            self._waiting.remove(job)
            job.tell({"error": BadRequest(reason, status=DROPPED)})

    def _tell_places(self) -> None:
        for index, job in enumerate(self._waiting):
            ahead = index + len(self._running)
            if job.tab and (ahead or self.vlm is None):
                job.tell({"waiting": ahead, "loading": self.vlm is None})

    def _run(self) -> None:
        try:
            self.vlm = self.load()
        except Exception as error:
            self.failed = " ".join(str(error if isinstance(error, UserError) else Failed()).split())
            log.error("the model could not be loaded", exc_info=None if isinstance(error, UserError) else error)
        while batch := self._next():
            if self.vlm is None:
                batch[0].tell({"error": UserError(self.failed)})  # only a page loads its model here
            else:
                with self.vlm.batches.by(self.rule, on_lowered=self._lower):
                    self._do(self.vlm, batch)
            with self._changed:
                self._running = []
                self._tell_places()
            del batch  # its pictures, while nothing else is asked

    def _next(self) -> list[Job]:
        """Return the next batch, in the order of its jobs; empty when closed."""
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: len(self._waiting) >= self.rule.rows or self._closed, self.gather)
                self._count()
                if not self._waiting:
                    continue
                batch = self._waiting[:1]
                if batch[0].kind is not None:
                    same = [job for job in self._waiting if job.kind == batch[0].kind]
                    formed = self.rule.form([job.length or 0 for job in same], [True] * len(same))
                    batch = next([same[index] for index in part] for part in formed if 0 in part)
                self._waiting = [job for job in self._waiting if job not in batch]
                self._running = batch
                self._tell_places()
                return batch
            return []

    def _count(self) -> None:
        """Count the tokens of new prompts. Refuse prompts that the model cannot hold."""
        lengths = Lengths(self.vlm) if self.vlm else None
        for job in list(self._waiting):
            if lengths and job.prompt and job.length is None:
                try:
                    (job.length,) = lengths.of_prompts([job.prompt])
                    check_length(self.vlm, job.length, job.tokens)
                except Exception as error:
                    self._waiting.remove(job)
                    job.tell({"error": self._judged(error, job)})

    def _do(self, vlm: "VLM", batch: Sequence[Job]) -> None:
        """Run a batch. If it fails, run each of its jobs separately. If memory runs out, run each half."""
        forwards, told = 0, time.monotonic()

        def stop() -> bool:
            nonlocal forwards, told
            forwards += 1
            if time.monotonic() - told > TOLD_EVERY:
                told = time.monotonic()
                for job in batch:
                    if job.tab:
                        job.tell({"forwards": forwards})
            return all(job.dropped for job in batch)

        try:
            with vlm.batches.stopping(stop):
                vlm.batches.go_on()
                results = batch[0].do(vlm, batch)
            for job, result in zip(batch, results, strict=True):
                job.tell({"done": result, "forwards": forwards})
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].tell({"error": self._judged(error, batch[0])})
                return
            lacks_memory = _lacks_memory(error)
        # Here the error and the frames that it held are gone, so that their memory can be freed.
        size = len(batch) // 2 if lacks_memory else 1
        if lacks_memory:
            vlm.batches.limit.lower(size)
        for start in range(0, len(batch), size):
            self._do(vlm, batch[start : start + size])

    def _judged(self, error: Exception, job: Job) -> UserError:
        """Return the error that the client is told: whose fault it is."""
        if isinstance(error, Stopped):
            return BadRequest(job.dropped, status=DROPPED)
        if isinstance(error, UserError):
            return error
        if _lacks_memory(error):
            return BadRequest(NO_MEMORY)
        if job.prompt is not None and self.vlm is not None:
            try:
                self.vlm.inputs([job.prompt])
            except Exception as cause:
                reason = f"{type(cause).__name__}: {cause}".splitlines()[0][:200]
                return UserError(f"{self.vlm.name} cannot read this prompt ({reason}); change its picture or its words")
        log.error("a request failed", exc_info=error)
        return Failed()

    def _lower(self, rows: int) -> None:
        self.rule = replace(self.rule, rows=rows)
        log.warning("out of memory; answering %d requests at once from here on", rows)


def _pixels(job: Job) -> int:
    return 0 if job.prompt is None else sum(image.width * image.height for image in job.prompt.images)


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, RuntimeError | MemoryError) and out_of_memory(error)


def check_length(vlm: Any, prompt: int, answer: int) -> None:
    """Refuse so many tokens of a prompt and its answer if the model cannot hold them.

    Raises:
        UserError: says how many it can hold. A model that does not say so takes all.
    """
    most = getattr(vlm.model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < prompt + answer:
        raise UserError(
            f"{prompt:,} tokens of the prompt and {answer} of an answer are more than the {most:,} that {vlm.name} can "
            "hold; shorten one of them"
        )
