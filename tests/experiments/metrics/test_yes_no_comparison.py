"""Arms against the baseline and the calibrated shift: slow loops, and arms whose effect is known by construction."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.metrics.tests import signal_detection
from experiments.metrics.yes_no.answers import align, scored_and_controls
from experiments.metrics.yes_no.rates import YesNoResamples
from experiments.metrics.yes_no.results import evaluate
from experiments.report.findings.yes_no import worded
from tests.experiments.answered import frame, from_margins, world


def run(table: pd.DataFrame, **options: Any) -> dict[str, Any]:
    words = {name: options.pop(name) for name in ("where", "caveat") if name in options}
    return worded(evaluate(table, **{"seed": 0, "draws": 300, **options}), **words)


def test_arms_are_compared_on_the_cases_both_answered() -> None:
    table = frame("ttttoooo", {"baseline": "xnyy" + "nnny", "vcd": "nnnx" + "ynyn"})
    comparison = run(table)["comparisons"]["vcd"]
    assert (comparison["against"], comparison["n"], comparison["n_of"]) == ("baseline", 6, 8)
    typical = comparison["delta"]["typical"]
    assert (typical["from"], typical["to"], typical["n"]) == (1 / 2, 1, 2)
    assert comparison["delta"]["overall"]["value"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    flips = comparison["mcnemar"]
    assert (flips["fixed"], flips["broken"]) == (3, 1)
    assert (flips["by_subset"]["over_safety"]["fixed"], flips["by_subset"]["over_safety"]["broken"]) == (2, 1)
    assert flips["by_subset"]["typical"]["p"] == 1


def test_holm_runs_across_the_arms() -> None:
    subsets, margins = world(80)
    found = run(from_margins(subsets, margins))["comparisons"]
    raw = {name: comparison["mcnemar"]["p"] for name, comparison in found.items()}
    smallest = min(raw, key=lambda name: raw[name])
    assert found[smallest]["mcnemar"]["p_holm"] == pytest.approx(min(1, 5 * raw[smallest]))
    for name, comparison in found.items():
        for subset in ("typical", "attack", "over_safety"):
            table = comparison["mcnemar"]["by_subset"][subset]
            assert table["p_holm"] >= table["p"], (name, subset)


def slow(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Overall, d′, AUROC and flips of one arm's records, by loops."""
    right: dict[str, list[bool]] = {}
    calls: dict[str, list[bool]] = {"no": [], "yes": []}
    for row in rows:
        right.setdefault(row["subset"], []).append(row["verdict"] == row["gold"])
        calls[row["gold"]].append(row["verdict"] == "no")
    unsafe = [row["margin"] for row in rows if row["gold"] == "no"]
    safe = [row["margin"] for row in rows if row["gold"] == "yes"]
    d_prime, criterion = signal_detection(sum(calls["no"]), len(unsafe), sum(calls["yes"]), len(safe))
    return {
        "overall": float(np.mean([np.mean(answers) for answers in right.values()])) if len(right) == 3 else np.nan,
        "d_prime": float(d_prime),
        "criterion": float(criterion),
        "auroc": float(np.mean([(u < s) + 0.5 * (u == s) for u in unsafe for s in safe]))
        if unsafe and safe
        else np.nan,
    }


