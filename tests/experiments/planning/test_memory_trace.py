"""What a longer answer adds is told from the forwards on each cache, whatever ran before or between them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from experiments.planning import memory_trace as recording
from experiments.planning.memory_trace import Recorder
from experiments.shapes.ledger import BLOCK, Ledger, Storage
from interp.errors import UserError

DEVICE = torch.device("cpu")
LONGER = 10  # tokens more than the three that were generated


class Cache:
    """Holds a block more after each forward."""

    def __init__(self) -> None:
        self.blocks: list[Storage] = []

    def get_seq_length(self) -> int:
        return len(self.blocks)


class Speaker(nn.Module):
    """Takes as many seconds as it is told, and writes to the cache it is given; holds a module of another class."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.body = nn.Identity()

    def forward(self, cache: Cache | None, seconds: float = 1.0) -> Any:
        self.ledger.seconds += seconds
        self.body(torch.zeros(()))
        block = self.ledger.held(torch.empty(BLOCK, dtype=torch.uint8), DEVICE)
        if cache is not None:
            cache.blocks.append(block)
        return SimpleNamespace(past_key_values=cache, logits=torch.zeros(1, 1, 1))


def recorded(*forwards: tuple[Cache | None, float], after: float = 0.0) -> Recorder:
    """What is recorded of the forwards, and of ``after`` seconds of other work behind the last."""
    recorder = Recorder(ledger := Ledger())
    speaker = Speaker(ledger)
    with recorder.following(SimpleNamespace(speaker=speaker)):  # type: ignore[arg-type]
        for cache, seconds in forwards:
            speaker(cache, seconds)
        ledger.seconds += after
    recorder.end()
    return recorder


def answered(*caches: Cache, seconds: float = 1.0, tokens: int = 3) -> list[tuple[Cache | None, float]]:
    """The branches of one answer in step; the prompt takes ten times as long as a token."""
    return [(cache, seconds * (1 if token else 10)) for token in range(tokens) for cache in caches]


def test_prompts_that_are_scored_before_the_answer_are_in_it_once() -> None:
    cache = Cache()
    found = recorded((None, 5.0), (None, 5.0), *answered(cache)).longer(3, 3 + LONGER)
    assert found.seconds == 5 + 5 + 12 + LONGER
    assert found.peak == (3 + LONGER) * BLOCK


def test_what_comes_behind_the_last_forward_and_a_prefix_are_in_it_once() -> None:
    prefix = Cache()
    found = recorded((prefix, 5.0), *answered(Cache()), after=7.0).longer(3, 3 + LONGER)
    assert found.seconds == 5 + 12 + 7 + LONGER


def test_a_question_before_the_answer_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    question, answer = Cache(), Cache()
    asked = iter([True] * 4 + [False] * 3)
    monkeypatch.setattr(recording, "asking", lambda: next(asked))
    found = recorded(*answered(question, tokens=4), *answered(answer)).longer(3, 3 + LONGER)
    assert found.seconds == 13 + 12 + LONGER
    assert found.peak == (4 + 3 + LONGER) * BLOCK


def test_a_step_is_its_fullest_forward_from_where_it_begins_to_where_it_ends() -> None:
    recorder = Recorder(ledger := Ledger())
    speaker, cache = Speaker(ledger), Cache()
    with recorder.following(SimpleNamespace(speaker=speaker)):  # type: ignore[arg-type]
        speaker(None, 9.0)
        recorder.begin()
        for _ in range(3):
            speaker(cache)
        cache.blocks.clear()
        speaker(None)
    recorder.end()
    assert recorder.cost().peak == 3 * BLOCK
    assert recorder.cost().seconds == 4
    speaker(cache)
    assert len(recorder.forwards) == 4


def test_every_branch_grows() -> None:
    caches = Cache(), Cache()
    found = recorded((None, 5.0), *answered(*caches)).longer(3, 3 + LONGER)
    assert found.seconds == 5 + 24 + 2 * LONGER
    assert found.peak == 2 * (3 + LONGER) * BLOCK


def searched(seconds: float, tokens: int) -> list[tuple[Cache | None, float]]:
    """A beam search: the last token is fed too, and only from the second on are there as many beams as later."""
    cache = Cache()
    return [(cache, 10 * seconds), (cache, seconds / 5), *[(cache, seconds)] * (tokens - 1)]


def test_searches_one_after_the_other_grow_each_as_they_do_with_all_their_beams() -> None:
    found = recorded(*searched(1.0, 5), *searched(2.0, 5)).longer(5, 5 + LONGER)
    assert found.seconds == pytest.approx((10 + 0.2 + 4) * 3 + 3 * LONGER)
    with pytest.raises(UserError, match="5 forwards for 4 tokens"):
        recorded(*searched(1.0, 4)).longer(4, 8)


@pytest.mark.long
def test_what_cannot_be_told_is_refused() -> None:
    cache = Cache()
    for forwards in ([(None, 1.0)] * 3, answered(cache, tokens=5), answered(cache, tokens=2)):
        with pytest.raises(UserError, match="forwards for 3 tokens: what a longer answer takes cannot be told"):
            recorded(*forwards).longer(3, 8)
