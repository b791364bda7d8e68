"""Comparisons that a run was not begun for are stamped exploratory: in metrics.json, in the terminal, in the report."""

import json
from pathlib import Path

import pytest

from experiments.report.saved_run import SavedRun, read_run
from experiments.report.text import summary
from experiments.studies.rejudge import Rejudge
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import environment, predictions, write_run


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("judged"), predictions())


def again(run: Path, root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[SavedRun, str, str]:
    """Return the run that was judged again, its terminal and its report."""
    capsys.readouterr()
    task = run_of("task=rejudge", f"run={run}", f"output_root={root}", "name=x", "draws=100", *options)
    Rejudge(str(run))(task)
    (folder,) = root.glob("*/*")
    terminal = " ".join(capsys.readouterr().out.split())
    return read_run(folder), terminal, (folder / "report.html").read_text()


@pytest.mark.long
def test_a_contrast_that_is_added_later_is_stamped_everywhere(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, terminal, page = again(judged, tmp_path / "a", capsys, "contrasts=[[vcd,prompt]]")
    assert saved.metrics["family"] == {"study": "vcd", "contrasts": []}
    assert saved.metrics["exploratory"] == {"study": None, "contrasts": [["vcd", "prompt"]]}
    notes = summary(saved.results, saved.metrics, saved.environment).notes
    (sentence,) = [note for note in notes if note.startswith("Exploratory: vcd − prompt.")]
    assert sentence in terminal
    assert sentence in " ".join(page.split())
    assert "vcd (exploratory)" in page


@pytest.mark.long
def test_what_was_recorded_first_stays_and_is_not_stamped(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    write_run(begun, predictions())
    first = {"study": "vcd", "contrasts": [["*", "prompt"]]}
    (begun / "environment.json").write_text(json.dumps(environment() | {"family": first}))
    saved, terminal, page = again(begun, tmp_path / "a", capsys)
    assert saved.metrics["contrasts"] == first["contrasts"], "not lost by judging again"
    assert "exploratory" not in saved.metrics
    assert "xploratory" not in terminal
    assert "(exploratory)" not in page
    saved, *_ = again(begun, tmp_path / "b", capsys, "contrasts=[[vcd,prompt],[vcd,calibrated_shift]]")
    assert saved.metrics["exploratory"]["contrasts"] == [["vcd", "calibrated_shift"]]
    assert saved.metrics["family"] == first
