"""The whole study on a tiny random model: recorded, continued, scored, reported, and the same every time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.evaluation.fitting import fitted, fold_of
from experiments.runs.results_table import read_results
from experiments.runs.store import open_run
from mitigation.controls import YesBias
from mitigation.threshold import CalibratedShift
from tests.experiments.compose import lines, ran, run_of
from tests.experiments.evaluation.test_training import WithoutDevelopment

LIMIT = 12
ARMS = {"baseline", "vcd", "vcd_published", "calibrated_shift", "prompt", "text_only", "yes_bias"}


def study(saved: Path, outputs: Path, *overrides: str) -> Run:
    defaults = (f"model.path={saved}", f"output_root={outputs}", f"limit={LIMIT}", "draws=50", "batch_size=4")
    return run_of("+exp=vcd_llava", *defaults, "max_new_tokens=2", *overrides)


def measured(folder: Path) -> list[tuple[Any, ...]]:
    """The rows about arms, without the run's name."""
    return [row[1:] for row in read_results(folder) if row.arm in ARMS]


@pytest.fixture(scope="module")
def finished(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(study(saved, tmp_path_factory.mktemp("finished")))


@pytest.mark.long
def test_every_case_is_recorded_once_under_every_arm(finished: Path) -> None:
    records = lines(finished)
    keys = [(record["case"], record["arm"]) for record in records]
    assert len(keys) == len(set(keys)) == len(ARMS) * LIMIT
    assert {arm for _, arm in keys} == ARMS


@pytest.mark.long
def test_a_run_cut_off_anywhere_continues_to_the_same_end(saved: Path, finished: Path, tmp_path: Path) -> None:
    run = study(saved, tmp_path, "attention=false")
    whole = (finished / "predictions.jsonl").read_bytes()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=False) as store:
        (store.path / "predictions.jsonl").write_bytes(whole[: len(whole) // 2])
        begun = store.path
    assert ran(run) == begun
    by_key = {(record["case"], record["arm"]): record for record in lines(finished)}
    continued = lines(begun)
    assert len(continued) == len(by_key)
    assert {(record["case"], record["arm"]): record for record in continued} == by_key
    assert (begun / "metrics.json").read_text() == (finished / "metrics.json").read_text()
    assert measured(begun) == measured(finished)


@pytest.mark.long
def test_without_a_development_split_the_shift_is_cross_fitted(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = study(saved, tmp_path, "limit=24", "attention=false")
    folder = ran(replace(run, benchmark=WithoutDevelopment()))
    said = capsys.readouterr().out
    assert "calibrated_shift: in each of 5 folds of the cases, one constant, fitted on the others" in said
    margins: dict[str, dict[str, float]] = {}
    for record in lines(folder):
        margins.setdefault(record["arm"], {})[record["case"]] = record["margin"]
    assert set(margins["calibrated_shift"]) == set(margins["baseline"])
    shifts = {round(margins["calibrated_shift"][case] - margin, 3) for case, margin in margins["baseline"].items()}
    assert len(shifts) > 1
    assert not (folder / "development.jsonl").exists()
    assert {record.get("computed", False) for record in lines(folder) if record["arm"] == "calibrated_shift"} == {True}


@pytest.mark.long
@pytest.mark.parametrize("method", [CalibratedShift(), YesBias()])
def test_the_constant_of_a_fold_comes_from_the_other_folds(saved: Path, tmp_path: Path, method: Any) -> None:
    run = study(saved, tmp_path, "limit=24", "attention=false", "method=text_only", "method.alpha=1.0")
    arms = {"baseline": run.arms["baseline"], run.arm: run.arms[run.arm], "control": method}
    folder = ran(replace(run, arms=arms, benchmark=WithoutDevelopment()))
    records = [record for record in lines(folder) if record["arm"] != "control"]
    for record in lines(folder):
        if record["arm"] == "control":
            others = [other for other in records if fold_of(other["cluster"]) != fold_of(record["cluster"])]
            constant = fitted(method, others, study=run.arm)
            assert record["margin"] == record["margin_unshifted"] + constant.shift


def test_limits_take_the_subsets_by_turns_in_the_benchmarks_order() -> None:
    samples = IconWorld().load().samples
    assert {sample.subset for sample in limited(samples, 4)} == {"typical", "attack", "over_safety", "control"}
    assert limited(samples, None) == samples
    chosen = limited(samples, 30)
    assert len(chosen) == 30
    assert [sample for sample in samples if sample in chosen] == chosen


@pytest.mark.long
def test_records_of_a_contrast_hold_the_margins_of_its_branches(saved: Path, tmp_path: Path) -> None:
    sizes = ("limit=4", "draws=20", "max_new_tokens=2", f"output_root={tmp_path}")
    contrast = ("method=text_only", "method.alpha=2.0")
    folder = ran(run_of(*contrast, f"model.path={saved}", *sizes))
    records = {(line["arm"], line["case"]): line for line in lines(folder, "predictions.jsonl")}
    for (arm, case), record in records.items():
        if arm == "baseline":
            assert "branch_margins" not in record
            continue
        clean, other = (record["branch_margins"][name] for name in ("clean", "no_picture"))
        assert clean == pytest.approx(records["baseline", case]["margin"], abs=1e-4)
        assert 3 * clean - 2 * other == pytest.approx(record["margin"], abs=1e-3)
