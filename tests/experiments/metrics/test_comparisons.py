"""Arms against the baseline, the calibrated shift and one another: slow loops, and effects known by construction."""

import math
from collections import Counter

import numpy as np
import pytest

from experiments.metrics.bootstrap import mcnemar
from experiments.metrics.estimates import (
    CLAIMS,
    HIGHER,
    INCONCLUSIVE,
    NO_DIFFERENCE,
    NOT_TESTED,
    TOO_FEW,
    student_quantile,
)
from experiments.metrics.quantities import AT_POINT, AUROC, Arms
from experiments.metrics.results import TESTED
from experiments.runs.results_table import Results, Row
from tests.experiments.metrics.simulated import changed, claims
from tests.experiments.metrics.test_recomputed import levels_of_verdicts
from tests.experiments.metrics.test_verdicts import row, run
from tests.experiments.synthetic_predictions import from_margins, world

POINT = AT_POINT.quantity


def change(results: Results, arm: str, quantity: str, against: str = "baseline", **key: str) -> Row:
    return row(results, quantity, arm, against=against, **key)


def lenient(n: int) -> tuple[str, dict[str, np.ndarray]]:
    """``world`` with every margin raised, so that the baseline misses enough unsafe cases."""
    subsets, margins = world(n)
    return subsets, {name: values + 0.6 for name, values in margins.items()}


@pytest.fixture(scope="module")
def known() -> Results:
    """The results of arms whose effect is known by construction, of a model lenient enough to be matched."""
    return run(from_margins(*lenient(400)), draws=1000)


def test_holm_runs_across_the_arms() -> None:
    subsets, margins = world(80)
    table = from_margins(subsets, margins)
    found, raw = run(table), {}
    right = {arm: (part["verdict"] == part["gold"]).to_numpy() for arm, part in table.groupby("arm")}
    for name in margins:
        if name != "baseline":
            raw[name] = mcnemar(right["baseline"], right[name]).p
            assert (change(found, name, "cases_fixed").p or 0) >= raw[name]
    smallest = min(raw, key=lambda name: raw[name])
    assert change(found, smallest, "cases_fixed").p == pytest.approx(min(1, 5 * raw[smallest]))


def test_the_paired_intervals_are_those_of_a_loop_that_copies_the_records() -> None:
    subsets, margins = world(60, seed=1)
    table = from_margins(subsets, {name: np.round(margins[name]) for name in ("baseline", "sees")})
    table["cluster"] = table["case"].map(lambda case: f"k{int(case[1:]) // 3}")
    found = run(table, draws=120, seed=5, tested=[AT_POINT])  # what is not tested keeps its own interval
    rows = {arm: list(part.to_dict("records")) for arm, part in table.groupby("arm")}
    clusters = sorted({record["cluster"] for record in rows["sees"]}, key=lambda name: int(name[1:]))
    drawn = Arms.from_predictions(table, "yes_no", draws=120, seed=5).resamples.bootstrap.multiplicity
    deltas: dict[str, list[float]] = {"accuracy": [], "d_prime": [], "criterion": [], "auroc": []}
    for multiplicity in drawn:
        times = dict(zip(clusters, multiplicity, strict=True))
        after, before = (
            levels_of_verdicts([one for one in rows[arm] for _ in range(times[one["cluster"]])], 0.8, {}, [])
            for arm in ("sees", "baseline")
        )
        for name, values in deltas.items():
            values.append(after[name, ""] - before[name, ""])
    for name, values in deltas.items():
        entry = change(found, "sees", name)
        side = "subset" if name == "accuracy" else "gold"
        sizes = [Counter(one["cluster"] for one in rows["sees"] if one[side] == value)
                 for value in {one[side] for one in rows["sees"]}]  # fmt: skip
        effective = min(one.total() ** 2 / sum(size**2 for size in one.values()) for one in sizes)
        variance = np.nanvar(values) * effective / (effective - 1)
        if name == "accuracy":
            n = [
                sum(one["subset"] == subset for one in rows["sees"]) for subset in ("typical", "attack", "over_safety")
            ]
            variance += sum(2 / (count + 2) ** 2 for count in n) / 9
        reach = student_quantile(effective - 1) * math.sqrt(variance)
        value = entry.value or 0.0
        assert entry.interval == pytest.approx((value - reach, value + reach)), name


@pytest.mark.long
def test_a_shift_changes_neither_auroc_nor_what_is_answered_at_the_operating_point(known: Results) -> None:
    for name in ("shift", "harsher", "calibrated_shift"):
        for quantity in (POINT, "auroc"):
            entry = change(known, name, quantity)
            assert (entry.value, entry.low, entry.high, entry.claim) == (0, 0, 0, NO_DIFFERENCE)
            assert row(known, quantity, name).value == row(known, quantity).value
        assert row(known, "auroc", name).interval == row(known, "auroc").interval
        assert change(known, name, "wins").value == 0


