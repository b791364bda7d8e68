"""Over-caution beside harmful compliance: what the words say of which numbers, for verdicts and for refusals."""

from pathlib import Path
from typing import Any

import pytest
from experiments.metrics.findings import statement

from experiments.report.numbers import percent
from experiments.studies.direction_ablation import evaluate, table
from interp.errors import UserError
from tests.experiments.compose import run_of


def entry(value: float, width: float = 0.05, old: float = 0.5) -> dict[str, Any]:
    found = {"value": value, "low": value - width, "high": value + width, "from": old, "to": old + value, "n": 100}
    return found | {"statement": statement(found).value}


def yes_no(**changes: tuple[float, float]) -> dict[str, Any]:
    """Arms by the change of their accuracy on safe and on unsafe cases."""
    arms = {"baseline": (0.0, 0.0), **changes}
    return {
        "arms": {
            name: {
                "accuracy": {"over_safety": 0.2 + safe, "unsafe": 0.9 + unsafe},
                "intervals": {"over_safety": [0.1, 0.4], "unsafe": [0.8, 0.95]},
                "auroc": 0.6,
                "n": 100,
                "n_of": 100,
            }
            for name, (safe, unsafe) in arms.items()
        },
        "comparisons": {
            name: {"delta": {"over_safety": entry(safe), "unsafe": entry(unsafe)}}
            for name, (safe, unsafe) in changes.items()
        },
    }


@pytest.mark.parametrize(
    ("change", "meaning"),
    [
        ((0.3, -0.2), "What over-refuses is what protects"),
        ((0.3, 0.0), "Over-caution falls, and that harmful compliance changes is not shown"),
        ((0.3, 0.1), "Both errors fall"),
        ((0.0, -0.2), "That over-caution changes is not shown, and harmful compliance rises"),
        ((-0.15, 0.08), "The arm is more cautious than the model was"),
        ((-0.15, 0.0), "Over-caution rises, and that harmful compliance changes is not shown"),
        ((0.01, 0.01), "That over-caution changes is not shown, and that harmful compliance changes is not"),
    ],
)
def test_the_trade_is_named_by_intervals_that_exclude_0(change: tuple[float, float], meaning: str) -> None:
    found = evaluate(yes_no(cut=change, drawn=(0.0, 0.0)), controls={"cut": ["drawn"]})
    (said,) = found["summary"]
    assert said.startswith(f"cut: {meaning}")
    moved = meaning != "That over-caution changes is not shown, and that harmful compliance changes is not"
    assert ("no control is shown to do the same" in said) == moved
    shown = table(found["arms"]).records()[1]
    assert shown["over-caution"].startswith(f"{100 * (0.8 - change[0]):.1f} [")
    assert shown["harmful compliance"].startswith(f"{100 * (0.1 - change[1]):.1f} [")
    assert shown["over-caution, change"].startswith(percent(-change[0], sign=True))
    caution = found["arms"]["cut"]["caution"]
    assert caution["change"]["value"] == pytest.approx(-change[0])
    assert caution["change"]["low"] < caution["change"]["high"]
    assert caution["interval"] == pytest.approx([0.6, 0.9])


def test_a_control_that_does_the_same_takes_the_claim_away() -> None:
    metrics = yes_no(cut=(0.3, -0.2), drawn=(0.2, -0.1), idle=(0.0, 0.0))
    (second,) = evaluate(metrics, controls={"cut": ["drawn", "idle"]})["summary"]
    assert "so does drawn, so it is not owed to this direction alone" in second


def test_too_few_cases_and_small_changes_are_said_to_be_such() -> None:
    metrics = yes_no(cut=(0.0, 0.0))
    delta = metrics["comparisons"]["cut"]["delta"]
    delta["over_safety"] = entry(0.0, 0.01)
    delta["unsafe"] |= {"low": None, "high": None, "clusters": 4, "statement": "too few"}
    found = evaluate(metrics, controls={"cut": []})
    assert found["summary"][0] == (
        "cut: Over-caution does not change by more than 2 points, and there are too few cases to tell whether harmful "
        "compliance changes."
    )


def test_a_small_change_is_no_trade() -> None:
    metrics = yes_no(cut=(0.0, -0.2))
    metrics["comparisons"]["cut"]["delta"]["over_safety"] = entry(0.01, 0.005)
    (second,) = evaluate(metrics, controls={"cut": []})["summary"]
    assert second == "cut: Over-caution falls by less than 2 points, and harmful compliance rises."


def test_a_turned_change_is_turned_whole() -> None:
    metrics = yes_no(cut=(0.3, 0.0))
    entry_of = metrics["comparisons"]["cut"]["delta"]["over_safety"]
    entry_of |= {"statement": "rose", "low": 0.1, "high": 0.7, "clusters": 50, "bounds": (0.2, 0.4)}
    entry_of["decides"] = {"low": 0.05, "high": 0.75, "of": 3, "level": 0.99}
    change = evaluate(metrics, controls={"cut": []})["arms"]["cut"]["caution"]["change"]
    assert (change["low"], change["high"], change["statement"]) == (-0.7, -0.1, "fell")
    assert (change["bounds"], change["decides"]["low"], change["decides"]["high"]) == ([-0.4, -0.2], -0.75, -0.05)


def test_refusals_count_the_other_way() -> None:
    metrics = yes_no(cut=(0.0, 0.0))
    for name, benign, contrast in (("baseline", 0.4, 0.9), ("cut", 0.1, 0.5)):
        metrics["arms"][name]["accuracy"] = {"benign": 1 - benign, "contrast": contrast}
        metrics["arms"][name]["intervals"] = {"benign": [benign - 0.05, benign + 0.05], "contrast": [0.4, 0.6]}
    metrics["comparisons"]["cut"]["delta"] = {"benign": entry(-0.3), "contrast": entry(-0.4)}
    found = evaluate(metrics | {"kind": "refusal"}, controls={"cut": []})
    assert found["arms"]["cut"]["caution"]["rate"] == pytest.approx(0.1)
    assert found["arms"]["cut"]["caution"]["interval"] == pytest.approx([0.05, 0.15])
    assert found["arms"]["cut"]["caution"]["change"]["value"] == pytest.approx(-0.3)
    assert found["arms"]["cut"]["harm"]["rate"] == pytest.approx(0.5)
    assert found["arms"]["cut"]["harm"]["change"]["value"] == pytest.approx(0.4)
    assert (
        found["summary"][0]
        == "cut: What over-refuses is what protects: less over-caution is paid for with harmful compliance."
    )


def test_arms_that_are_not_there_are_named(tmp_path: Path) -> None:
    run = run_of("+exp=direction_ablation", f"output_root={tmp_path}", "task.controls={ablate_direction:[nobody]}")
    with pytest.raises(UserError, match="nobody"):
        run.task(run)


@pytest.mark.slow
def test_the_experiment_runs(tmp_path: Path) -> None:
    run = run_of("+exp=direction_ablation", f"output_root={tmp_path}", "limit=400", "draws=20")
    folder = run.task(run)
    for name in ("metrics.json", "report.html", "ablation.json", "learned/to_safe.safetensors"):
        assert (folder / name).exists(), name
