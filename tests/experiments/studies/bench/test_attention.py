"""The attention benchmark on its smallest size: what is measured, not how fast it was on this machine."""

import json
import os
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies.bench import harness
from experiments.studies.bench.attention import (
    MAPPED,
    PEAKED,
    RATIOS,
    VARIANTS,
    AttentionBench,
    AttentionRunner,
    _record,
    added_memory,
    bounds,
    summary,
)
from experiments.studies.bench.harness import Bound, Meter, Setting, Turns, peaks, repeat, table, timed
from interp.errors import UserError
from tests.experiments.compose import run_of

SHORT, LONG = 40, 400
SETTING = Setting("tiny", "float32", "cpu", seed=0, longest=LONG)


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One whole run of the command, the process for memory and all."""
    root = tmp_path_factory.mktemp("outputs")
    run = run_of("task=bench_attention", f"output_root={root}", "task.size=tiny", f"task.lengths=[{LONG},{SHORT}]")
    run.task(run)
    (path,) = (root / "bench_attention").iterdir()
    return json.loads((path / "metrics.json").read_text())


@pytest.fixture(scope="module")
def probe() -> AttentionRunner:
    return AttentionRunner(SETTING)


@pytest.mark.slow  # the whole bench, with a process of its own
def test_a_row_for_each_length_shortest_first(metrics: dict[str, Any]) -> None:
    assert [row["tokens"] for row in metrics["rows"]] == [SHORT, LONG]
    for row in metrics["rows"]:
        assert set(row) == {"tokens", *RATIOS, "max_error", "mass_memory_over_eager"}
        assert min(row[name] for name in RATIOS) > 0
        assert 0 < row["max_error"] < 1e-5


@pytest.mark.slow  # the whole bench, with a process of its own
def test_every_variant_has_its_times_and_a_peak_of_its_own(metrics: dict[str, Any]) -> None:
    for detail in metrics["details"]:
        assert set(detail["peak_bytes"]) == set(PEAKED)
        assert set(detail["seconds"][0]) == set(VARIANTS)
        assert all(set(later) == {*VARIANTS} - {"eager"} for later in detail["seconds"][1:])
    short, long = (detail["peak_bytes"] for detail in metrics["details"])
    # Two layers of four heads: eager holds at least its weights and their softmax more than native does.
    weights = 2 * 4 * LONG**2 * 4
    assert long["eager"] - long["native"] > weights
    assert long["eager"] > short["eager"]


@pytest.mark.slow  # the whole bench, with a process of its own
def test_the_record_says_that_the_weights_are_random(metrics: dict[str, Any]) -> None:
    assert metrics["weights"] == "random, seed 0"
    assert metrics["task"]["size"] == "tiny"
    assert metrics["image_tokens"] == 9
    assert {"device", "threads", "cores", "load_average_before", "versions"} == set(metrics["environment"])


@pytest.mark.gpu
def test_on_a_gpu_all_variants_share_one_model_and_the_allocator_is_asked(tmp_path: Path) -> None:
    bench = AttentionBench(size="tiny", lengths=[LONG], device="cuda", seconds=0)
    found = bench.measure(run_of(f"output_root={tmp_path}"), "cuda", lambda what: None).metrics
    assert found["rows"][0]["max_error"] < 1e-2  # bfloat16
    peaks = found["details"][0]["peak_bytes"]
    assert peaks["eager"] > peaks["native"] > 0


@pytest.mark.parametrize("tokens", [SHORT, LONG])
def test_prompts_are_real_inputs_of_exactly_that_length(probe: AttentionRunner, tokens: int) -> None:
    probe.prepare(tokens)
    encoded, segments = probe.inputs[tokens]
    assert encoded["input_ids"].shape == (1, tokens)
    assert encoded["pixel_values"].shape == (1, 3, 24, 24)
    labels = segments.rows[0].labels
    assert labels.count("image_0") == 9
    assert labels.count("user") > tokens - 9 - 16


def test_variants_see_what_their_names_say(probe: AttentionRunner) -> None:
    seen = {name: probe.once(name, SHORT) for name in VARIANTS}
    assert seen["verdict"].pieces[0].mass.shape[:4] == (2, 1, 4, 1)
    assert seen["mass"].pieces[0].mass.shape[:4] == (2, 1, 4, SHORT)
    assert not seen["mass"].maps
    assert len(seen["maps"].maps) == len(MAPPED)
    assert seen["eager"][0].shape == (1, 4, SHORT, SHORT)


def test_the_largest_error_is_found_in_masses_and_in_maps(
    probe: AttentionRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error() -> float:
        return probe.largest_error(SHORT, {name: probe.once(name, SHORT) for name in VARIANTS})

    def off(variant: str, change: Callable[[Any], None]) -> Callable[..., Any]:
        published = VARIANTS[variant]

        def work(*arguments: Any) -> Any:
            found = published(*arguments)
            change(found)
            return found

        return work

    def last_map(found: Any) -> None:
        found.maps[-1].weights[1] += 0.25

    def one_mass(found: Any) -> None:
        found.pieces[0].mass[1, 0, 2, 5] += 0.5

    assert 0 < error() < 1e-5
    with monkeypatch.context() as patch:
        patch.setitem(VARIANTS, "maps", off("maps", last_map))
        assert error() == pytest.approx(0.25, abs=1e-5)
    with monkeypatch.context() as patch:
        patch.setitem(VARIANTS, "mass", off("mass", one_mass))
        assert error() == pytest.approx(0.5, abs=1e-5)


def test_the_model_is_as_it_was_after_every_variant(probe: AttentionRunner) -> None:
    for name in VARIANTS:
        probe.once(name, SHORT)
        assert probe.vlm.model.config.get_text_config()._attn_implementation == "sdpa"


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone(probe: AttentionRunner) -> None:
    state = torch.random.get_rng_state()
    other = AttentionRunner(SETTING)
    assert torch.equal(torch.random.get_rng_state(), state)
    for one, two in zip(probe.vlm.model.parameters(), other.vlm.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_row_is_made_of_paired_ratios_and_of_added_memory() -> None:
    turns = Turns({}, once=["eager"])
    turns.rounds = [
        {"native": 1.0, "verdict": 1.0, "mass": 1.5, "maps": 2.0, "eager": 6.0},
        {"native": 10.0, "verdict": 11.0, "mass": 11.0, "maps": 20.0},  # a slow round: its ratios count
        {"native": 1.0, "verdict": 1.2, "mass": 1.2, "maps": 2.5},
    ]
    held = {"native": 100, "mass": 110, "maps": 120, "eager": 300}
    row = {"tokens": 7, "max_error": 1e-7, **turns.ratios(RATIOS), **added_memory(held)}
    assert [row[name] for name in RATIOS] == pytest.approx([1.1, 1.2, 2.0, 4.0])
    assert row["mass_memory_over_eager"] == pytest.approx(0.05)
    assert added_memory(held | {"eager": 100}) == {"mass_memory_over_eager": None}
    record = _record(row, turns, held)
    assert table("", [record]).row_count == 1
    assert (record["mass/plain"], record["+mass (MiB)"], record["+mass/eager"]) == ("1.20", "0", "5.0%")
    assert "1.20 times" in summary(row)
    assert bounds("7b", [row], "cpu") == []
    verdict, mass = bounds("7b", [row], "cuda")
    assert str(verdict) == "7b, 7 tokens: verdict over native: 1.10, at most 1.10 wanted: kept"
    assert (mass.value, mass.limit, mass.met) == (pytest.approx(1.2), 1.25, True)


def test_a_bound_is_met_up_to_its_limit() -> None:
    assert [Bound("it", value, 2.0).met for value in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [Bound("it", value, 2.0, least=True).met for value in (1.9, 2.0, 2.1)] == [False, True, True]
    assert str(Bound("it", 1.9, 2.0, least=True)) == "it: 1.90, at least 2.00 wanted: missed"


class Dying(AttentionRunner):
    """As a process that the kernel ends for want of memory."""

    def once(self, variant: str, case: int) -> None:
        os._exit(1)


@pytest.mark.slow  # a bench with a process of its own
@pytest.mark.long  # a process of its own
def test_a_child_that_dies_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"eager of 40 did not end.*task\.lengths"):
        peaks(Dying, SETTING, [SHORT], ["eager"], "cpu", print)


@pytest.mark.long
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.size=huge", "task.size=huge: known are tiny, cpu, 170m"),
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


def test_rounds_alternate_and_a_variant_may_run_once() -> None:
    order: list[str] = []

    def variant(name: str, seconds: float) -> Any:
        def taking() -> float:
            order.append(name)
            return seconds

        return taking

    turns = Turns({"a": variant("a", 1.0), "b": variant("b", 3.0), "c": variant("c", 9.0)}, once=["c"])
    turns.run()
    turns.run()
    assert order == ["a", "b", "c", "b", "a"]
    assert turns.ratios(["b_over_a", "c_over_b"]) == {"b_over_a": 3, "c_over_b": 3}
    turns.spent = 19.0
    assert turns.cost == 5


class Clock:
    """Time that passes only while a round is run."""

    def __init__(self) -> None:
        self.now = 0.0

    def taking(self, seconds: float) -> Callable[[], float]:
        def take() -> float:
            self.now += seconds
            return seconds

        return take


def test_short_rounds_are_repeated_more_often_and_none_is_begun_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("experiments.studies.bench.harness.time.monotonic", lambda: clock.now)
    short, long = Turns({"a": clock.taking(1.0)}), Turns({"a": clock.taking(10.0)})
    repeat([long, short], 7, 16.0)
    assert (len(long.rounds), len(short.rounds)) == (1, 6)
    short, long = Turns({"a": clock.taking(1.0)}), Turns({"a": clock.taking(10.0)})
    repeat([long, short], 7, 1000.0)
    assert (len(long.rounds), len(short.rounds)) == (7, 7)
    short, long = Turns({"a": clock.taking(1.0)}), Turns({"a": clock.taking(10.0)})
    repeat([long, short], 7, 0.0, least=4.5)
    assert (len(long.rounds), len(short.rounds)) == (1, 4)


def test_a_time_is_taken_between_two_synchronisations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(harness, "synchronise", lambda device: calls.append("wait"))
    seconds = timed(lambda: calls.append("work"), torch.device("cpu"))()
    assert calls == ["wait", "work", "wait"]
    assert seconds > 0


def test_a_peak_is_seen_after_it_has_passed() -> None:
    meter = Meter(torch.device("cpu"))
    meter.start()
    with mmap(-1, 64 * 2**20) as held:  # pages of its own: an array may lie in what was freed before
        held.write(b"1" * len(held))
    assert meter.peak() > 48 * 2**20
