"""One run's report built again, and several runs joined into one comparison."""

import json
from pathlib import Path

import pytest

from experiments.report.cases import attention_of_cases
from experiments.runs.saved_run import read_run
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.synthetic_attention import write_attention
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


@pytest.mark.long
def test_the_results_of_a_run_are_printed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", predictions(40))
    report(f"run={folder}", "verbose=true")
    said = capsys.readouterr().out
    assert "Arms" in said
    assert "calibrated_shift" in said
    report(f"run={folder}")
    short = capsys.readouterr().out
    assert "calibrated_shift" in short
    assert len(short.splitlines()) < len(said.splitlines()) / 2


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


@pytest.mark.long
def test_attention_of_single_cases_is_joined_under_the_joined_arms(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", predictions(40))
    other = renamed(write_run(tmp_path / "other", predictions(40, seed=1)), "bigger")
    write_attention(one, ["icon/0000"], ["baseline", "vcd"])
    write_attention(other, ["icon/0000", "icon/0001"], ["vcd"], layers=6)
    report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")
    (folder,) = (tmp_path / "out" / "joined").iterdir()
    found = attention_of_cases(folder)
    assert found is not None
    arms = {case: list(of_arm) for case, of_arm in found["cases"].items()}
    both = [f"{OWN}: baseline", f"{OWN}: vcd", f"{OTHER}: vcd"]
    assert arms == {"icon/0000": both, "icon/0001": [f"{OTHER}: vcd"]}
    assert found["note"] == f"{OWN}: Made up. {OTHER}: Made up."


def test_an_arm_that_a_second_run_repeats_is_not_counted_twice(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", predictions(40))
    report(f"runs=[{one},{one}]", f"output_root={tmp_path / 'out'}")
    (folder,) = (tmp_path / "out" / "joined").iterdir()
    assert len(json.loads((folder / "metrics.json").read_text())["arms"]) == len(ARMS)


def test_runs_of_other_cases_are_not_joined(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(40))
    file = other / "environment.json"
    environment = json.loads(file.read_text())
    environment["benchmark"]["manifest"] = "another"
    file.write_text(json.dumps(environment))
    with pytest.raises(UserError, match="2 different sets of cases"):
        report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")


def test_a_case_that_means_something_else_in_a_second_run_is_refused(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(40))
    lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
    lines[0]["text"] = "Something else?"
    (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="has another text than in an earlier run"):
        report(f"runs=[{one},{other}]", f"output_root={tmp_path / 'out'}")


def test_no_run_is_one_sentence() -> None:
    with pytest.raises(UserError, match="give run=<dir>, or runs="):
        report()
