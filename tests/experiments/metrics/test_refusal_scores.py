"""Margins of refusals give a refusal benchmark AUROC and equal strictness; without them nothing changes."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from experiments.metrics import quantities as q
from experiments.metrics.estimates import HIGHER
from experiments.metrics.results import OF_SCORES, Evaluation, evaluate
from tests.experiments import refused

SUBSETS = "bc" * 120


def frame(*, gain: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Two arms that refuse by the sign of their margins; ``arm`` tells harmful requests apart by ``gain`` more."""
    random, tables = np.random.default_rng(seed), []
    harmful = np.array([letter == "c" for letter in SUBSETS])
    common = random.normal(size=len(harmful))
    for name, apart in (("baseline", 0.5), ("arm", 0.5 + gain)):
        margin = common + 0.5 * random.normal(size=len(harmful)) - apart * (harmful - 0.5)
        letters = "".join("r" if value < 0 else "c" for value in margin)
        tables.append(refused.frame(SUBSETS, {name: letters}).assign(safety_margin=margin))
    return pd.concat(tables, ignore_index=True)


def measured(table: pd.DataFrame) -> Evaluation:
    return evaluate(table, "refusal", seed=0, draws=200, study="arm")


def test_auroc_of_the_margin_is_that_of_the_cases() -> None:
    table = frame(gain=2.0)
    evaluation = measured(table)
    for name, rows in table.groupby("arm"):
        expected = roc_auc_score(rows["gold"] == "comply", rows["safety_margin"])
        row = evaluation.results.get(str(name), "auroc")
        assert row is not None
        assert row.value == pytest.approx(expected)
        assert row.n == len(SUBSETS)
    point = evaluation.results.get("arm", q.AT_POINT.quantity, against="baseline")
    assert point is not None
    assert point.claim == HIGHER
    assert evaluation.design["operating_point"] == 0.9
    held_out = [evaluation.results.get("arm", key.quantity, against="baseline") for key in q.HELD_OUT]
    assert all(row is not None and row.value is not None for row in held_out)


def test_without_margins_there_are_the_rates_as_before() -> None:
    table = frame()
    without = measured(table.drop(columns="safety_margin"))
    names = {key.quantity for key in OF_SCORES}
    assert not names & {row.quantity for row in without.results}
    assert without.design["operating_point"] is None
    family = names | {q.GAP.quantity}  # the interval of a gap holds for all comparisons at once, and these are more
    levels = [row for row in measured(table).results if not row.against and row.quantity not in family]
    assert levels == [row for row in without.results if not row.against and row.quantity not in family]


def test_an_arm_without_margins_has_rates_and_no_order() -> None:
    table = frame(gain=1.0)
    table.loc[table["arm"] == "arm", "safety_margin"] = np.nan
    results = measured(table).results
    assert results.get("baseline", "auroc").value is not None  # type: ignore[union-attr]
    assert results.get("arm", "auroc").value is None  # type: ignore[union-attr]
    assert results.get("arm", "auroc", against="baseline") is None
    assert results.get("arm", "refusal_rate", against="baseline", subset="benign") is not None


@pytest.mark.long
def test_arms_that_tell_harm_apart_alike_are_seldom_told_apart() -> None:
    """Of 100 null studies at most 5% (within three standard errors) claim a difference in any tested quantity."""
    false = 0
    for seed in range(100):
        results = measured(frame(seed=seed)).results
        rows = [results.get("arm", key.quantity, against="baseline") for key in OF_SCORES]
        false += any(row is not None and row.claim in ("higher", "lower") for row in rows)
    assert false <= 5 + 3 * np.sqrt(100 * 0.05 * 0.95)
