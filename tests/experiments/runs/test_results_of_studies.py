"""Rows that a study adds to the results table of a run."""

from pathlib import Path

from experiments.runs.results_table import group_of, read_results, row, write_results


def test_a_group_of_several_parts_is_read_part_by_part() -> None:
    entry = row("patching_effect", group=group_of(other="picture", position="verdict", layer=3))
    assert entry.group == "other=picture; position=verdict; layer=3"
    assert [entry.part(name) for name in ("other", "layer", "none")] == ["picture", "3", ""]
    assert row("auroc").part("layer") == ""


def test_what_a_study_no_longer_measures_goes_and_the_rest_stays(tmp_path: Path) -> None:
    write_results(tmp_path, [row("auroc", arm="baseline", value=0.5), row("gone", value=1.0), row("again", value=1.0)])
    write_results(tmp_path, [row("again", value=2.0)], replaced=["gone", "again"])
    assert {entry.quantity: entry.value for entry in read_results(tmp_path)} == {"auroc": 0.5, "again": 2.0}
