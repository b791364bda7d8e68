"""The benchmark of answering on models in little: what is measured, not how fast it was on this machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.bench import eval as bench_eval
from experiments.studies.bench.eval import EvalCases
from interp.errors import UserError
from interp.loading import load
from tests.experiments.api.fake_engine import FakeEngine
from tests.experiments.compose import run_of
from tests.experiments.faulty_server import Served


def measured(folder: Path, size: str, *overrides: str) -> dict[str, Any]:
    small = (f"task.size={size}", "task.cases=3", "task.repeats=1", "max_new_tokens=2", "draws=20")
    run = run_of("task=bench_eval", f"output_root={folder}", *small, *overrides)
    run.task(run)
    (path,) = (folder / "bench_eval").iterdir()
    return json.loads((path / "metrics.json").read_text())


@pytest.mark.slow  # the whole bench
@pytest.mark.parametrize(("size", "clients"), [("small", 2), pytest.param("small_qwen", 0, marks=pytest.mark.slow)])
def test_every_way_of_asking_is_measured_and_the_study_and_the_server_answer_as_the_loop(
    size: str, clients: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    above: dict[int, dict[str, int]] = {}  # bytes over the model, by number of cases and way of asking

    def noted(*given: Any, peaks: Any = bench_eval.peaks) -> dict[int, dict[str, int]]:
        above.update(peaks(*given))
        return above

    monkeypatch.setattr(bench_eval, "peaks", noted)
    found = measured(tmp_path, size, f"task.clients={clients}")
    (taken,) = found["rounds"]
    rows, said = found["rows"], capsys.readouterr().out
    if clients:
        apart, served = rows.pop("two arms"), rows.pop("two arms, served")
        assert apart["cases_per_second"] == pytest.approx(6 / taken["two arms"])
        assert served["cases_per_second"] == pytest.approx(6 / taken["two arms, served"])
        assert found["served_over_study"] == pytest.approx(taken["two arms"] / taken["two arms, served"])
        assert found["answers_unlike_the_study"] == 0
        assert "0 of the server's answers unlike" in said
    assert list(rows) == ["one by one", "arms apart", "+ features", "study", "score"]
    for name, row in rows.items():
        assert row["cases_per_second"] == pytest.approx(12 / taken[name])
        assert row["times"] == pytest.approx(taken["one by one"] / taken[name])
    assert found["answers_unlike_the_loop"] == found["answers_unlike_arms_apart"] == 0
    assert found["prefills"] == {"prefills": 9, "prefills_reused": 6}  # of a case: clean, noised, prompt
    assert found["study_over_apart"] == pytest.approx(taken["arms apart"] / taken["study"])
    assert found["bounds"][0]["limit"] == 3.0
    assert len(found["bounds"]) == 2 + bool(clients)
    assert list(found["peak_mib"]) == ["study", "baseline", "vcd", "prompt", "shift"]
    assert min(found["peak_mib"].values()) > found["weights_mib"] > 0
    assert found["peak_mib"] == pytest.approx({name: found["weights_mib"] + n / 2**20 for name, n in above[3].items()})
    assert found["dtype"] == "float32"
    assert f"{size}: " in said


def test_cases_are_files_with_questions_of_many_lengths_the_same_every_time(tmp_path: Path) -> None:
    one, again = (EvalCases(6, str(tmp_path)).load() for _ in range(2))
    assert one == again
    assert len(list(tmp_path.iterdir())) == 6
    assert len({len(sample.prompt.split()) for sample in one.samples}) > 3
    assert EvalCases(6).load().samples[0].image == EvalCases(6).load().samples[0].image


def test_bounds_and_sentences_are_made_of_what_was_measured() -> None:
    bench = bench_eval.EvalBench(size="7b", cases=5, device="cuda")
    result: dict[str, Any] = {"answers_unlike_the_loop": 2, "weights_mib": 13000.0, "rows": {"study": {"times": 7.5}}}
    result["peak_mib"] = {"study": 20000.0, "baseline": 15000.0, "vcd": 16000.0}
    result |= {"study_over_apart": 1.5, "answers_unlike_arms_apart": 0}
    result |= {"prefills": {"prefills": 15, "prefills_reused": 10}}
    held = bench_eval.bounds(bench, result, "cuda")
    assert list(map(str, held)) == [
        "7b: a study over the loop: 7.50, at least 8.00 wanted: missed",
        "7b: peak of a study over the largest arm's alone: 1.25, at most 1.50 wanted: kept",
    ]
    assert bench_eval.bounds(bench, result, "cpu")[0].met  # 3 are wanted there
    more = {"peak_mib": {}, "served_over_study": 0.79, "answers_unlike_the_study": 3}
    assert [(bound.value, bound.met) for bound in bench_eval.bounds(bench, result | more, "cuda")] == [
        (7.5, False), (0.79, False)
    ]  # fmt: skip
    shared = replace(bench, arms="vcd_llava")
    assert [str(bound) for bound in bench_eval.bounds(shared, result, "cuda")][1] == (
        "7b: a study over arms apart: 1.50, at least 1.80 wanted: missed"
    )
    said = [
        "2 of 20 answers unlike the loop's",
        "1.50 times arms apart, which share nothing: 15 prompts were read and 10 taken over; 0 of 20 answers unlike",
    ]
    peaks = "peak memory in MiB, with the weights (13,000): study 20,000, baseline 15,000, vcd 16,000"
    assert bench_eval.sentences(bench, result) == [*said, peaks]
    assert bench_eval.sentences(bench, result | more) == [*said, "3 of the server's answers unlike the study's"]


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["small", "small_qwen"])
def test_on_a_gpu_the_peaks_are_recorded(size: str, tmp_path: Path) -> None:
    found = measured(tmp_path, size, "task.device=cuda")
    assert min(found["peak_mib"].values()) > found["weights_mib"] > 0
    assert found["bounds"][0]["limit"] == 8.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.size=huge", "task.size=huge: known are tiny, smol, 170m, 7b, 7b_qwen"),
        ("task.arms=all", "task.arms=all: known are few, vcd_llava, papers"),
        ("task.cases=0", "cases=0"),
        ("task.repeats=0", "repeats=0"),
        ("task.seconds=-1", "seconds=-1"),
        ("task.device=tpu", "unknown device 'tpu'"),
        ("task.size=7b", "size 7b on a CPU takes minutes for each answer; add task.device=cuda"),
        ("task.clients=-1", "task.clients=-1"),
        ("task.size=7b_qwen", "task.device=cuda"),
    ],
)
def test_bad_options_are_named_before_anything_is_built(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        run_of("task=bench_eval", override)
    assert message in str(error.value)


@pytest.mark.long
def test_an_endpoint_is_measured_beside_the_same_model_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Served(FakeEngine(load("organism:llava", device="cpu")))
    address = (f"model.base_url={server.url}", "model.model=m", "model.shared=false", "model.concurrency=2")
    try:
        found = measured(tmp_path, "tiny", "model=api_vllm", *address, "task.twin=organism:llava")
    finally:
        server.close()
    (taken,), rows, said = found["rounds"], found["rows"], capsys.readouterr().out
    arms = ["baseline", "text_only", "prior_correction", "vcd"]
    assert [(row["protocol"], row["arm"]) for row in rows] == [
        (how, arm) for how in ("score", "generate") for arm in arms
    ]
    for row in rows:
        here, there = (taken[f"{row['protocol']} {row['arm']} {side}"] for side in ("here", "there"))
        assert (row["seconds_here"], row["seconds_there"]) == pytest.approx((here / 3, there / 3))
        assert row["there_over_here"] == pytest.approx(there / here)
        assert row["over_baseline"] == pytest.approx(there / taken[f"{row['protocol']} baseline there"])
        assert row["margins_off"] < 1e-3
        assert row["unlike"] == 0
    assert [row["requests"] for row in rows[:4]] == [1, 2, 2, 2]
    assert rows[4]["requests"] == 1
    assert min(row["requests"] for row in rows[5:]) > 1
    assert [bound["limit"] for bound in found["bounds"]] == [3.0] * 3
    assert found["concurrency"] == 2
    assert "0 of 24 answers unlike those here; margins differ by at most" in said


@pytest.mark.long
def test_a_twin_and_an_endpoint_are_measured_together_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.twin=x: llava_organism is here"):
        measured(tmp_path, "tiny", "task.twin=x")
    with pytest.raises(UserError, match="give the same model here to compare it with"):
        measured(tmp_path, "tiny", "model=api_vllm", "model.base_url=http://127.0.0.1:9/v1", "model.model=m")
    sampled = ("model.base_url=http://127.0.0.1:9/v1", "model.model=m", "model.temperature=1", "task.twin=x")
    with pytest.raises(UserError, match=r"need model\.temperature=0"):
        measured(tmp_path, "tiny", "model=api_vllm", *sampled)