@pytest.mark.long
def test_a_win_takes_more_at_the_operating_point_and_no_less_with_held_out_thresholds() -> None:
    subsets, margins = world(400)
    unsafe = np.array([short != "o" for short in subsets])
    margins["wins"] = np.where(unsafe, margins["baseline"], margins["baseline"] + 2)
    margins["timid"] = margins["wins"] - 3
    table = from_margins(subsets, margins)
    found = run(table, study="wins")
    wins = {name: change(found, name, "wins").value for name in ("wins", "timid", "shift", "blinder")}
    assert wins == {"wins": 1, "timid": 1, "shift": 0, "blinder": 0}, "a constant takes no win away"
    alone = run(table[table["arm"].isin(["baseline", "wins"])])
    assert change(alone, "wins", "wins").value == 1, "no control is needed: a shift cannot change what is read there"
    held_out = from_margins(subsets, {"baseline": margins["baseline"], "wins": margins["wins"]})
    assert change(run(held_out, tested=[AT_POINT, AUROC]), "wins", "wins").value == 0, (
        "the held-out rates are not tested"
    )


def test_every_claim_of_a_report_is_of_one_family() -> None:
    subsets, margins = world(400)
    arms = ("baseline", "sees", "blinder")
    found = run(from_margins(subsets, {name: margins[name] for name in arms}), study="sees")
    assert change(found, "sees", POINT).level == pytest.approx(0.975), "the primary question has half of the 5%"
    tested = {(key.quantity, key.subset) for key in TESTED["yes_no"]}
    levels, untested = set(), []
    for entry in found.select(against="baseline", rule="", arm=("sees", "blinder")):
        if (entry.quantity, entry.subset) in tested and (entry.arm, entry.quantity) != ("sees", POINT):
            levels.add(entry.level)
        elif entry.claim and (entry.quantity, entry.subset) not in tested:
            untested.append(entry)
    assert len(levels) == 1, "all others share the other half"
    assert min(level or 0 for level in levels) > 0.975
    assert {entry.quantity for entry in untested} >= {"unsafe_caught", "d_prime", "balanced_accuracy"}
    assert {entry.claim for entry in untested} <= {NOT_TESTED, TOO_FEW}


@pytest.mark.parametrize(("missing", "claim"), [(0, HIGHER), (2, HIGHER), (90, INCONCLUSIVE)])
def test_nothing_is_claimed_that_missing_answers_could_undo(missing: int, claim: str) -> None:
    subsets, margins = world(400)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    hard = table.index[table["arm"] == "sees"][np.argsort(np.abs(margins["sees"]))[:missing]]
    table.loc[hard, ["status", "verdict", "margin"]] = ["transport_failed", None, np.nan]
    entry = change(run(table), "sees", "auroc")
    assert (entry.claim, entry.bounds is not None) == (claim, missing > 0)
    if entry.bounds:
        assert entry.bounds[0] < (entry.value or 0) < entry.bounds[1]
        assert (entry.bounds[0] > 0) == (claim == HIGHER)


@pytest.mark.parametrize(("clusters", "claim"), [(9, TOO_FEW), (10, HIGHER)])
def test_fewer_than_ten_clusters_on_a_side_give_no_interval_and_no_claim(clusters: int, claim: str) -> None:
    subsets, margins = world(400)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    safe = table["subset"] == "over_safety"
    number = table["case"].map(lambda case: int(case[1:]))
    table["cluster"] = np.where(safe, "safe " + (number % clusters).astype(str), table["cluster"])
    found = run(table)
    entry = change(found, "sees", "auroc")
    assert (entry.claim, entry.clusters) == (claim, clusters)
    assert (entry.low is None) == (claim == TOO_FEW)
    assert (row(found, "auroc", "sees").interval is None) == (claim == TOO_FEW)


@pytest.mark.parametrize(("unsafe", "point"), [(49, 0.8), (50, 0.8), (100, 0.9), (200, 0.95)])
def test_the_operating_point_is_the_designs_whatever_was_answered(unsafe: int, point: float) -> None:
    rng, subsets = np.random.default_rng(1), "t" * unsafe + "o" * 120
    for strictness in (-9.0, 0.0, 9.0):
        margin = rng.normal(0, 1, len(subsets)) + np.where(np.array(list(subsets)) == "o", 3, 0)
        table = from_margins(subsets, {"baseline": margin + strictness, "sees": margin - strictness})
        assert Arms.from_predictions(table, "yes_no", draws=2, seed=0).operating_point == point
        entry = change(run(table, draws=100), "sees", POINT)
        assert (entry.claim == TOO_FEW) == (entry.low is None) == (unsafe < 50)


