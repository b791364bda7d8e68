"""Over-caution and harmful compliance together: what the words say of which numbers, for verdicts and for refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.metrics.claims import claim_of
from experiments.report.numbers import percent
from experiments.runs.results_table import Results, Row, read_results, row
from experiments.studies.direction_ablation import CAUTION, CONTROL, HARM, compared, conclude, describe
from interp.errors import UserError
from tests.experiments.compose import run_of

SIDES = {"yes_no": (("harmless_answered", ""), ("unsafe_caught", "")),
         "refusal": (("refusal_rate", "benign"), ("refusal_rate", "contrast"))}  # fmt: skip
LEVELS = ((0.2, 0.1, 0.4), (0.9, 0.8, 0.95))


def change(value: float, width: float = 0.05) -> dict[str, Any]:
    entry: dict[str, Any] = {"value": value, "low": value - width, "high": value + width, "n": 100}
    return entry | {"claim": claim_of(entry)}


def rows(kind: str = "yes_no", **changes: tuple[Any, Any]) -> list[Row]:
    """Arms by the change of what is right (or refused) on safe and on unsafe cases."""
    made = [row("answered", arm=arm, value=100) for arm in ("baseline", *changes)]
    for side, (quantity, subset) in enumerate(SIDES[kind]):
        value, low, high = LEVELS[side]
        made.append(row(quantity, arm="baseline", subset=subset, value=value, low=low, high=high))
        for arm, pair in changes.items():
            entry = pair[side] if isinstance(pair[side], dict) else change(pair[side])
            made.append(row(quantity, arm=arm, subset=subset, value=value + entry["value"], low=low, high=high))
            made.append(row(quantity, arm=arm, against="baseline", subset=subset, entry=entry))
    return made


def concluded(made: list[Row], kind: str = "yes_no", **controls: list[str]) -> tuple[Results, list[str]]:
    """The rows of the study and its sentences, of the first ablation unless several are given."""
    design = {"kind": kind, "baseline": "baseline"}
    controls = controls or {"cut": []}
    results = Results([*made, *compared(Results(made), design, controls)])
    return results, describe(results, design, controls)


@pytest.mark.parametrize(
    ("pair", "meaning"),
    [
        ((0.3, -0.2), "What over-refuses is what protects"),
        ((0.3, 0.0), "Over-caution: lower (−30.0 points [−35.0, −25.0]). Harmful compliance: inconclusive"),
        ((0.3, 0.1), "Both errors fall"),
        ((0.0, -0.2), "Over-caution: inconclusive (0.0 points [−5.0, +5.0]). Harmful compliance: higher"),
        ((-0.15, 0.08), "The arm is more cautious than the model"),
        ((-0.15, 0.0), "Over-caution: higher (+15.0 points [+10.0, +20.0]). Harmful compliance: inconclusive"),
        ((0.01, 0.01), "Over-caution: inconclusive (−1.0 points [−6.0, +4.0]). Harmful compliance: inconclusive"),
    ],
)
def test_the_trade_is_named_by_intervals_that_exclude_0(pair: tuple[float, float], meaning: str) -> None:
    results, sentences = concluded(rows(cut=pair, drawn=(0.0, 0.0)), cut=["drawn"])
    assert sentences[0].startswith(f"cut: {meaning}")
    moved = pair != (0.01, 0.01)
    assert ("  No control is shown to do the same." in sentences) == moved
    assert (results.get("cut", CONTROL, against="drawn") is not None) == moved
    caution = results.get("cut", CAUTION)
    assert (caution.value, caution.interval) == (pytest.approx(0.8 - pair[0]), pytest.approx((0.6, 0.9)))
    difference = results.get("cut", CAUTION, against="baseline")
    assert difference.value == pytest.approx(-pair[0])
    assert difference.low < difference.high
    harm = results.get("cut", HARM)
    assert harm.value == pytest.approx(0.1 - pair[1])


def test_the_report_has_both_errors_of_every_arm(tmp_path: Path) -> None:
    folder = tmp_path / "exp" / "time"
    folder.mkdir(parents=True)
    Results(rows(cut=(0.3, -0.2))).write(folder)
    (folder / "metrics.json").write_text('{"kind": "yes_no", "baseline": "baseline", "study": "cut"}')
    for _ in range(2):  # the second time every row is replaced
        conclude(folder, {"cut": []})
    keys = [entry[1:7] for entry in read_results(folder)]
    assert len(set(keys)) == len(keys) == len(rows(cut=(0.3, -0.2))) + 6
    (table,) = json.loads((folder / "sections" / "ablation.json").read_text())["tables"]
    line = dict(zip(table["columns"], table["rows"][1], strict=True))
    assert line["over-caution"] == "50.0 [60–90]"
    assert line["harmful compliance: change"].startswith(f"▲ {percent(0.2, sign=True)} [")


def test_a_control_that_does_the_same_takes_the_claim_away() -> None:
    made = rows(cut=(0.3, -0.2), drawn=(0.2, -0.1), idle=(0.0, 0.0))
    results, sentences = concluded(made, cut=["drawn", "idle"])
    assert sentences[1:] == [
        "  The same changes under drawn: this direction is not the only cause.",
        "  Over-caution/harmful compliance of the controls: drawn 60.0%/20.0%, idle 80.0%/10.0%.",
    ]
    alike = {entry.against: entry.value for entry in results.select(quantity=CONTROL)}
    assert alike == {"drawn": 1.0, "idle": 0.0}


def test_too_few_cases_and_small_changes_are_said_to_be_such() -> None:
    few = {"value": 0.0, "low": None, "high": None, "clusters": 4, "claim": "too few cases"}
    _, sentences = concluded(rows(cut=(change(0.0, 0.01), few)))
    assert sentences == [
        "cut: Over-caution: no relevant difference (0.0 points [−1.0, +1.0]). Harmful compliance: too few cases "
        "(0.0 points [too few cases for an interval])."
    ]


def test_a_small_change_is_no_trade() -> None:
    _, sentences = concluded(rows(cut=(change(0.01, 0.005), -0.2)))
    assert sentences == [
        "cut: Over-caution: lower by less than 2 points (−1.0 points [−1.5, −0.5]). Harmful compliance: higher "
        "(+20.0 points [+15.0, +25.0])."
    ]


def test_a_turned_change_is_turned_whole() -> None:
    entry = {
        "value": 0.3,
        "claim": "higher",
        "low": 0.1,
        "high": 0.7,
        "clusters": 50,
        "bounds": (0.2, 0.4),
        "level": 0.99,
    }
    results, _ = concluded(rows(cut=(entry, 0.0)))
    turned = results.get("cut", CAUTION, against="baseline")
    assert (turned.low, turned.high, turned.claim) == (-0.7, -0.1, "lower")
    assert (turned.bounds, turned.level, turned.clusters) == ((-0.4, -0.2), 0.99, 50)


def test_refusals_count_the_other_way() -> None:
    results, sentences = concluded(rows("refusal", cut=(-0.1, -0.4)), "refusal")
    levels = {quantity: results.get("cut", quantity) for quantity in (CAUTION, HARM)}
    caution, harm = (results.get("cut", quantity, against="baseline") for quantity in (CAUTION, HARM))
    assert levels[CAUTION].value == pytest.approx(0.1)
    assert levels[CAUTION].interval == pytest.approx((0.1, 0.4))
    assert caution.value == pytest.approx(-0.1)
    assert levels[HARM].value == pytest.approx(0.5)
    assert harm.value == pytest.approx(0.4)
    assert sentences[0].startswith(
        "cut: What over-refuses is what protects: less over-caution is paid for with harmful compliance. "
    )


def test_arms_that_are_not_there_are_named(tmp_path: Path) -> None:
    run = run_of("+exp=direction_ablation", f"output_root={tmp_path}", "task.controls={ablate_direction:[nobody]}")
    with pytest.raises(UserError, match="nobody"):
        run.task(run)


@pytest.mark.slow
def test_the_experiment_runs(tmp_path: Path) -> None:
    run = run_of("+exp=direction_ablation", f"output_root={tmp_path}", "limit=400", "draws=20")
    folder = run.task(run)
    for name in ("metrics.json", "report.html", "sections/ablation.json", "learned/to_safe.safetensors"):
        assert (folder / name).exists(), name
