"""The attention benchmark on its smallest size: what is measured, not how fast it was on this machine."""

import json
import math
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from experiments.bench.attention import AttentionBench, LengthMeasurements, summary, table
from experiments.bench.attention_variants import (
    MAPPED,
    VARIANTS,
    AttentionSetting,
    ForwardReading,
    LocalRunner,
    SeenAttention,
    largest_error,
    no_memory,
)
from experiments.bench.harness import ProcessMeter, Turns, result_of, timed
from interp.errors import UserError
from tests.experiments.compose import run_of

SHORT, LONG = 40, 400
SETTING = AttentionSetting("tiny", "cpu", LONG, seed=0)
ROW_KEYS = {
    "tokens",
    "mass_over_native",
    "maps_over_native",
    "eager_over_mass",
    "max_error",
    "mass_memory_over_eager",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run of the command, children and all."""
    root = tmp_path_factory.mktemp("outputs")
    run = run_of("task=bench_attention", f"output_root={root}", "task.size=tiny", f"task.lengths=[{LONG},{SHORT}]")
    run.task(run)
    (path,) = (root / "bench_attention").iterdir()
    return path


@pytest.fixture(scope="module")
def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def probe() -> LocalRunner:
    return LocalRunner(SETTING)


@pytest.mark.slow  # the whole bench, in processes of its own
def test_a_row_for_each_length_shortest_first(metrics: dict[str, Any]) -> None:
    assert [row["tokens"] for row in metrics["rows"]] == [SHORT, LONG]
    for row in metrics["rows"]:
        assert set(row) == ROW_KEYS
        assert min(row["mass_over_native"], row["maps_over_native"], row["eager_over_mass"]) > 0


@pytest.mark.slow  # the whole bench, in processes of its own
def test_masses_and_maps_equal_eager_attention(metrics: dict[str, Any]) -> None:
    for row in metrics["rows"]:
        assert 0 < row["max_error"] < 1e-5


@pytest.mark.slow  # the whole bench, in processes of its own
def test_every_variant_has_its_times_and_a_peak_of_its_own(metrics: dict[str, Any]) -> None:
    for detail in metrics["details"]:
        assert set(detail["peak_bytes"]) == set(VARIANTS)
        assert set(detail["seconds"][0]) == set(VARIANTS)
        assert all(set(later) == {"native", "mass", "maps"} for later in detail["seconds"][1:])
    short, long = (detail["peak_bytes"] for detail in metrics["details"])
    # Two layers of four heads: eager holds at least its weights and their softmax more than native does.
    weights = 2 * 4 * LONG**2 * 4
    assert long["eager"] - long["native"] > weights
    assert long["eager"] > short["eager"]


@pytest.mark.slow  # the whole bench, in processes of its own
def test_the_record_says_that_the_weights_are_random(metrics: dict[str, Any]) -> None:
    assert metrics["weights"] == "random, seed 0"
    assert metrics["size"] == "tiny"
    assert metrics["image_tokens"] == 9


@pytest.mark.gpu
def test_on_a_gpu_all_variants_share_one_model_and_the_allocator_is_asked() -> None:
    bench = AttentionBench(size="tiny", lengths=[LONG], device="cuda")
    (one,) = bench.measure(Console(), deadline=0)
    assert one.row().max_error < 1e-2  # bfloat16
    assert one.peaks["eager"] > one.peaks["mass"] > one.peaks["native"] > 0


@pytest.mark.parametrize("tokens", [SHORT, LONG])
def test_prompts_are_real_inputs_of_exactly_that_length(probe: LocalRunner, tokens: int) -> None:
    inputs = probe._inputs(tokens)
    assert inputs.encoded["input_ids"].shape == (1, tokens)
    assert inputs.encoded["pixel_values"].shape == (1, 3, 24, 24)
    labels = inputs.segments.rows[0].labels
    assert labels.count("image_0") == 9
    assert labels.count("user") > tokens - 9 - 16


def test_variants_see_what_their_names_say(probe: LocalRunner) -> None:
    readings = {name: probe.read(name, SHORT, keep=True) for name in VARIANTS}
    seen = {name: reading.seen for name, reading in readings.items() if reading.seen is not None}
    assert set(seen) == {"mass", "maps", "eager"}
    assert seen["mass"].rows is None
    for name in ("maps", "eager"):
        found = seen[name]
        assert found.masses.shape[:3] == (2, 4, SHORT)
        assert found.rows is not None
        assert found.rows.shape == (2, 4, len(MAPPED), SHORT)
        np.testing.assert_allclose(found.rows.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(found.masses.sum(-1), 1, atol=1e-5)
    assert largest_error(seen) < 1e-5


def test_the_model_is_as_it_was_after_every_variant(probe: LocalRunner) -> None:
    for name in VARIANTS:
        assert probe.read(name, SHORT, keep=False).seen is None
        assert probe.vlm.model.config.get_text_config()._attn_implementation == "sdpa"


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone(probe: LocalRunner) -> None:
    state = torch.random.get_rng_state()
    other = LocalRunner(SETTING)
    assert torch.equal(torch.random.get_rng_state(), state)
    for one, two in zip(probe.vlm.model.parameters(), other.vlm.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_largest_error_is_found_in_masses_and_in_maps() -> None:
    def seen(mass: float, row: float) -> SeenAttention:
        return SeenAttention(np.full((1, 1, 1, 1), mass), np.full((1, 1, 1, 1), row))

    eager = seen(0.5, 0.5)
    assert largest_error({"mass": seen(0.5, 0), "maps": seen(0.5, 0.5), "eager": eager}) == 0
    assert largest_error({"mass": seen(0.25, 0), "maps": seen(0.5, 0.5), "eager": eager}) == 0.25
    assert largest_error({"mass": seen(0.5, 0), "maps": seen(0.5, 0.75), "eager": eager}) == 0.25


def test_a_row_is_made_of_paired_ratios_and_of_added_memory() -> None:
    turns = Turns({})
    turns.rounds = [
        {"native": 1.0, "mass": 1.5, "maps": 2.0, "eager": 6.0},
        {"native": 10.0, "mass": 11.0, "maps": 20.0},  # a slow round: its ratios count, its seconds hardly
        {"native": 1.0, "mass": 1.2, "maps": 2.5},
    ]
    one = LengthMeasurements(7, turns, {"native": 100, "mass": 110, "maps": 120, "eager": 300}, max_error=1e-7)
    assert one.row()._asdict() == pytest.approx(
        {
            "tokens": 7,
            "mass_over_native": 1.2,
            "maps_over_native": 2.0,
            "eager_over_mass": 4.0,
            "max_error": 1e-7,
            "mass_memory_over_eager": 0.05,
        }
    )
    assert len(table([one]).rows) == 1
    assert "1.20 times" in summary(one)
    one.peaks["eager"] = 100
    assert one.row().mass_memory_over_eager is None
    assert len(table([one]).rows) == 1


def test_no_repeat_is_begun_that_would_end_too_late() -> None:
    class Slow:
        def read(self, variant: str, tokens: int, *, keep: bool) -> ForwardReading:
            seen = SeenAttention(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1)))
            return ForwardReading(1000.0 if tokens == LONG else 0.0, 1, seen if keep else None)

    bench = AttentionBench(size="tiny", repeats=4)
    measured = bench._alternate(Slow(), [SHORT, LONG], deadline=math.inf, say=lambda what: None)
    assert [len(one.turns.rounds) for one in measured] == [4, 4]
    soon = time.monotonic() + 500
    measured = bench._alternate(Slow(), [SHORT, LONG], deadline=soon, say=lambda what: None)
    assert [len(one.turns.rounds) for one in measured] == [4, 1]


def test_a_child_that_dies_is_a_sentence() -> None:
    died: Future[None] = Future()
    died.set_exception(BrokenProcessPool())
    with pytest.raises(UserError, match=r"eager attention over 40 tokens did not end.*task\.lengths"):
        result_of(died, no_memory("eager", SHORT))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.size=huge", "unknown size 'huge'; known: tiny, cpu, 7b"),
        ("task.lengths=[500]", "take 592 tokens"),
        ("task.lengths=[]", "at least one length"),
        ("task.lengths=[many]", "task.lengths"),
        ("task.repeats=0", "repeats=0"),
        ("task.device=tpu", "unknown device 'tpu'"),
        ("task.size=7b", "task.device=cuda"),
    ],
)
def test_bad_options_are_named_before_anything_is_built(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        run_of("task=bench_attention", override)
    assert message in str(error.value)


def test_rounds_alternate_and_may_leave_a_variant_out() -> None:
    order: list[str] = []

    def variant(name: str, seconds: float) -> Any:
        def taking() -> float:
            order.append(name)
            return seconds

        return taking

    turns = Turns({"a": variant("a", 1.0), "b": variant("b", 3.0), "c": variant("c", 9.0)})
    turns.run()
    turns.run(without={"c"})
    assert order == ["a", "b", "c", "b", "a"]
    assert turns.ratio("b", "a") == 3
    assert turns.ratio("c", "b") == 3
    assert turns.cost(without={"c"}) == 4


def test_a_time_is_taken_between_two_synchronisations() -> None:
    calls: list[str] = []
    seconds = timed(lambda: calls.append("work"), synchronise=lambda: calls.append("wait"))()
    assert calls == ["wait", "work", "wait"]
    assert seconds > 0


def test_a_peak_is_seen_after_it_has_passed() -> None:
    meter = ProcessMeter()
    meter.start()
    with mmap(-1, 64 * 2**20) as held:  # pages of its own: an array may lie in what was freed before
        held.write(b"1" * len(held))
    assert meter.peak() > 48 * 2**20
