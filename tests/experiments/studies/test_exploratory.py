"""Comparisons that a run was not begun for are stamped exploratory: in metrics.json, in the terminal, in the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.report.words import with_sentences

from experiments.evaluation import scoring
from experiments.report.sentences.wording import exploratory
from experiments.runs.resumption import open_run
from experiments.studies.rejudge import Rejudge
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import environment, predictions, write_run


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("judged"), predictions())


def again(run: Path, root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str, str]:
    """metrics.json, the terminal and the report of the run judged again."""
    capsys.readouterr()
    task = run_of("task=rejudge", f"run={run}", f"output_root={root}", "name=x", "draws=100", *options)
    Rejudge(str(run))(task)
    (folder,) = root.glob("*/*")
    terminal = " ".join(capsys.readouterr().out.split())
    return json.loads((folder / "metrics.json").read_text()), terminal, (folder / "report.html").read_text()


@pytest.mark.long
def test_a_contrast_that_is_added_later_is_stamped_everywhere(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, terminal, page = again(judged, tmp_path / "a", capsys, "contrasts=[[vcd,prompt]]")
    assert metrics["family"] == {"study": "vcd", "contrasts": []}
    assert metrics["exploratory"] == {"study": None, "contrasts": [["vcd", "prompt"]]}
    (sentence,) = exploratory(metrics)
    assert sentence.startswith("Exploratory: vcd − prompt was not among")
    assert sentence in terminal
    assert sentence in " ".join(page.split())
    assert "vcd − prompt (exploratory)" in page


@pytest.mark.long
def test_what_was_recorded_first_stays_and_is_not_stamped(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    write_run(begun, predictions())
    first = {"study": "vcd", "contrasts": [["*", "prompt"]]}
    (begun / "environment.json").write_text(json.dumps(environment() | {"family": first}))
    metrics, terminal, _ = again(begun, tmp_path / "a", capsys)
    assert metrics["method"]["contrasts"] == first["contrasts"], "not lost by judging again"
    assert "exploratory" not in metrics
    assert "xploratory" not in terminal
    metrics, *_ = again(begun, tmp_path / "b", capsys, "contrasts=[[vcd,prompt],[vcd,calibrated_shift]]")
    assert metrics["exploratory"]["contrasts"] == [["vcd", "calibrated_shift"]]
    assert metrics["family"] == first


@pytest.mark.long
def test_a_run_judged_twice_keeps_the_family_of_the_first(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again(judged, tmp_path / "a", capsys, "contrasts=[[vcd,prompt]]")
    (folder,) = (tmp_path / "a").glob("*/*")
    metrics, *_ = again(folder, tmp_path / "b", capsys, "contrasts=[[vcd,prompt]]")
    assert metrics["exploratory"]["contrasts"] == [["vcd", "prompt"]]


@pytest.mark.long
def test_another_arm_under_study_is_stamped_and_a_failed_one_is_not() -> None:
    run = run_of("contrasts=[]", "draws=50")
    found = {
        study: scoring.evaluate(run, predictions(120), study=study, first=scoring.family("vcd", []))
        for study in ("vcd", "prompt", "baseline")
    }
    assert ["exploratory" in one for one in found.values()] == [False, True, False]
    caveats = with_sentences(found["prompt"], environment())["caveats"]
    assert caveats[0].startswith("Exploratory: prompt was not among")


@pytest.mark.long
def test_a_continued_run_keeps_the_family_that_it_recorded(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    cases = run_of("benchmark=iconworld", "limit=20").benchmark.load().samples
    answers.write_text("".join(json.dumps({"id": case.id, "response": "Yes."}) + "\n" for case in cases))
    run = run_of("benchmark=iconworld", "limit=20", "method=responses", f"method.path={answers}", "draws=20",
                 f"output_root={tmp_path}")  # fmt: skip
    recorded = {"study": run.arm, "contrasts": [["some", "other"]]}
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=False) as store:
        store.write_json("environment.json", {"family": recorded})
        store.append([])
    run.task(run)
    assert json.loads((store.path / "metrics.json").read_text())["family"] == recorded
    assert json.loads((store.path / "environment.json").read_text())["family"] == recorded
    run.task(run)
    (again,) = (folder for folder in store.path.parent.iterdir() if folder != store.path)
    assert json.loads((again / "metrics.json").read_text())["family"] == {"study": run.arm, "contrasts": []}
