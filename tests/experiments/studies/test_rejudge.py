"""``task=rejudge``: a run of an earlier version is rebuilt, and the analysis of attention stays with a judged run."""

import json
from pathlib import Path

import pytest

from experiments.report.build import build
from experiments.report.saved_run import read_run
from experiments.runs.record_fields import read_records
from experiments.runs.results_table import Row, read_results, row, write_results
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import predictions, write_run


def judged_again(folder: Path, root: Path) -> Path:
    run = run_of("task=rejudge", f"run={folder}", "draws=200", f"output_root={root}")
    run.task(run)
    (new,) = root.glob("*/*")
    return new


def rows_of(folder: Path) -> list[Row]:
    return [entry._replace(run="") for entry in read_results(folder)]


@pytest.mark.long
def test_a_run_of_an_earlier_version_is_refused_and_rebuilt_with_its_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = predictions(40)
    records[0]["verdict"] = "no" if records[0]["verdict"] == "yes" else "yes"  # as another judge read it
    folder = write_run(tmp_path / "run", records)
    expected = rows_of(folder)
    (folder / "results.csv").unlink()
    (folder / "metrics.json").write_text(json.dumps({"rules": 4, "study": "vcd", "arms": {}, "comparisons": {}}))
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for reader in (read_run, build):
        with pytest.raises(UserError, match=rf"no results.csv.*task=rejudge run={folder}$"):
            reader(folder)
    new = judged_again(folder, tmp_path / "rebuilt")
    assert "0 of 160 verdicts changed." in capsys.readouterr().out
    assert rows_of(new) == expected
    assert read_run(new).predictions == read_records(folder)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    judged_again(new, tmp_path / "again")
    assert "1 of 160 verdicts changed." in capsys.readouterr().out, "the default judge reads the rebuilt run"


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(8))
    for name in ("results.csv", "metrics.json"):
        (folder / name).unlink()
    environment = json.loads((folder / "environment.json").read_text()) | {"finished": None}
    (folder / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(UserError, match=r"is not finished; type the run's command again"):
        judged_again(folder, tmp_path / "new")


@pytest.mark.long
def test_rows_about_attention_stay_and_rows_of_other_studies_go(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(40))
    looked = [
        row("attention_pairs", subset="typical", value=3),
        row("edge_cut", arm="failures", against="successes", subset="typical", value=0.1),
    ]
    write_results(folder, [*looked, row("patching_effect", arm="baseline", group="layer=3", value=0.5)])
    rows = rows_of(judged_again(folder, tmp_path / "new"))
    assert [entry for entry in rows if entry in looked] == looked
    assert not [entry for entry in rows if entry.quantity == "patching_effect"]
