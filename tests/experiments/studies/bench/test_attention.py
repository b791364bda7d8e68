"""The bench of attention, and the harness: what is measured, not how fast it was on this machine."""

import json
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies.bench import harness
from experiments.studies.bench.attention import AttentionBench, variants
from experiments.studies.bench.harness import PLAIN, peaks, rounds_of, table, timed
from tests.experiments.compose import only_run, run_of

TOKENS = 100
VARIANTS = [PLAIN, "verdict", "all queries", "eager"]


@pytest.mark.slow  # the whole bench, as a command
def test_a_row_for_each_variant_and_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("task.sizes=[organism]", f"task.lengths=[{TOKENS}]", "task.repeats=2")
    run = run_of("task=bench_attention", f"output_root={tmp_path}", *options)
    run.task(run)
    metrics = json.loads((only_run(run) / "metrics.json").read_text())
    assert [row["variant"] for row in metrics["rows"]] == VARIANTS
    assert [set(each) for each in metrics["rounds"][f"organism, {TOKENS} tokens"]] == [set(VARIANTS)] * 2
    for row in metrics["rows"]:
        assert row["times plain"] > 0
        assert row["MiB"] >= 0
    assert {"task", "device", "torch", "load"} < set(metrics)
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80


def test_variants_see_what_their_names_say_and_masses_are_those_of_eager_attention() -> None:
    seen = {name: work() for name, work in variants("organism", TOKENS, "cpu", 0).items()}
    assert list(seen) == VARIANTS
    masses = seen["all queries"].pieces[0].mass[:, 0]  # layer head query segment
    eager = torch.stack([weights[0] for weights in seen["eager"]])
    assert seen["verdict"].pieces[0].mass.shape[3] == 1
    assert eager.shape[-2:] == (TOKENS, TOKENS)
    assert masses.shape[:3] == eager.shape[:3]
    assert (masses.sum(-1) - eager.sum(-1).cpu()).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["organism"])
def test_on_a_gpu_the_allocator_is_asked_and_limits_hold(size: str, tmp_path: Path) -> None:
    bench = AttentionBench(sizes=[size], lengths=[400], device="cuda", repeats=1)
    rows = bench.measure(run_of(f"output_root={tmp_path}"), "cuda")["rows"]
    held = {row["variant"]: row["MiB"] for row in rows}
    assert held["eager"] > held[PLAIN] > 0
    assert [row["at most"] for row in rows] == [None, 1.10, 1.25, None]


class Clock:
    """Time that passes only while a variant works."""

    def __init__(self) -> None:
        self.seconds, self.order = 0.0, list[str]()

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def taking() -> None:
            self.seconds += seconds
            self.order.append(name)

        return taking


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(harness.time, name, lambda: made.seconds)
    return made


def test_rounds_alternate_and_none_is_begun_that_would_end_too_late(clock: Clock) -> None:
    work = {"a": clock.work("a", 1.0), "b": clock.work("b", 3.0)}
    assert rounds_of(work, "cpu", 2, 100.0) == [{"a": 1.0, "b": 3.0}] * 2
    assert clock.order == ["a", "b", "a", "b", "b", "a"]  # the first two to warm up
    assert len(rounds_of(work, "cpu", 9, 12.0)) == 3
    assert len(rounds_of(work, "cpu", 9, 0.0)) == 1


def test_a_ratio_is_the_median_of_the_ratios_within_rounds(clock: Clock, tmp_path: Path) -> None:
    taken = iter([1.0, 1.2, 10.0, 11.0, 1.0, 1.5])  # a slow round: its ratio counts

    class Fake(AttentionBench):
        def jobs(self, run: Any, device: str) -> list[harness.Job]:
            return [harness.Job("it", dict, {"mass": 1.25})]

    rounds = [{PLAIN: next(taken), "mass": next(taken)} for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "rounds_of", lambda *_: rounds)
        rows = Fake(memory=False).measure(run_of(), "cpu")["rows"]
    assert [row["times plain"] for row in rows] == [1.0, 1.2]
    assert [row["at most"] for row in rows] == [None, 1.25]
    assert table("", rows).row_count == 2


def test_a_time_includes_the_wait_for_a_gpu_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("wait"))
    assert timed(lambda: calls.append("work"), "cuda") > 0
    assert calls == ["wait", "work", "wait"]


@pytest.mark.skipif(not harness.STATUS.exists(), reason="the kernel keeps no account of peaks here")
def test_a_peak_is_seen_after_it_has_passed_and_freed_memory_hides_none() -> None:
    def holding() -> None:
        with mmap(-1, 64 * 2**20) as held:
            held.write(b"1" * len(held))

    def small() -> None:
        list(map(bytes, [4096] * 8192))

    big, many = peaks({"big": holding, "many": small}, "cpu")
    assert big > 48
    assert many > 24
