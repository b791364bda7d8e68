"""The tables of the terminal, and the numbers and published rows that they and the page print."""

import re
from io import StringIO
from pathlib import Path

import pytest
from experiments.report.arm_tables import arms_table, comparisons_table, glance_table
from rich.console import Console

from experiments.benchmarks.published import PUBLISHED
from experiments.report.numbers import fixed, fixed_interval, p_value, percent, percent_interval
from experiments.report.terminal import shown
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


def test_a_study_ends_with_two_sentences_and_six_columns_of_whole_numbers(metrics: dict) -> None:
    text = printed(metrics, verbose=False)
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(metrics["summary"][0].split()) in " ".join(text.split())
    assert " ".join(metrics["summary"][1].split()) in " ".join(text.split())
    rows = by_heading(glance_table(metrics, terse=True))
    assert [str(row["arm"]) for row in rows] == list(metrics["arms"])
    drawn = {line.split()[0]: line for line in text.split("───\n")[1].splitlines()[::-1] if line}
    for row in rows[:3]:
        name = str(row["arm"])
        assert len(row) == 6
        line = drawn[name]
        assert all(str(cell) in line for cell in row.values())
        assert row["unsafe caught"].value == percent(metrics["arms"][name]["accuracy"]["unsafe"])
    assert str(rows[0]["change"]) == ""
    delta = metrics["comparisons"]["vcd"]["delta"]["matched_over_safety"]
    change = next(str(row["change"]) for row in rows if str(row["arm"]) == "vcd")
    assert change.split()[:2] == [
        {"too few": "…"}[delta["statement"].replace("_", " ")],
        percent(delta["value"], sign=True),
    ]


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


@pytest.mark.parametrize("named", [{"further_8"}, {f"further_{number}" for number in range(9)}])
def test_arms_of_the_command_line_are_shown_then_those_that_the_answer_is_about(metrics: dict, named: set) -> None:
    for number in range(9):
        metrics["arms"][f"further_{number}"] = metrics["arms"]["prompt"]
        metrics["comparisons"][f"further_{number}"] = metrics["comparisons"]["prompt"]
    metrics["arms"] = {name: metrics["arms"][name] for name in reversed(metrics["arms"])}  # no help from their order
    metrics["summary"] = ["The answer.", "And the verdicts."]
    console = Console(width=80, record=True, file=StringIO())
    console.print(shown(metrics, verbose=False, width=80, named=named))
    text = console.export_text()
    rows = {line.split()[0] for line in text.splitlines() if re.match(r"\w+ +[\d.]+ ", line)}
    assert {*named, "vcd", "baseline"} <= rows
    assert re.search(r"\(\d+ more arms in the report\)", text)
    if len(named) == 1:
        assert "calibrated_shift" in rows


def test_answers_without_a_verdict_are_counted_first_of_both_arms(tmp_path: Path) -> None:
    records = predictions(80)
    for record in records[:8]:
        record["verdict"] = "no_verdict"
    silent = {arm: sum(r["verdict"] == "no_verdict" for r in records if r["arm"] == arm) for arm in ("baseline", "vcd")}
    metrics = metrics_of(write_run(tmp_path, records, thumbnails=()))
    metrics["caveats"] += ["Another note."] * 3
    said = " and ".join(f"{silent[arm]} of 80 answers of {arm}" for arm in ("vcd", "baseline"))
    assert sum(silent.values()) > 0
    text = " ".join(printed(metrics, verbose=False).split())
    assert f"note: {said} hold no readable Yes or No and count as wrong." in text


def test_numbers_in_words() -> None:
    assert percent(0.9123) == "91.2"
    assert percent(None) == percent(float("nan")) == "n/a"
    assert fixed(-0.001, 2, sign=True) == "0.00"
    assert fixed(-1.5, 2) == "−1.50"
    assert percent(0.032, sign=True) == "+3.2"
    assert percent_interval([0.88, 0.941]) == "88–94"
    assert percent_interval([-0.021, 0.04], 1) == "−2.1…4.0"
    assert fixed_interval([None, 1.0]) == fixed_interval(None) == ""
    assert (p_value(None), p_value(0.0001), p_value(0.0123)) == ("n/a", "<0.001", "0.012")


def test_published_rows_reproduce_the_specified_discrimination() -> None:
    rows = {row.name: (round(row.d_prime, 2), round(row.criterion, 2)) for row in PUBLISHED["mmsafeaware"]}
    assert rows["LLaVA-1.5-7B"] == (0.30, -1.70)
    assert rows["LLaVA + VCD"] == (0.16, -1.10)
    assert rows["LLaVA + VRTuning"] == (-0.05, -0.92)
    assert rows["Qwen-VL-7B"] == (0.24, -1.21)
    assert rows["Gemini 1.5 + Prompt"] == (1.00, -0.77)
    assert rows["Human"][0] == 3.05
    for row in PUBLISHED["mmsafeaware"]:
        if row.typical is not None and row.attack is not None:
            assert row.overall == pytest.approx((row.typical + row.attack + row.over_safety) / 3, abs=0.0011)
