"""Batches of cases, and pictures opened ahead; forming and splitting are tested with ``interp.batching``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from experiments.benchmarks.images import BadImage
from experiments.evaluation.cases import form, prefetch_images
from experiments.types import Sample
from interp.batching import BatchRule


@dataclass(frozen=True)
class Dot:
    """A picture of one colour."""

    grey: int

    def render(self) -> Image.Image:
        return Image.new("L", (3, 2), self.grey)


def cases(count: int, *, blind: Sequence[int] = ()) -> list[Sample]:
    pictures = [None if i in blind else Dot(i) for i in range(count)]
    return [Sample(str(i), "typical", "s", "no", "t", "t", picture, str(i)) for i, picture in enumerate(pictures)]


def test_without_a_budget_or_a_model_the_order_stays() -> None:
    samples = cases(5)
    in_order = [samples[:2], samples[2:4], samples[4:]]
    lengths: Any = SimpleNamespace(count=lambda texts, sizes: [1, 2, 3, 4, 5])
    assert form(samples, lengths, BatchRule(2, None)) == in_order
    assert form(samples, None, BatchRule(2, 100)) == in_order
    assert form(samples, lengths, BatchRule(2, 100)) == [samples[3:], samples[1:3], samples[:1]]


def test_pictures_come_in_order_and_a_bad_one_in_its_place(tmp_path: Path) -> None:
    samples = cases(7, blind=[2])
    samples[4] = replace(samples[4], image=tmp_path / "missing.png")
    work = [samples[:3], samples[3:6], samples[6:]]
    got = list(prefetch_images(work))
    assert [batch for batch, _ in got] == work
    for batch, pictures in got:
        for sample, picture in zip(batch, pictures, strict=True):
            if sample.id == "2":
                assert picture == ()
            elif sample.id == "4":
                assert isinstance(picture, BadImage)
            else:
                assert [each.getpixel((0, 0)) for each in picture] == [(int(sample.id),) * 3]
