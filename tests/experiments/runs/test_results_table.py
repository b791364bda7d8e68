"""The results table on disk: every digit comes back, a study replaces its rows only, and an old run is refused."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.metrics.estimates import CLAIMS
from experiments.runs.results_table import COLUMNS, OF_A_STUDY, Results, Row, group_of, read_results, row, write_results
from interp.errors import UserError

NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
ROWS = st.builds(
    lambda texts, numbers, claim: Row("", *texts, *numbers, claim), st.tuples(*[TEXTS] * 6), st.tuples(*[NUMBERS] * 11),
    st.sampled_from(("", *CLAIMS)),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(ROWS, max_size=4))
def test_every_digit_and_every_letter_comes_back(tmp_path: Path, rows: list[Row]) -> None:
    Results(rows).write(tmp_path)
    back = read_results(tmp_path)
    assert [each[1:] for each in back] == [each[1:] for each in rows]
    assert (tmp_path / "results.csv").read_text(encoding="utf-8").startswith(",".join(COLUMNS))


def test_a_row_takes_an_entry_and_never_a_number_that_is_none() -> None:
    entry = {"value": 0.25, "low": 0.125, "high": 0.5, "n": 4, "clusters": 3, "bounds": (0.0, 1.0), "claim": "higher"}
    found = row("accuracy", arm="a", against="b", entry=entry)
    assert (found.value, found.interval, found.bounds, found.level) == (0.25, (0.125, 0.5), (0.0, 1.0), 0.95)
    assert row("accuracy", arm="a", value=float("nan")).value is None
    assert row("accuracy", arm="a", value=0.5).level is None


def test_rows_are_replaced_by_quantity_and_by_the_family_of_a_study(tmp_path: Path) -> None:
    study = f"{OF_A_STUDY}all at once"
    write_results(tmp_path, [row("auroc", arm="a", value=0.5), row("auroc", arm="b", value=0.6)])
    write_results(tmp_path, [row("auroc", arm="a", rule=study, value=0.1), row("probe_accuracy", arm="a", value=0.2)])
    write_results(tmp_path, [row("auroc", arm="a", value=0.7)])
    found = read_results(tmp_path)
    assert [(each.arm, each.quantity, each.rule, each.value) for each in found] == [
        ("a", "auroc", study, 0.1), ("a", "probe_accuracy", "", 0.2), ("a", "auroc", "", 0.7),
    ]  # fmt: skip
    write_results(tmp_path, [row("auroc", arm="b", rule=study, value=0.3)])
    assert read_results(tmp_path).get("a", "auroc", rule=study) is None
    assert {each.run for each in read_results(tmp_path)} == {f"{tmp_path.parent.name}/{tmp_path.name}"}


def test_rows_are_found_by_key_and_by_columns() -> None:
    found = Results([row("auroc", arm="a", value=0.5), row("auroc", arm="b", against="a", value=0.1)])
    assert found.get("b", "auroc") is None
    assert found.get("b", "auroc", against="a") == found.rows[1]
    assert found.select(arm=("a", "b"), quantity="auroc") == found.rows
    assert found.select(against="") == found.rows[:1]
    assert found.arms == ["a", "b"]


def test_a_run_without_a_table_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read as a results table"):
        read_results(tmp_path)
    (tmp_path / "predictions.jsonl").touch()
    with pytest.raises(UserError, match=rf"task=rejudge run={tmp_path}$"):
        read_results(tmp_path)


def test_a_group_of_several_parts_is_read_part_by_part() -> None:
    entry = row("patching_effect", group=group_of(other="picture", position="verdict", layer=3))
    assert entry.group == "other=picture; position=verdict; layer=3"
    assert [entry.part(name) for name in ("other", "layer", "none")] == ["picture", "3", ""]
    assert row("auroc").part("layer") == ""


def test_what_a_study_no_longer_measures_goes_and_the_rest_stays(tmp_path: Path) -> None:
    write_results(tmp_path, [row("auroc", arm="baseline", value=0.5), row("gone", value=1.0), row("again", value=1.0)])
    write_results(tmp_path, [row("again", value=2.0)], replaced=["gone", "again"])
    assert {entry.quantity: entry.value for entry in read_results(tmp_path)} == {"auroc": 0.5, "again": 2.0}
