"""The queue: who is answered with whom, who is refused, and that one's fault is not another's."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from PIL import Image

from experiments.serving.decoding import Answer, Row, answer
from experiments.serving.requests import Decoding
from experiments.serving.server import Failed, Full
from experiments.serving.worker import Job, Worker
from interp.batching import BatchRule
from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from tests.tiny import picture

GREEDY = Decoding(2)


@dataclass
class Watched:
    """Answers as the model does, notes who was asked together, and waits for ``gate`` first."""

    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)
    fault: Callable[[Prompt], Exception | None] = lambda _: None

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        assert self.gate.wait(30)
        self.batches.append([prompt.key for prompt in prompts])
        for prompt in prompts:
            if (error := self.fault(prompt)) is not None:
                raise error
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


class Heard:
    """What a row was told."""

    def __init__(self) -> None:
        self._said = threading.Event()
        self.said: Any = None

    def __call__(self, event: dict[str, Any]) -> None:
        assert not self._said.is_set()  # once
        self.said = event.get("done", event.get("error"))
        self._said.set()

    def wait(self) -> Any:
        assert self._said.wait(30)
        return self.said


def worker_of(vlm: VLM, **options: Any) -> Worker:
    given: dict[str, Any] = {"most": 8, "most_pixels": 10_000_000} | options
    return Worker(lambda: vlm, BatchRule(rows=given.pop("rows", 4)), **given)


@pytest.fixture
def queue(vlm: VLM) -> Iterator[Worker]:
    found = worker_of(vlm)
    yield found
    found.close()


def asked(
    method: Any, key: str, *, image: Image.Image | None = None, name: str = "m", decoding: Decoding = GREEDY
) -> tuple[Job, Heard]:
    heard, prompt = Heard(), Prompt("the cat", picture() if image is None else image, key=key)

    def do(vlm: VLM, batch: Sequence[Job]) -> list[Answer]:
        return answer(method, vlm, [job.payload for job in batch], decoding)

    job = Job(do, heard, (name, decoding), prompt, decoding.max_tokens, payload=Row(prompt))
    job.payload.given_up = lambda: bool(job.dropped)
    return job, heard


def blocked(queue: Worker, method: Watched) -> Heard:
    """A first request, which is being answered until the gate opens."""
    first, heard = asked(method, "first")
    queue.put(first)
    while queue._waiting:
        time.sleep(0.001)
    return heard


def test_those_with_equal_settings_are_answered_together_and_the_oldest_is_next(queue: Worker) -> None:
    method = Watched()
    first = blocked(queue, method)
    settings = {"a": GREEDY, "b": Decoding(1), "c": GREEDY, "d": Decoding(1), "e": GREEDY}
    rows = [asked(method, key, decoding=decoding) for key, decoding in settings.items()]
    rows.append(asked(method, "f", name="other"))
    for job, _ in rows:
        queue.put(job)
    method.gate.set()
    answers = [heard.wait() for heard in (first, *(heard for _, heard in rows))]
    assert all(isinstance(answer, Answer) for answer in answers)
    assert method.batches == [["first"], ["a", "c", "e"], ["b", "d"], ["f"]]


def test_a_full_queue_refuses(queue: Worker) -> None:
    method = Watched()
    blocked(queue, method)
    for number in range(7):
        queue.put(asked(method, str(number))[0])
    last, heard = asked(method, "z")
    queue.put(last)
    with pytest.raises(Full):
        queue.put(asked(method, "x")[0])
    method.gate.set()
    assert isinstance(heard.wait(), Answer)


def test_one_request_that_fails_takes_no_other_with_it(queue: Worker) -> None:
    faults = {"user": UserError("not this one"), "crash": RuntimeError("a bug")}
    method = Watched(fault=lambda prompt: faults.get(prompt.key))
    first = blocked(queue, method)
    rows = {key: asked(method, key) for key in ("well", "user", "crash", "fine")}
    for job, _ in rows.values():
        queue.put(job)
    method.gate.set()
    first.wait()
    found = {key: heard.wait() for key, (_, heard) in rows.items()}
    assert isinstance(found["well"], Answer)
    assert isinstance(found["fine"], Answer)
    assert str(found["user"]) == "not this one"
    assert isinstance(found["crash"], Failed)


@pytest.mark.long
def test_memory_that_runs_out_halves_the_batch(queue: Worker) -> None:
    method = Watched()
    method.fault = lambda _: MemoryError() if len(method.batches[-1]) > 2 else None
    first = blocked(queue, method)
    rows = [asked(method, str(number)) for number in range(4)]
    for job, _ in rows:
        queue.put(job)
    method.gate.set()
    assert all(isinstance(heard.wait(), Answer) for heard in (first, *(heard for _, heard in rows)))
    assert [len(batch) for batch in method.batches] == [1, 4, 2, 2]


def test_closing_gives_up_what_runs_and_what_waits(vlm: VLM) -> None:
    queue, method = worker_of(vlm), Watched()
    blocked(queue, method)
    queue.put(asked(method, "waits")[0])
    threading.Timer(0.1, method.gate.set).start()
    queue.close()
    assert not queue._thread.is_alive()
    assert method.batches == [["first"]]
    with pytest.raises(Full):
        queue.put(asked(method, "late")[0])