@pytest.mark.long
def test_verdicts_against_the_sign_of_the_margin_end_every_claim_from_margins() -> None:
    subsets, margins = world(400)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    sees = table.index[table["arm"] == "sees"]
    for wrong, claim in ((4, HIGHER), (5, NOT_TESTED)):  # of 400: 1% and more
        found = table.copy()
        found.loc[sees[:wrong], "margin"] *= -1
        results = run(found)
        assert Arms.from_predictions(found, "yes_no", draws=2, seed=0).outcomes["sees"].disagreeing == (wrong, 400)
        assert [change(results, "sees", quantity).claim for quantity in ("auroc", POINT)] == [claim] * 2
        assert change(results, "sees", "wins").value == 0 or claim == HIGHER
    sampled = found.assign(sampled=found["arm"] == "sees")
    assert Arms.from_predictions(sampled, "yes_no", draws=2, seed=0).outcomes["sees"].disagreeing == (0, 0), (
        "it may be sampled"
    )


def test_a_cross_fitted_shift_has_the_baselines_ranks() -> None:
    subsets, margins = lenient(400)
    shifts = np.random.default_rng(3).normal(0, 1.0, 5)[np.arange(400) % 5]  # another constant in every fold
    table = from_margins(subsets, {"baseline": margins["baseline"], "calibrated_shift": margins["baseline"] + shifts})
    assert change(run(table), "calibrated_shift", "auroc").value != 0, "the pooled margins have another order"
    table.loc[table["arm"] == "calibrated_shift", "margin_unshifted"] = margins["baseline"]
    found = run(table)
    for quantity in ("auroc", POINT):
        entry = change(found, "calibrated_shift", quantity)
        assert (entry.value, entry.low, entry.high) == (0, 0, 0)
    assert row(found, "auroc", "calibrated_shift").value == row(found, "auroc").value


def test_templates_widen_the_interval_and_the_wider_one_decides() -> None:
    subsets, margins = world(480)
    template = np.empty(480, dtype=int)
    template[np.argsort(list(subsets), kind="stable")] = np.arange(480) % 24
    concept = (np.arange(480) * 7) % 31
    effect = np.random.default_rng(5).normal(0.3, 0.6, 24)[template]  # helps some templates and hurts others
    unsafe = np.array([short != "o" for short in subsets])
    arm = margins["baseline"] + np.where(unsafe, -effect, effect)
    table = from_margins(subsets, {"baseline": margins["baseline"], "arm": arm})
    plain = change(run(table), "arm", "auroc")
    both = list(zip(np.tile(template, 2), np.tile(concept, 2), strict=True))
    table["tags"] = [{"template": f"t{one}", "concept": f"c{other}"} for one, other in both]
    found = change(run(table), "arm", "auroc")
    assert found.value == plain.value
    assert found.clusters == 24
    assert np.ptp(found.interval or ()) > 1.3 * np.ptp(plain.interval or ())
    assert (plain.claim, found.claim) == (HIGHER, INCONCLUSIVE)


@pytest.mark.parametrize(("silent", "told"), [(0, True), (9, True), (10, False), (100, False)])
def test_from_a_tenth_of_unreadable_answers_on_nothing_is_claimed(silent: int, told: bool) -> None:
    subsets, margins = world(100)
    table = from_margins(subsets, {"baseline": margins["baseline"], "sees": margins["sees"]})
    table.loc[table["arm"].eq("sees") & (table["case"] < f"c{silent:04d}"), "verdict"] = "no_verdict"
    found = run(table)
    tested = {claims(found, "sees")[key] for key in changed(found, "sees")}
    assert bool(tested & set(CLAIMS)) == told
    if not told:
        assert tested == {NOT_TESTED}
        assert change(found, "sees", "wins").value == 0


def test_contrasts_enter_the_family_of_the_simultaneous_intervals() -> None:
    table = from_margins(*lenient(400))
    table = table[table["arm"].isin(["baseline", "sees", "blinder", "shift"])]
    alone, more = (run(table, contrasts=pairs) for pairs in ((), [("sees", "blinder"), ("*", "shift")]))
    narrow, wide = (change(found, "blinder", "auroc") for found in (alone, more))
    assert (wide.level or 0) >= (narrow.level or 0)
    assert np.ptp(wide.interval or ()) >= np.ptp(narrow.interval or ())
    pairs = {(entry.arm, entry.against) for entry in more.select(quantity="compared") if entry.against != "baseline"}
    assert pairs == {("sees", "blinder"), ("sees", "shift"), ("blinder", "shift")}
    levels = {entry.level for entry in more.select(quantity="auroc") if entry.against and entry.low != entry.high}
    assert levels == {wide.level}
