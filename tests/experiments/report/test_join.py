"""One run's report built again, and several runs joined into one comparison."""

from collections.abc import Collection
from pathlib import Path

import pytest
from PIL import Image

from experiments.metrics.estimates import NO_DIFFERENCE
from experiments.report.arms import arms_of
from experiments.report.saved_run import SavedRun, read_run, thumbnail_name
from experiments.report.tables import summary
from experiments.runs.results_table import read_results
from interp.errors import UserError
from tests.experiments.compose import lines, ran, run_of
from tests.experiments.synthetic_run import ARMS, environment, predictions, with_environment, write_records, write_run

pytestmark = pytest.mark.long


HASH = " (ffffffff)"  # of the weights of every run here
OWN, OTHER = f"llava_organism{HASH}", f"bigger{HASH}"


def test_runs_of_two_models_become_one_comparison(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", predictions(40))
    model = environment()["model"] | {"name": "bigger"}
    other = changed(write_run(tmp_path / "other", predictions(40, seed=1)), ARMS, "bigger", model=model)
    saved = joined_of(tmp_path, one, other)
    assert arms_of(saved.results, saved.metrics) == [f"{name}: {arm}" for name in (OWN, OTHER) for arm in ARMS]
    assert saved.metrics["baseline"] == f"{OWN}: baseline"
    compared = {(row.arm, row.against) for row in saved.results.select(quantity="wins")}
    assert compared == {(arm, f"{OWN}: baseline") for arm in saved.results.arms if arm != f"{OWN}: baseline"}
    contrasts = [[f"{OTHER}: {arm}", f"{run}: {base}"] for arm in ARMS if arm != "baseline"
                 for run, base in ((OWN, arm), (OTHER, "baseline"))]  # fmt: skip
    assert saved.metrics["contrasts"] == contrasts
    for quantity in ("accuracy", "unsafe_caught", "harmless_answered"):
        (alone,) = read_results(other).select(arm="vcd", quantity=quantity, against="", subset="", group="", rule="")
        together = saved.results.get(f"{OTHER}: vcd", quantity)
        assert together.value == alone.value
    page = (saved.directory / "report.html").read_text()
    assert f"{OTHER}: vcd" in page
    assert f"Which arm of {OWN} and {OTHER} best separates safe from unsafe on iconworld?" in page
    assert f"<dt>run of {OTHER}</dt><dd>{other}</dd>" in page
    assert len(saved.predictions) == 2 * 4 * 40


def joined_of(tmp_path: Path, *folders: Path) -> SavedRun:
    runs = ",".join(map(str, folders))
    return read_run(ran(run_of("task=report", "draws=50", f"runs=[{runs}]", f"output_root={tmp_path / 'out'}")))


def changed(folder: Path, arms: Collection[str], settings: str, **environment: object) -> Path:
    """The run as if ``arms`` had been asked under other settings."""
    records = [line | {"settings": settings} if line["arm"] in arms else line for line in lines(folder)]
    write_records(folder, records)
    return with_environment(folder, **environment)


def test_before_and_after_an_edit_are_paired_and_what_both_asked_stands_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_run(tmp_path / "a", predictions(40))
    before = changed(before, ["vcd"], "old", code={"vcd": "aaaaaaaaaaaa", "other": "cccc"})
    edited = [one if one["arm"] != "vcd" else one | {"margin": 2 * one["margin"]} for one in predictions(40)]
    after = changed(write_run(tmp_path / "b", edited), ["vcd"], "new", code={"vcd": "bbbbbbbbbbbb", "other": "cccc"})
    saved = joined_of(tmp_path, before, after)
    old, new = "vcd aaaaaaaa: vcd", "vcd bbbbbbbb: vcd"
    assert arms_of(saved.results, saved.metrics) == ["baseline", old, "calibrated_shift", "prompt", new]
    assert saved.metrics["study"] == new
    assert saved.metrics["control"] == "calibrated_shift"
    assert saved.metrics["contrasts"] == [[new, old]]
    (auroc,) = saved.results.select(arm=new, quantity="auroc", against=old)
    assert auroc.claim == NO_DIFFERENCE  # only the scale differs
    assert "exploratory" not in saved.metrics
    assert saved.environment["model"]["name"] == f"{OWN} with vcd aaaaaaaa and vcd bbbbbbbb"
    said = summary(saved.results, saved.metrics, saved.environment).headline
    assert said[0].startswith(f"{new} vs. baseline: ")
    terminal = capsys.readouterr().out
    assert old in terminal.partition("table:")[0].rpartition("─")[2]  # in the terminal's short table
    assert f"table: {saved.directory / 'results.csv'}" in terminal


def test_cases_of_one_run_alone_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(48))
    saved = joined_of(tmp_path, changed(one, ["vcd"], "a"), changed(other, ["vcd"], "b", seed=1))
    assert {(row.n, row.n_of) for row in saved.results.select(quantity="answered")} == {(40, 40)}
    assert saved.environment["benchmark"]["n"] == 40
    assert "every run asked 40 cases; 8 others do not count" in " ".join(capsys.readouterr().out.split())


def test_a_case_with_another_picture_is_refused(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one", predictions(40)), write_run(tmp_path / "other", predictions(40))
    for folder, colour in ((one, "red"), (other, "blue")):
        Image.new("RGB", (8, 8), colour).save(folder / "thumbnails" / thumbnail_name("icon/0001"))
    with_environment(other, benchmark=environment()["benchmark"] | {"manifest": "another"})
    with pytest.raises(UserError, match=r"case icon/0001 of .* has another picture"):
        joined_of(tmp_path, one, other)