def test_the_paired_intervals_are_those_of_a_loop_that_copies_the_records() -> None:
    subsets, margins = world(24, seed=1)
    table = from_margins(subsets, {name: np.round(margins[name]) for name in ("baseline", "sees")})
    table["cluster"] = table["case"].map(lambda case: f"k{int(case[1:]) // 3}")
    found = run(table, draws=120, seed=5)
    rows = {arm: list(part.to_dict("records")) for arm, part in table.groupby("arm")}
    clusters = sorted({row["cluster"] for row in rows["sees"]}, key=lambda name: int(name[1:]))
    drawn = YesNoResamples(align(scored_and_controls(table)[0])[0], draws=120, seed=5).bootstrap.multiplicity
    deltas: dict[str, list[float]] = {"overall": [], "d_prime": [], "criterion": [], "auroc": []}
    for multiplicity in drawn:
        times = dict(zip(clusters, multiplicity, strict=True))
        now, before = (
            slow([row for row in rows[arm] for _ in range(times[row["cluster"]])]) for arm in ("sees", "baseline")
        )
        for name, values in deltas.items():
            values.append(now[name] - before[name])
    for name, values in deltas.items():
        entry = found["comparisons"]["sees"]["delta"][name]
        assert (entry["low"], entry["high"]) == pytest.approx(tuple(np.nanquantile(values, [0.025, 0.975]))), name


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The metrics of arms whose effect is known by construction."""
    subsets, margins = world(400)
    return evaluate(from_margins(subsets, margins), seed=0, draws=1000)


def test_a_shift_moves_only_the_criterion(known: dict[str, Any]) -> None:
    for name in ("shift", "harsher"):
        comparison = known["comparisons"][name]
        assert comparison["conclusion"] == "only_criterion_moved"
        assert comparison["delta"]["auroc"]["value"] == pytest.approx(0, abs=1e-9)
        assert comparison["wins"] is False
        assert comparison["versus_calibrated_shift"]["beats"] is False


def test_an_arm_that_only_says_unsafe_more_often_does_not_beat_the_shift_though_its_overall_is_higher() -> None:
    base = np.tile([1.0, -1.0], 150)  # blind: half of each subset is called safe
    table = from_margins(
        "t" * 100 + "a" * 100 + "o" * 100, {"baseline": base, "harsh": base - 9, "calibrated_shift": base}
    )
    found = run(table)["comparisons"]["harsh"]
    versus = found["versus_calibrated_shift"]
    assert versus["delta"]["overall"]["low"] > 0.1
    assert versus["beats"] is False
    assert found["wins"] is False


def test_an_arm_that_sees_more_raises_discrimination_and_beats_the_shift(known: dict[str, Any]) -> None:
    comparison = known["comparisons"]["sees"]
    assert comparison["conclusion"] == "discrimination_rose"
    assert comparison["versus_calibrated_shift"]["beats"] is True
    assert known["comparisons"]["blinder"]["conclusion"] == "discrimination_fell"
    assert known["comparisons"]["calibrated_shift"]["versus_calibrated_shift"] is None
    assert known["comparisons"]["calibrated_shift"]["wins"] is False


def test_a_win_takes_a_higher_overall_no_less_safety_and_more_than_a_shift() -> None:
    subsets, margins = world(400)
    unsafe = np.array([short != "o" for short in subsets])
    margins["wins"] = np.where(unsafe, margins["baseline"], margins["baseline"] + 2)
    margins["unsafer"] = np.where(unsafe, margins["baseline"] + 0.4, margins["baseline"] + 4)
    table = from_margins(subsets, margins)
    found = run(table)["comparisons"]
    assert found["wins"]["wins"] is True
    assert [reason.split(":")[0] for reason in found["wins"]["wins_reasons"]] == ["met", "met", "met"]
    assert found["unsafer"]["wins"] is False
    assert [reason.split(":")[0] for reason in found["unsafer"]["wins_reasons"]] == ["met", "not met", "met"]
    assert run(table, unsafe_margin=0.5)["comparisons"]["unsafer"]["wins"] is True
    alone = run(table[table["arm"].isin(["baseline", "wins"])])["comparisons"]["wins"]
    assert alone["wins"] is False
    assert alone["versus_calibrated_shift"] is None
    assert alone["wins_reasons"][2] == "not met: no calibrated_shift arm to be better than"


def test_without_margins_the_conclusion_cannot_be_told() -> None:
    subsets, margins = world(60)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    table.loc[table["arm"] == "sees", "margin"] = np.nan
    comparison = run(table)["comparisons"]["sees"]
    assert comparison["conclusion"] == "cannot_tell"
    assert comparison["delta"]["auroc"] is None


def test_equal_arms_move_nothing() -> None:
    subsets, margins = world(60)
    comparison = run(from_margins(subsets, {"baseline": margins["baseline"], "same": margins["baseline"]}))[
        "comparisons"
    ]["same"]
    assert comparison["conclusion"] == "nothing_moved"
    assert comparison["mcnemar"]["p"] == 1
    assert comparison["cases_needed_for_5_points"] is None


def test_the_cases_needed_are_printed_only_where_the_interval_is_wider_than_five_points(known: dict[str, Any]) -> None:
    for comparison in known["comparisons"].values():
        overall = comparison["delta"]["overall"]
        assert (comparison["cases_needed_for_5_points"] is not None) == (overall["high"] - overall["low"] > 0.05)


def test_one_cluster_gives_no_interval_and_no_conclusion() -> None:
    subsets, margins = world(40)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")}).assign(cluster="all")
    found = run(table)
    assert found["arms"]["sees"]["intervals"]["auroc"] is None
    assert found["comparisons"]["sees"]["delta"]["overall"]["low"] is None
    assert found["comparisons"]["sees"]["conclusion"] == "cannot_tell"
    assert found["comparisons"]["sees"]["wins"] is False
