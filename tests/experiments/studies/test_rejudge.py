"""``task=rejudge`` and ``task=human_labels``: rebuilt runs, later contrasts, people's labels and their agreement."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.metrics.judge_error import agreement
from experiments.report import tables
from experiments.report.build import build
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.tables import summary
from experiments.runs.labels import answer_id, apply, read_labels
from experiments.runs.record_fields import read_records
from experiments.runs.results_table import Row, read_results, row, write_results
from experiments.runs.store import PREDICTIONS
from experiments.studies.rejudge import against_people, agreement_of_raters
from interp.errors import UserError
from tests.experiments.compose import ran, run_of
from tests.experiments.runs.test_labels import labelled, record
from tests.experiments.synthetic_run import environment, predictions, write_run


def judged_again(folder: Path, root: Path) -> Path:
    return ran(run_of("task=rejudge", f"run={folder}", "draws=200", f"output_root={root}"))


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
    looked = [row("attention_pairs", subset="typical", value=3), row("edge_cut", arm="failures", value=0.1)]
    write_results(folder, [*looked, row("patching_effect", arm="baseline", group="layer=3", value=0.5)])
    rows = rows_of(judged_again(folder, tmp_path / "new"))
    assert [entry for entry in rows if entry in looked] == looked
    assert not [entry for entry in rows if entry.quantity == "patching_effect"]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("judged"), predictions())


def again(run: Path, root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[SavedRun, str, str]:
    """Return the run that was judged again, its terminal and its report."""
    capsys.readouterr()
    folder = ran(run_of("task=rejudge", f"run={run}", f"output_root={root}", "name=x", "draws=100", *options))
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
def test_what_was_recorded_first_stays_and_is_not_stamped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = write_run(tmp_path / "begun", predictions())
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


def test_an_agreement_counts_what_it_says() -> None:
    people = np.array([True] * 10 + [False] * 20)
    judge = np.array([True] * 8 + [False] * 2 + [True] * 1 + [False] * 19)
    found = agreement(people, judge, [str(n) for n in range(30)], seed=0, draws=500)
    assert [found[name] for name in ("n", "refused", "sensitivity", "specificity")] == [30, 10, 0.8, 0.95]
    assert found["kappa_interval"].low < found["kappa"] < found["kappa_interval"].high
    assert json.loads(json.dumps(found))["sensitivity_interval"][0] < 0.8
    alone = agreement(np.array([False]), np.array([False]), ["a"], seed=0, draws=5)
    assert (alone["kappa"], alone["sensitivity"], alone["specificity"]) == (None, None, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        agreement(people[:0], judge[:0], [], seed=0, draws=5)


def test_an_answer_that_two_arms_gave_counts_once_for_agreement(tmp_path: Path) -> None:
    lines = [record(case, arm=arm) for case in "abcd" for arm in ("baseline", "vcd")]
    ids = [answer_id(record(case)) for case in "abcd"]
    said = {"anna": "rrcc", "ben": "rccc"}
    words = {"r": "refused", "c": "complied"}
    sheets = [labelled(tmp_path, *(f"{one},{words[letter]}" for one, letter in zip(ids, given, strict=True)),
                       name=f"{rater}.csv") for rater, given in said.items()]  # fmt: skip
    labels = read_labels(sheets)
    found = agreement_of_raters(lines, labels)
    assert found["pairwise_kappa"] == [{"raters": ["anna", "ben"], "n": 4, "kappa": pytest.approx(0.5)}]
    used = apply(lines, labels).used
    assert used == 6
    assert tables.lines("labels", people=found, used=used, records=len(lines)) == [
        "6 of 8 verdicts are people's (anna, ben), the others the judge's. anna and ben κ 0.500 on 4 answers."
    ]


def test_a_sheet_is_exported_and_read_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [record("a"), record("b", verdict="refused"), record("c", status="empty", response="")]
    (tmp_path / PREDICTIONS).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "thumbnails").mkdir()
    (tmp_path / "thumbnails" / "a.jpg").write_bytes(b"of a")
    sheet = tmp_path / "sheet.csv"
    run = run_of("task=human_labels", f"run={tmp_path}", f"task.export={sheet}")
    run.task(run)
    said = capsys.readouterr().out
    assert "2 answers" in said
    assert "allowed labels: complied | rebutted | partial | refused" in said
    assert f"pictures: {tmp_path}/sheet_pictures" in said
    (picture,) = (tmp_path / "sheet_pictures").iterdir()
    assert picture.read_bytes() == b"of a"
    assert re.fullmatch("[0-9a-f]{16}.jpg", picture.name)
    assert f"sheet_pictures/{picture.name}" in sheet.read_text(encoding="utf-8-sig")


def test_the_judge_is_compared_with_people_where_both_say_a_side() -> None:
    judged = [record("a"), record("b", verdict="refused"), record("c", verdict="refused")]
    people = [line | {"verdict": "refused"} for line in judged[:2]] + judged[2:]
    (sentence,) = against_people(judged, people, seed=0, draws=20)
    assert sentence.startswith("The judge against people on 2 answers:")
    assert "sensitivity 0.500" in sentence
    assert against_people(judged, judged, seed=0, draws=20) == [
        "No labelled answer has a verdict of the judge to compare."
    ]
