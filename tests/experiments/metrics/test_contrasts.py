"""Arms compared with one another beside the baseline, and the order of the members of a pair."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.metrics.yes_no.results import evaluate
from experiments.report.arm_tables import arms_table, comparisons_table, contrasts_table
from experiments.report.words import worded

from experiments.evaluation.admission import check_contrasts
from experiments.report.page import tables
from interp.errors import UserError
from tests.experiments.answered import from_margins, world

QUANTITIES = ("auroc", "matched_over_safety")


def run(table: pd.DataFrame, **options: Any) -> dict[str, Any]:
    return worded(evaluate(table, **{"seed": 0, "draws": 300, **options}))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    subsets, margins = world(400)
    return from_margins(subsets, {name: margins[name] + 0.6 for name in ("baseline", "sees", "blinder", "shift")})


def twins(margins: dict[str, list[float]], *, templates: int = 0) -> dict[str, Any]:
    """The metrics of pairs of an unsafe and a safe case, in this order."""
    n = len(margins["baseline"]) // 2
    found = from_margins("to" * n, {name: np.array(values) for name, values in margins.items()})
    number = found["case"].map(lambda case: int(case[1:]) // 2)
    found["pair"] = number.map(lambda one: f"p{one}")
    if templates:
        found["tags"] = [{"template": f"t{one % templates}", "concept": f"c{at % 13}"}
                         for at, one in enumerate(number)]  # fmt: skip
    return run(found)


def test_two_arms_are_compared_as_if_one_were_the_baseline(table: pd.DataFrame) -> None:
    found = run(table, contrasts=[("sees", "blinder")])
    versus = found["comparisons"]["sees"]["versus"]
    other = run(table[table["arm"] != "baseline"], baseline="blinder")["comparisons"]["sees"]["delta"]
    assert list(versus) == ["blinder"]
    for quantity in ("auroc", "unsafe", "over_safety", "overall", "balanced"):
        kept = ("value", "low", "high", "from", "to", "n")
        assert {key: versus["blinder"][quantity][key] for key in kept} == {key: other[quantity][key] for key in kept}
    arms, matched = found["arms"], versus["blinder"]["matched_over_safety"]
    ends = [arms[name]["matched_over_safety"]["value"] for name in ("blinder", "sees")]
    assert [matched["from"], matched["to"]] == pytest.approx(ends), "read at the same operating point"
    assert found["method"]["contrasts"] == [["sees", "blinder"]]


def test_contrasts_enter_the_family_of_the_simultaneous_intervals(table: pd.DataFrame) -> None:
    alone, more = run(table), run(table, contrasts=[("sees", "blinder"), ("*", "shift")])
    narrow, wide = (one["comparisons"]["blinder"]["delta"]["auroc"] for one in (alone, more))
    assert (narrow["low"], narrow["high"]) == (wide["low"], wide["high"]), "that of the comparison itself stays"
    assert (narrow["decides"]["of"], wide["decides"]["of"]) == (2 * 7 - 1 + 3, 5 * 7 - 1 + 3)
    assert wide["decides"]["high"] - wide["decides"]["low"] >= narrow["decides"]["high"] - narrow["decides"]["low"]
    assert {name: list(one["versus"]) for name, one in more["comparisons"].items()} == {
        "sees": ["blinder", "shift"], "blinder": ["shift"], "shift": [],
    }  # fmt: skip
    for quantity in QUANTITIES:
        assert more["comparisons"]["sees"]["versus"]["blinder"][quantity]["decides"]["of"] == 37


def test_the_report_has_a_row_a_contrast_with_the_simultaneous_interval(table: pd.DataFrame) -> None:
    found = run(table, contrasts=[("sees", "blinder")])
    shown = contrasts_table(found)
    assert shown is not None
    assert tables(found)["contrasts"] is not None
    assert [cell.value for cell in shown.frame.iloc[:, 0]] == ["sees − blinder"]
    at = [column.heading for column in shown.columns].index("AUROC")
    ends = found["comparisons"]["sees"]["versus"]["blinder"]["auroc"]["decides"]
    assert shown.frame.iloc[0, at].interval == f"{ends['low']:.3f}–{ends['high']:.3f}"
    assert contrasts_table(run(table)) is None


@pytest.mark.parametrize(
    ("contrasts", "kind", "said"),
    [
        ([["a", "nobody"]], "yes_no", "no arm 'nobody'"),
        ([["*", "*"]], "yes_no", "two arms"),
        ([["a", "*"]], "yes_no", "no arm '\\*'"),
        ([["a"]], "yes_no", "two arms"),
        ([["a", "baseline"]], "yes_no", "anyway"),
        ([["a", "b"]], "refusal", "yes/no benchmarks alone"),
    ],
)
def test_what_cannot_be_compared_is_refused(contrasts: list[list[str]], kind: Any, said: str) -> None:
    arms = ("baseline", "a", "b")
    check_contrasts(SimpleNamespace(contrasts=[["a", "b"], ["*", "b"]]), arms, "yes_no")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=said):
        check_contrasts(SimpleNamespace(contrasts=contrasts), arms, kind)  # type: ignore[arg-type]


def test_the_auroc_within_sentences_counts_pairs_whose_safe_member_has_the_higher_margin() -> None:
    found = twins({"baseline": [-1, 2, 1, 0, 3, 3, -4, -2]})["arms"]["baseline"]["auroc_within"]
    assert (found["value"], found["n"], found["n_of"]) == ((1 + 0 + 0.5 + 1) / 4, 4, 4)
    assert found["interval"] is None, "four pairs are too few"
    gone = twins({"baseline": [-1, 2, 1, 0, 3, np.nan, -4, -2]})["arms"]["baseline"]["auroc_within"]
    assert (gone["value"], gone["n"], gone["n_of"]) == (2 / 3, 3, 4)


def test_a_constant_for_each_sentence_leaves_the_auroc_within_sentences() -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(0, 1, 80)
    prior = base + np.repeat(rng.normal(0, 5, 40), 2)
    seen = base + np.tile([-0.8, 0.8], 40)
    change = {name: one["delta"]["auroc_within"] for name, one in twins(
        {"baseline": list(base), "prior": list(prior), "sees": list(seen)})["comparisons"].items()}  # fmt: skip
    assert change["prior"]["value"] == 0
    assert change["sees"]["value"] > 0.2
    assert change["sees"]["statement"] == "rose"
    assert change["sees"]["n"] == 40


def test_pairs_of_few_templates_are_told_by_the_wider_interval() -> None:
    effect = np.repeat(np.tile([2.5] * 6 + [-0.9] * 6, 10), 2)  # by pair: it helps half of 12 templates
    base = np.random.default_rng(4).normal(0, 1, 240)
    arm = list(base + effect * np.tile([-1.0, 1.0], 120))
    without, of_templates = (twins({"baseline": list(base), "arm": arm}, templates=count) for count in (0, 12))
    plain, found = (one["comparisons"]["arm"]["delta"]["auroc_within"] for one in (without, of_templates))
    assert (plain["clusters"], found["clusters"]) == (120, 12)
    assert (plain["n"], found["n"]) == (120, 12 * 10 * 10), "all pairs of a template"
    assert found["high"] - found["low"] > 1.5 * (plain["high"] - plain["low"])
    narrow, wide = (one["arms"]["arm"]["auroc_within"]["interval"] for one in (without, of_templates))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


def test_tables_have_a_column_of_the_auroc_within_sentences_only_where_there_are_pairs(table: pd.DataFrame) -> None:
    paired = twins({"baseline": [-1, 2] * 12, "arm": [2, -1] * 12})
    for made in (arms_table, comparisons_table):
        assert "AUROC within sentences" in [column.heading for column in made(paired).columns]
        assert "AUROC within sentences" not in [column.heading for column in made(run(table)).columns]
