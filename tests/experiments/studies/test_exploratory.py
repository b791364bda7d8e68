"""Comparisons that a run was not begun for are stamped exploratory: in metrics.json, in the terminal, in the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.report.sentences.wording import exploratory
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
