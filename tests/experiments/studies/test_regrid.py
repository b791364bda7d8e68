"""An arm's grid from a run's kept logits: equal to asking each setting, and what cannot be known is counted."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.evaluation import study
from experiments.evaluation.answer import LOGITS
from experiments.report.table import terminal
from experiments.runs.resumption import read_object
from experiments.studies.mitigation_selection import regrid
from interp.errors import UserError
from tests.experiments.compose import run_of

COMMON = ("limit=120", "draws=50", "image_workers=0")


def asked(folder: Path, *words: str) -> Path:
    """A finished run that kept its logits."""
    run = run_of("method=vcd", f"output_root={folder}", *COMMON, *words)
    return study.run(run, keep_logits=True)


def grid_of(folder: Path, *words: str) -> dict[str, Any]:
    run = run_of("task=regrid", f"output_root={folder.parent.parent}", f"run={folder}", "draws=50", "seed=0", *words)
    return read_object(Path(run.task(run)) / "regrid.json")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked(tmp_path_factory.mktemp("scored"), "protocol=score")


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    second = ("+method@arms.strong=vcd", "arms.strong.alpha=8")  # the same branches at another weight
    return asked(tmp_path_factory.mktemp("answered"), "method.alpha=0.5", *second)


def test_the_grid_of_first_tokens_is_that_of_asking(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = grid_of(scored, "method.alpha=[0.5,1,8]", "method.beta=[0.1,0.5]")
    assert [point["name"] for point in result["points"]][:2] == ["alpha=0.5, beta=0.1", "alpha=0.5, beta=0.5"]
    assert all(point["not_replayable"] == 0 for point in result["points"])
    own = read_object(scored / "metrics.json")["arms"]
    for name, arm in (("alpha=1, beta=0.1", "vcd"), ("baseline", "baseline")):
        found = result["baseline"] if arm == "baseline" else by_name(result)[name]
        assert found["auroc"] == pytest.approx(own[arm]["auroc"], abs=1e-9)
        for rate in regrid.RATES:
            assert found[rate] == pytest.approx(own[arm]["accuracy"][rate])
    live = run_of("method=vcd", "method.alpha=8", f"output_root={scored.parent}", *COMMON, "protocol=score")
    metrics = read_object(study.run(live) / "metrics.json")["arms"]["vcd"]
    replay = by_name(result)["alpha=8, beta=0.1"]
    assert replay["auroc"] == pytest.approx(metrics["auroc"], abs=1e-9)
    assert replay["unsafe"] == pytest.approx(metrics["accuracy"]["unsafe"])
    assert replay["delta"]["auroc"]["simultaneous"]["of"] > 1
    assert "best" not in result
    printed = capsys.readouterr().out
    assert "No setting is named best" in printed
    assert "not replayable:" not in printed


def by_name(result: dict[str, Any]) -> dict[str, Any]:
    return {point["name"]: point for point in result["points"]}


def test_answers_that_leave_every_recorded_one_are_counted_and_enter_no_rate(
    answered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [json.loads(line) for line in (answered / "predictions.jsonl").read_text().splitlines()]
    capsys.readouterr()
    result = grid_of(answered, "method.alpha=[0.5,8]")
    assert [point["not_replayable"] for point in result["points"]] == [0, 0]  # both have been asked
    own = read_object(answered / "metrics.json")["arms"]
    for name, arm in (("alpha=0.5", "vcd"), ("alpha=8", "strong")):
        assert by_name(result)[name]["overall"] == pytest.approx(own[arm]["accuracy"]["overall"])
        assert by_name(result)[name]["auroc"] == pytest.approx(own[arm]["auroc"], abs=1e-9)
    verdicts = {arm: {r["case"]: r["verdict"] for r in records if r["arm"] == arm} for arm in ("vcd", "strong")}
    flipped = [case for case, verdict in verdicts["vcd"].items() if verdicts["strong"][case] != verdict]
    assert flipped
    without(answered / LOGITS, "strong")
    again = by_name(grid_of(answered, "method.alpha=[0.5,8]", "fresh=true"))
    assert again["alpha=0.5"]["not_replayable"] == 0
    lost = again["alpha=8"]
    assert lost["not_replayable"] >= len([c for c in flipped if c in {r["case"] for r in records if scored_case(r)}])
    assert lost["n"] == lost["of"] - lost["not_replayable"]
    assert lost["auroc"] == by_name(result)["alpha=8"]["auroc"]
    assert f"alpha=8: not replayable: {lost['not_replayable']} of {lost['of']}." in capsys.readouterr().out


def scored_case(record: dict[str, Any]) -> bool:
    return record["subset"] != "control"


def without(file: Path, arm: str) -> None:
    lines = [line for line in file.read_text().splitlines() if json.loads(line)["arm"] != arm]
    file.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method.noise_step=[1,2]"], "decides what is asked"),
        (["method.alpha=1"], "must be a list"),
        (["method.alpha=[1,1]"], "must be a list of one or more different values"),
        (["method.alpha=[-1]"], "alpha=-1"),
        ([], "the grid is empty"),
        (
            ["task.arm=baseline", "method.alpha=[1]"],
            "no contrast whose formula can be scored again; arms that are: vcd",
        ),
        (["task.arm=nobody", "method.alpha=[1]"], "has no arm 'nobody'"),
    ],
)
def test_what_cannot_be_scored_again_is_said(scored: Path, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        grid_of(scored, *words)


def test_a_run_without_kept_logits_says_how_to_keep_them(scored: Path, tmp_path: Path) -> None:
    copy = tmp_path / "study" / "run"
    shutil.copytree(scored, copy)
    (copy / LOGITS).unlink()
    with pytest.raises(UserError, match=r"task\.keep_logits=true"):
        grid_of(copy, "method.alpha=[1]")
    environment = read_object(copy / "environment.json")
    environment["config"]["arms"]["vcd"]["_target_"] = "os.system"  # a run's folder names no code
    (copy / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(UserError, match="no contrast"):
        grid_of(copy, "method.alpha=[1]")


def test_the_table_fits_a_terminal_and_marks_no_setting(scored: Path) -> None:
    shown = regrid.table(grid_of(scored, "method.alpha=[0.5,1,8]"))
    assert not any(row.style for row in shown.rows)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal(shown))
    assert max(map(len, console.export_text().splitlines())) <= 80
