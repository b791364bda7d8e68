"""Analyses and learnings that are killed again and again end as undisturbed ones, and measure no batch twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.cases import limited
from experiments.evaluation.learning import learned
from experiments.runs.launch import Launch
from interp.batching import BatchRule, MemoryLimit
from interp.loading import load
from mitigation.learned.probe_readout import TruthReadout


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> Iterator[list[int]]:
    """The rows of each batch that is measured; after ``most`` of them the next one ends everything."""
    rows: list[int] = []
    parts = MemoryLimit.parts

    def measured(self: MemoryLimit, batch: Any, *arguments: Any, **options: Any) -> Any:
        if len(rows) == most:
            raise KeyboardInterrupt
        found = parts(self, batch, *arguments, **options)
        rows.append(len(batch))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(MemoryLimit, "parts", measured)
        yield rows


def lives(monkeypatch: pytest.MonkeyPatch, batches: int, do: Callable[[], object]) -> tuple[list[int], int]:
    """What all lives until ``do`` comes to its end have measured, ``batches`` in each, and how often it was killed."""
    every: list[int] = []
    for killed in range(6):
        with counted(monkeypatch, batches) as rows:
            try:
                do()
            except KeyboardInterrupt:
                every += rows
            else:
                return every + rows, killed
    raise AssertionError("it never ended")


@pytest.mark.long
def test_a_read_out_is_learned_once_however_often_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, samples = load("organism:llava", device="cpu"), limited(IconWorld().development().samples, 24)

    def learn(name: str) -> None:
        with vlm.batches.by(BatchRule(rows=2), on_lowered=print):
            learned("readout", TruthReadout(layer=2), vlm, samples, tmp_path / f"{name}.safetensors", Launch())

    with counted(monkeypatch) as undisturbed:
        learn("whole")
    batches, killed = lives(monkeypatch, len(undisturbed) // 2 - 1, lambda: learn("killed"))
    assert killed >= 2
    assert batches == undisturbed
    whole, mended = (tmp_path / f"{name}.safetensors" for name in ("whole", "killed"))
    assert mended.read_bytes() == whole.read_bytes()
    assert sorted(tmp_path.iterdir()) == [mended, whole]  # nothing else is left
