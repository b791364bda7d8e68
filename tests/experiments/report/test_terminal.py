"""The tables of the terminal fit 80 columns and 25 lines, with every number whole."""

import re
from pathlib import Path

import pytest

from experiments.report.arm_tables import arms_table, comparisons_table
from tests.experiments.synthetic_run import by_heading, metrics_of, predictions, printed, write_run


@pytest.fixture
def metrics(tmp_path: Path) -> dict:
    return metrics_of(write_run(tmp_path, predictions(80), thumbnails=()))


def test_tables_fit_80_columns_with_every_number_whole(metrics: dict) -> None:
    text = printed(metrics)
    assert max(map(len, text.splitlines())) <= 80
    assert "…\n" not in text  # rich's mark of a cut cell
    for row in by_heading(arms_table(metrics)):
        for heading in ("typical", "attack", "over-safety", "overall", "d′", "criterion", "AUROC"):
            assert f" {row[heading].value} " in text.replace("\n", " \n")
        assert row["overall"].interval in text
    for row in by_heading(comparisons_table(metrics)):
        for heading in ("overall", "unsafe", "over-safety", "AUROC"):
            assert row[heading].value in text
            assert row[heading].interval in text
    assert "calibrated_shift " in text
    assert metrics["summary"][0].split(":")[0] in text


def test_terminal_shows_the_largest_numbers_and_hostile_names_whole(metrics: dict) -> None:
    arm = metrics["arms"].pop("prompt")
    arm |= {"n": 1453, "n_of": 1523, "near_ceiling": True, "d_prime": -1.23, "criterion": -2.34}
    metrics["arms"]["[red]vcd_with_a_very_long_name_alpha=0.55"] = arm
    metrics["comparisons"]["vcd"]["delta"]["auroc"] = {"value": -0.1234, "low": -0.2346, "high": -0.1011}
    metrics["comparisons"]["vcd"]["delta"]["overall"] = {"value": -0.40, "low": -0.451, "high": -0.352}
    metrics["comparisons"]["vcd"]["delta"]["unsafe"] = {"value": -0.2, "low": -0.251, "high": -0.152}
    text = printed(metrics)
    assert max(map(len, text.splitlines())) <= 80
    for piece in (
        "of 1523",
        "−1.23*",
        "−2.34",
        "[red]",
        "alpha=0.55",
        "−0.235…−0.101",
        "−45.1…−35.2",
    ):
        assert piece in text
    assert "* a rate is so near" in " ".join(text.split())


@pytest.mark.parametrize("width", [80, 140])
def test_the_end_of_a_study_is_25_lines_with_many_arms_and_caveats(metrics: dict, width: int) -> None:
    for number in range(9):
        metrics["arms"][f"further_{number}"] = metrics["arms"]["prompt"]
        metrics["comparisons"][f"further_{number}"] = metrics["comparisons"]["prompt"]
    metrics["caveats"] = ["First of all this must be known.", "This too.", "And this.", "And that."]
    text = printed(metrics, width, verbose=False)
    assert len(text.splitlines()) <= 25 - 4  # the report and what to type next
    assert re.search(r"\(\d+ more arms in the report\)", text)
    assert "note: First of all this must be known.\n" in text
    assert "note: This too. (2 more such notes in the report)" in text
    assert f"{metrics['study']} " in text
