"""The decoding benchmark on its smallest size: what is measured, not how fast it was on this machine."""

import io
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from experiments.studies.bench.decoding import VARIANTS, DecodingRunner, GenerationReading, answer_costs
from rich.console import Console

from experiments.studies.bench.harness import Setting
from experiments.studies.bench.models import DECODING_SIZES
from experiments.studies.bench.vcd import (
    BOUNDS,
    RATIOS,
    DecodingMeasurements,
    VcdBench,
    answer_bounds,
    answer_tables,
    bounds,
    tables,
)
from interp.errors import UserError
from tests.experiments.compose import run_of

TINY = DECODING_SIZES["tiny"]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One whole run of the command, the process for memory and all."""
    root = tmp_path_factory.mktemp("outputs")
    options = ("task.sizes=[tiny]", "task.items=[1,16]", "task.repeats=2", "task.answers=2")
    run = run_of("task=bench_vcd", f"output_root={root}", *options)
    run.task(run)
    (path,) = (root / "bench_vcd").iterdir()
    return json.loads((path / "metrics.json").read_text())


@pytest.fixture(scope="module")
def probe() -> DecodingRunner:
    """The tiny size with weights so wide that answers vary from step to step."""
    made = DecodingRunner(Setting("tiny", "float32", "cpu", seed=0))
    with torch.no_grad():
        for name, weight in made.vlm.model.named_parameters():
            if weight.ndim > 1 and "vision_tower" not in name:
                weight *= 8
    return made


@pytest.mark.slow  # the whole bench, in processes of its own
def test_a_row_for_each_number_of_items(metrics: dict[str, Any]) -> None:
    assert [(row["size"], row["dtype"], row["items"]) for row in metrics["rows"]] == [
        ("tiny", "float32", 1),
        ("tiny", "float32", 16),
    ]
    for row in metrics["rows"]:
        assert set(row) == {"size", "dtype", "items", *RATIOS, "paired_answer_over_plain", "plain_ms_per_token"}
        assert min(value for value in row.values() if isinstance(value, float)) > 0


@pytest.mark.slow  # the whole bench, in processes of its own
def test_every_variant_has_times_prompts_and_peaks_of_its_own(metrics: dict[str, Any]) -> None:
    for detail in metrics["details"]:
        assert [set(taken) for taken in detail["seconds_per_token"]] == [set(VARIANTS)] * 2
        assert {name: len(taken) for name, taken in detail["prefill_seconds"].items()} == dict.fromkeys(VARIANTS, 2)
        assert set(detail["peak_bytes"]) == set(VARIANTS)
        assert detail["same_tokens"] == {"sequential": True, "paired": True}
    one, many = (detail["peak_bytes"].values() for detail in metrics["details"])
    keys_and_values = 2 * 4 * 160 * 4 * TINY.prompt_tokens * 16  # bytes of one branch of 16 items
    assert min(many) > keys_and_values > max(one)


@pytest.mark.slow  # the whole bench, in processes of its own
def test_the_record_says_what_was_measured_and_on_what(metrics: dict[str, Any]) -> None:
    assert metrics["weights"] == "random, seed 0"
    assert {"device", "threads", "cores", "load_average_before", "versions"} == set(metrics["environment"])
    assert metrics["sizes"]["tiny"]["prompt_tokens"] == 64
    assert [row["limit"] for row in metrics["answers"]] == [1, 24]
    assert [bound["what"] for bound in metrics["bounds"]] == [
        "tiny float32, 1 item: paired over plain",
        "tiny float32, 1 item: two forward over paired",
        "an answer of at most 1 token: sequential over plain",
        "an answer of at most 24 tokens: sequential over plain",
    ]


@pytest.mark.long
def test_answers_of_the_organism_are_whole_and_ask_for_no_more_steps_than_its_words() -> None:
    verdict, whole = answer_costs(3, device="cpu", seed=0, rounds=1)
    assert (verdict["limit"], verdict["tokens"]) == (1, 1.0)
    assert whole["limit"] == 24
    assert 1 < whole["tokens"] < 24  # it ends its answers
    assert min(value for row in (verdict, whole) for value in row.values()) > 0
    (table,) = answer_tables([verdict, whole])
    assert list(table.columns[0].cells) == ["1", "24"]
    assert answer_tables([]) == []


@pytest.mark.parametrize(("ratio", "said"), [(1.7, "kept"), (1.71, "missed")])
def test_the_sequential_branch_is_held_to_its_bound_on_a_cpu(ratio: float, said: str) -> None:
    row = {"limit": 24, "sequential_over_plain": ratio}
    (bound,) = answer_bounds([row], "cpu")
    assert str(bound) == (
        f"an answer of at most 24 tokens: sequential over plain: {ratio:.2f}, at most 1.70 wanted: {said}"
    )
    assert answer_bounds([row], "cuda") == []


@pytest.mark.long
def test_all_contrasting_variants_say_the_same_and_something_else_than_plain(probe: DecodingRunner) -> None:
    answers = {name: probe.read(name, 3).tokens for name in VARIANTS}
    assert answers["two_forward"] == answers["sequential"] == answers["paired"]
    assert answers["two_forward"] != answers["plain"]
    assert all(len(row) == TINY.new_tokens and len(set(row)) > 3 for row in answers["plain"] + answers["paired"])
    assert answers["plain"] == answers["answers"] == answers["whole"]  # float32 has nothing to compute again


def test_prompts_are_equally_long_and_their_pictures_differently_noised(probe: DecodingRunner) -> None:
    probe.prepare(3)
    batch = probe._batches[3]
    assert batch.clean["input_ids"].shape == (3, TINY.prompt_tokens)
    assert batch.clean["attention_mask"].all()
    assert torch.equal(batch.clean["pixel_values"][0], batch.clean["pixel_values"][1])
    assert not torch.equal(batch.noised["pixel_values"][0], batch.noised["pixel_values"][1])


def test_the_prompt_is_not_part_of_a_tokens_time(probe: DecodingRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    model, forward = probe.vlm.model, probe.vlm.model.forward

    def slow_prompt(*arguments: Any, **given: Any) -> Any:
        if given["input_ids"].shape[1] > 1:
            time.sleep(0.5)
        return forward(*arguments, **given)

    monkeypatch.setattr(model, "forward", slow_prompt)
    reading = probe.read("two_forward", 1, new_tokens=2)  # one step between two tokens
    assert reading.prefill > 1
    assert reading.token < 0.5


def fake(size: str, items: int, *rounds: dict[str, float]) -> DecodingMeasurements:
    """Rounds that took these seconds a token, and 2 seconds for each first one."""
    found = {name: iter([taken[name] for taken in rounds]) for name in VARIANTS}

    def read(name: str, items: int) -> GenerationReading:
        return GenerationReading(2.0, next(found[name]), [[1, 1, 1]])

    setting = Setting(size, DECODING_SIZES[size].dtypes[0], "cpu", 0)
    model: Any = SimpleNamespace(variants=tuple(VARIANTS), read=read)
    one = DecodingMeasurements(setting, items, model, lambda what: None, dict.fromkeys(VARIANTS, 2**33))
    for _ in rounds:
        one.turns.run()
    return one


def test_a_row_is_made_of_paired_ratios_and_held_to_its_bounds() -> None:
    usual = {
        "plain": 1.0,
        "two_forward": 3.0,
        "sequential": 2.5,
        "paired": 1.5,
        "answers": 1.0,
        "whole": 1.1,
    }
    slow = {"plain": 10.0, "two_forward": 20.0, "sequential": 25.0, "paired": 14.0, "answers": 10.0}
    one = fake("tiny", 1, usual, slow | {"whole": 11.0}, {name: 2 * value for name, value in usual.items()})
    row = one.row()
    assert row == pytest.approx(
        {
            "size": "tiny",
            "dtype": "float32",
            "items": 1,
            "paired_over_plain": 1.5,
            "sequential_over_plain": 2.5,
            "two_forward_over_paired": 2.0,
            "answers_over_plain": 1.0,
            "whole_over_plain": 1.1,
            "two_forward_over_plain": 3.0,
            "paired_answer_over_plain": 8 / 6,
            "plain_ms_per_token": 2000.0,
        }
    )
    held = bounds([row])
    assert [bound.met for bound in held] == [False, True]
    paired, two_forward = map(str, held)
    assert paired == "tiny float32, 1 item: paired over plain: 1.50, at most 1.40 wanted: missed"
    assert two_forward.endswith("2.00, at least 1.25 wanted: kept")
    assert not bounds([row | {"items": 2}])
    details = one.details()
    assert details["first_token_over_plain"]["paired"] == 1
    # three tokens: the first takes 2 s, the others as long as a token of that round
    assert details["whole_answer_over_plain"]["paired"] == pytest.approx(8 / 6)  # the median of three rounds


def test_its_tables_fit_eighty_columns_and_cut_no_heading() -> None:
    rows = [fake(size, 32, dict.fromkeys(VARIANTS, 0.0123)) for size in ("tiny", "cpu", "7b_qwen")]
    ratios = dict.fromkeys(RATIOS[:4], 1.5)
    answered = answer_tables([{"limit": 24, "tokens": 10.0, "plain_ms": 900.0, **ratios}])
    console = Console(width=80, file=io.StringIO(), legacy_windows=False)
    shown_rows = [one.row() for one in rows], [one.details() for one in rows]
    console.print(*tables(*shown_rows), *answered, sep="\n")
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("sequential") == 5  # two tables, one of them twice, the third, and the legend
    assert {"two-", "forward", "/plain", "answers", "whole", "rounds", "(MiB)"} <= set(shown.split())


def test_every_bound_is_of_a_size_type_and_ratio_that_is_measured() -> None:
    for bound in BOUNDS:
        assert bound.dtype in DECODING_SIZES[bound.size].dtypes
        assert bound.items in VcdBench().items
        assert bound.ratio in (*RATIOS, "paired_answer_over_plain")


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_is_asked_for_peaks() -> None:
    bench = VcdBench(sizes=["tiny"], items=[2], repeats=1, device="cuda", answers=0)
    found = bench.measure(run_of(), "cuda", lambda what: None).metrics
    peaks = found["details"][0]["peak_bytes"]
    assert peaks["sequential"] > peaks["plain"] > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.sizes=[huge]", "task.sizes=huge: known are tiny, cpu, 7b"),
        ("task.sizes=[]", "choose among them"),
        ("task.items=[]", "task.items=: must be at least 1"),
        ("task.items=[0]", "task.items=0: must be at least 1"),
        ("task.items=[many]", "task.items"),
        ("task.repeats=0", "repeats=0"),
        ("task.seconds=-1", "seconds=-1"),
        ("task.device=tpu", "unknown device 'tpu'"),
        ("task.sizes=[7b]", "task.device=cuda"),
    ],
)
def test_bad_options_are_named_before_anything_is_built(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        run_of("task=bench_vcd", override)
    assert message in str(error.value)
