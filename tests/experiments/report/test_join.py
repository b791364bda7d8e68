"""One run's report built again, and several runs joined into one comparison."""

import json
from pathlib import Path

import pytest
from experiments.metrics.findings import Answer
from experiments.report.words import with_sentences
from PIL import Image

from experiments.runs.saved_run import read_run, thumbnail_name
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import ARMS, predictions, write_run


def report(*overrides: str) -> None:
    run = run_of("task=report", "draws=50", *overrides)
    run.task(run)


HASH = " (ffffffff)"  # of the weights of every run here
OWN, OTHER = f"llava_organism{HASH}", f"bigger{HASH}"


def renamed(folder: Path, model: str) -> Path:
    """The same run as if another model had been asked."""
    environment = json.loads((folder / "environment.json").read_text())
    environment["model"]["name"] = model
    (folder / "environment.json").write_text(json.dumps(environment))
    lines = [json.loads(line) | {"settings": model} for line in (folder / "predictions.jsonl").read_text().splitlines()]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.long
def test_a_report_is_built_again_from_a_runs_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(40))
    report(f"run={folder}")
    first = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    report(f"run={folder}")
    assert (folder / "report.html").read_bytes() == first
    report(f"run={folder}", "task.format=pdf")
    assert {path.name for path in (folder / "figures").glob("*.pdf")} == {"auroc_column.pdf", "trade_off_column.pdf"}
    assert (folder / "report.html").read_bytes() == first
    with pytest.raises(UserError, match=r"task.format=png: must be one of svg, pdf"):
        run_of("task=report", "task.format=png")


@pytest.mark.long
def test_runs_of_two_models_become_one_comparison(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", predictions(40))
    other = renamed(write_run(tmp_path / "other", predictions(40, seed=1)), "bigger")
    report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")
    (folder,) = (tmp_path / "out" / "joined").iterdir()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics["arms"]) == [f"{name}: {arm}" for name in (OWN, OTHER) for arm in ARMS]
    assert {block["against"] for block in metrics["comparisons"].values()} == {f"{OWN}: baseline"}
    alone = json.loads((other / "metrics.json").read_text())["arms"]["vcd"]["accuracy"]
    assert metrics["arms"][f"{OTHER}: vcd"]["accuracy"] == alone
    page = (folder / "report.html").read_text()
    assert f"{OTHER}: vcd" in page
    assert f"Which arm of {OWN} and {OTHER} best tells safe from unsafe on iconworld?" in page
    assert f"<dt>run of {OTHER}</dt><dd>{other}</dd>" in page
    assert len(read_run(folder).predictions) == 2 * 4 * 40


def joined_of(tmp_path: Path, *folders: Path) -> Path:
    report(f"runs=[{','.join(map(str, folders))}]", f"output_root={tmp_path / 'out'}")
    (folder,) = (tmp_path / "out" / "joined").iterdir()
    return folder


def changed(folder: Path, arm: str, settings: str, **environment: object) -> Path:
    """The run as if ``arm`` had been asked under other settings."""
    file = folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | environment))
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    lines = [line | {"settings": settings} if line["arm"] == arm else line for line in lines]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.long
def test_before_and_after_an_edit_are_paired_and_what_both_asked_stands_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = changed(
        write_run(tmp_path / "a", predictions(40)), "vcd", "old", code={"vcd": "aaaaaaaaaaaa", "other": "cccc"}
    )
    edited = [one if one["arm"] != "vcd" else one | {"margin": 2 * one["margin"]} for one in predictions(40)]
    after = changed(write_run(tmp_path / "b", edited), "vcd", "new", code={"vcd": "bbbbbbbbbbbb", "other": "cccc"})
    folder = joined_of(tmp_path, before, after)
    metrics = json.loads((folder / "metrics.json").read_text())
    old, new = "vcd aaaaaaaa: vcd", "vcd bbbbbbbb: vcd"
    assert list(metrics["arms"]) == ["baseline", old, "calibrated_shift", "prompt", new]
    assert metrics["study"] == new
    assert metrics["method"]["control"] == "calibrated_shift"
    assert metrics["method"]["contrasts"] == [[new, old]]
    assert (
        metrics["comparisons"][new]["versus"][old]["auroc"]["statement"] == Answer.NO_CHANGE.value
    )  # only the scale is another
    assert "exploratory" not in metrics
    said = with_sentences(metrics, json.loads((folder / "environment.json").read_text()))["summary"]
    assert said[0].startswith("llava_organism (ffffffff) with vcd aaaaaaaa and vcd bbbbbbbb on iconworld: ")
    assert said[1].startswith(f"{new} beside {old}: at equal safety, 0.0 points")
    assert (
        old.removesuffix(" vcd") in capsys.readouterr().out.partition("report:")[0].rpartition("─")[2]
    )  # in the terminal's short table


@pytest.mark.long
def test_cases_of_one_run_alone_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(48))
    folder = joined_of(tmp_path, changed(one, "vcd", "a"), changed(other, "vcd", "b", seed=1))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {(arm["n"], arm["n_of"]) for arm in metrics["arms"].values()} == {(40, 40)}
    assert json.loads((folder / "environment.json").read_text())["benchmark"]["n"] == 40
    assert "40 cases were asked by every run; 8 others are left out" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_a_case_with_another_picture_is_refused(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(40))
    for folder, colour in ((one, "red"), (other, "blue")):
        Image.new("RGB", (8, 8), colour).save(folder / "thumbnails" / thumbnail_name("icon/0001"))
    file = other / "environment.json"
    environment = json.loads(file.read_text())
    environment["benchmark"]["manifest"] = "another"
    file.write_text(json.dumps(environment))
    with pytest.raises(UserError, match=r"case icon/0001 of .* has another picture"):
        report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")


@pytest.mark.long
def test_a_case_that_means_something_else_in_a_second_run_is_refused(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(40))
    lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
    lines[0]["text"] = "Something else?"
    (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="has another text than in an earlier run"):
        report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")
