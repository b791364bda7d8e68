"""Batches by length, pictures opened ahead, and smaller parts where memory runs out."""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from experiments.benchmarks.images import BadImage, EncodedImage, open_image
from experiments.evaluation.batching import MemoryLimit, by_length, form, halved, opened, size_of
from experiments.studies.reasoning_stages.conditions import GreyPicture
from experiments.types import Sample
from interp.errors import UserError
from interp.generation import Generation
from interp.vlm import Prompt


@dataclass(frozen=True)
class Dot:
    """A picture of one colour that is drawn slowly, or not at all."""

    grey: int
    started: Any = None

    def render(self) -> Image.Image:
        if self.started is not None:
            self.started.append(self.grey)
            time.sleep(0.02)
        return Image.new("L", (3, 2), self.grey)


def cases(count: int, *, blind: Sequence[int] = (), started: Any = None) -> list[Sample]:
    return [
        Sample(str(i), "typical", "s", "no", "t", "t", None if i in blind else Dot(i, started), str(i))
        for i in range(count)
    ]


@given(
    lengths=st.lists(st.integers(1, 50), max_size=30),
    blind=st.sets(st.integers(0, 30)),
    rows=st.integers(1, 8),
    tokens=st.integers(1, 120),
)
def test_batches_keep_to_both_bounds_and_hold_every_case_once(
    lengths: list[int], blind: set[int], rows: int, tokens: int
) -> None:
    samples = cases(len(lengths), blind=sorted(blind))
    formed = by_length(samples, lengths, rows=rows, tokens=tokens)
    long = {sample.id: length for sample, length in zip(samples, lengths, strict=True)}
    assert sorted(s.id for batch in formed for s in batch) == sorted(long)
    for batch in formed:
        assert 1 <= len(batch) <= rows
        assert len(batch) == 1 or len(batch) * max(long[s.id] for s in batch) <= tokens
        assert len({s.image is None for s in batch}) == 1
        assert [int(s.id) for s in batch] == sorted(int(s.id) for s in batch)
    for pictured in (True, False):  # longest first, and a batch's shortest not below the next one's longest
        own = [[long[s.id] for s in batch] for batch in formed if (batch[0].image is not None) == pictured]
        assert all(min(first) >= max(second) for first, second in pairwise(own))


def test_without_a_budget_or_a_model_the_order_stays() -> None:
    samples = cases(5)
    in_order = [samples[:2], samples[2:4], samples[4:]]
    lengths: Any = SimpleNamespace(of=lambda texts, sizes: [1, 2, 3, 4, 5])
    assert form(samples, lengths, rows=2, tokens=None) == in_order
    assert form(samples, None, rows=2, tokens=100) == in_order
    assert form(samples, lengths, rows=2, tokens=100) == [samples[3:], samples[1:3], samples[:1]]


def test_sizes_are_those_of_the_opened_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (16, 8)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGB", (5, 7)).save(tmp_path / "plain.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    encoded = EncodedImage("plain.png", (tmp_path / "plain.png").read_bytes())
    for source in (
        tmp_path / "turned.jpg",
        tmp_path / "plain.png",
        encoded,
        Dot(1),
        GreyPicture(tmp_path / "plain.png"),
    ):
        assert size_of(source) == open_image(source).size
    assert size_of(tmp_path / "turned.jpg") == (8, 16)
    assert size_of(tmp_path / "bad.png") is None
    assert size_of(tmp_path / "missing.png") is None
    assert size_of(None) is None


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_pictures_come_in_order_and_a_bad_one_in_its_place(workers: int, tmp_path: Path) -> None:
    samples = cases(7, blind=[2])
    samples[4] = replace(samples[4], image=tmp_path / "missing.png")
    work = [samples[:3], samples[3:6], samples[6:]]
    got = list(opened(work, workers=workers))
    assert [batch for batch, _ in got] == work
    for batch, pictures in got:
        for sample, picture in zip(batch, pictures, strict=True):
            if sample.id == "2":
                assert picture is None
            elif sample.id == "4":
                assert isinstance(picture, BadImage)
            else:
                assert isinstance(picture, Image.Image)
                assert picture.getpixel((0, 0)) == (int(sample.id),) * 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_whoever_leaves_early_waits_for_nothing_that_was_not_begun(error: type[BaseException]) -> None:
    started: list[int] = []
    samples = cases(60, started=started)
    before = threading.active_count()

    def leave() -> None:
        with closing(opened([samples[:2], samples[2:30], samples[30:]], workers=1)) as ready:
            next(ready)
            raise error

    with pytest.raises(error):
        leave()
    seen = len(started)
    time.sleep(0.1)
    assert len(started) <= seen + 1 < 30
    assert threading.active_count() <= before


def answers(prompts: Sequence[Prompt], skips: dict[str, int] | None = None) -> Generation:
    texts = [prompt.text for prompt in prompts]
    return Generation(
        texts, [[1]] * len(texts), torch.tensor([float(len(t)) for t in texts]), [True] * len(texts), skips
    )


PROMPTS = [Prompt("x" * n) for n in range(1, 8)]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_where_memory_runs_out_half_is_asked_and_no_more_from_then_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    monkeypatch.setattr(
        "experiments.evaluation.batching._free", lambda: freed.append(True)
    )  # collecting takes its time
    asked: list[int] = []
    said: list[int] = []

    def ask(part: Sequence[Prompt]) -> Generation:
        asked.append(len(part))
        if len(part) > 2:
            raise error
        return answers(part, {"steps": len(part)})

    limit = MemoryLimit(32, said.append)
    found = limit.ask(PROMPTS, ask)
    assert asked == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert said == [3, 1]
    assert len(freed) == 2
    assert found.texts == [prompt.text for prompt in PROMPTS]
    assert found.margins.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.skips == {"steps": 7}
    assert found.statuses is None
    limit.ask(PROMPTS[:2], ask)
    assert asked[9:] == [1, 1]
    assert said == [3, 1]


def test_one_prompt_too_many_is_a_sentence_and_other_errors_are_themselves() -> None:
    def never(part: Sequence[Prompt]) -> Generation:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def wrong(part: Sequence[Prompt]) -> Generation:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(UserError, match=r"'xxx'.*model\.dtype.*device_map"):
        MemoryLimit(4, lambda rows: None).ask(
            PROMPTS[2:4], lambda part: never(part[:1]) if len(part) == 1 else never(part)
        )
    with pytest.raises(RuntimeError, match="shapes"):
        MemoryLimit(4, lambda rows: None).ask(PROMPTS, wrong)


def test_whatever_is_asked_in_batches_is_asked_again_in_smaller_ones() -> None:
    asked: list[int] = []

    def ask(size: int) -> None:
        asked.append(size)
        if size > 2:
            raise MemoryError

    assert halved(9, ask) is None
    assert asked == [9, 4, 2]
    with pytest.raises(UserError, match="not enough memory for a single prompt; take smaller weights"):
        halved(1, lambda size: ask(3))
    with pytest.raises(RuntimeError, match="shapes differ"):
        halved(2, lambda size: (_ for _ in ()).throw(RuntimeError("shapes differ")))
