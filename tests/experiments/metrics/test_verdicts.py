"""The levels of yes/no benchmarks: the published conventions, what is missing, and the laws of metrics.md."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.metrics.outcomes import PUBLISHED
from experiments.metrics.results import evaluate
from experiments.runs.results_table import Results, Row
from interp.errors import UserError
from tests.experiments.refused import frame as refusals
from tests.experiments.synthetic_predictions import frame, from_margins, records, world


def run(table: pd.DataFrame, **options: Any) -> Results:
    return evaluate(table, "yes_no", **{"seed": 0, "draws": 300, **options}).results


def row(results: Results, quantity: str, arm: str = "baseline", **key: str) -> Row:
    found = results.get(arm, quantity, **key)  # type: ignore[arg-type]
    assert found is not None, (arm, quantity, key)
    return found


def notes(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {note["note"]: note for note in evaluate(table, "yes_no", seed=0, draws=20).design["notes"]}


def test_what_the_model_did_not_answer_is_wrong_and_what_never_reached_it_is_missing() -> None:
    table = frame("tttttooooo", {"baseline": "nne?b" + "yxiy?"})
    found = run(table)
    assert row(found, "false_alarm_rate").value == 0, "no verdict on a safe case is not a call of unsafe"
    assert (row(found, "answered").n, row(found, "answered").n_of) == (8, 10)
    assert row(found, "harmless_answered").bounds == (2 / 5, 4 / 5)
    assert row(found, "accuracy").bounds == pytest.approx(((2 / 5 + 2 / 5) / 2, (2 / 5 + 4 / 5) / 2))
    status = {one.group.partition("=")[2]: one.value for one in found.select(quantity="status")}
    assert status == {"answered": 6, "empty": 1, "provider_blocked": 1, "transport_failed": 1, "bad_image": 1}
    told = notes(table)
    assert told["missing answers"]["missing"] == 2
    assert (told["no verdict"]["silent"], told["no verdict"]["n"]) == (4, 8)


def test_published_is_the_substring_rule_beside_the_anchored_one() -> None:
    rows = records("too", {"baseline": "?y?"})
    rows[0]["response"], rows[2]["response"] = "I know", "her eyes"
    found = run(pd.DataFrame(rows))
    assert row(found, "accuracy").value == pytest.approx((0 + 1 / 2) / 2)
    assert row(found, "accuracy", rule=PUBLISHED).value == 1


def test_auroc_is_not_available_where_margins_are_missing_and_never_zero() -> None:
    table = frame("to", {"none": "ny", "some": "ny"}, {"some": [-1.0, np.nan]})
    found = run(table)
    assert [row(found, "auroc", arm).value for arm in ("none", "some")] == [None, None]
    told = [note["why"] for note in evaluate(table, "yes_no", seed=0, draws=20).design["notes"] if "why" in note]
    assert told == ["not available: this arm gives no margins",
                    "not available: it needs margins of both unsafe and safe cases"]  # fmt: skip
    partly = frame("too", {"baseline": "nyy"}, {"baseline": [-1.0, 1.0, np.nan]})
    assert row(run(partly), "auroc").value == 1
    assert notes(partly)["no auroc"]["why"] == "from the 2 of 3 cases that have a margin"


def test_a_constant_for_each_sentence_leaves_the_auroc_within_sentences() -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(0, 1, 80)
    prior = base + np.repeat(rng.normal(0, 5, 40), 2)
    seen = base + np.tile([-0.8, 0.8], 40)
    table = from_margins("to" * 40, {"baseline": base, "prior": prior, "sees": seen})
    found = run(table.assign(pair=table["case"].map(lambda case: f"p{int(case[1:]) // 2}")))
    assert row(found, "auroc_within", "prior", against="baseline").value == 0
    change = row(found, "auroc_within", "sees", against="baseline")
    assert (change.claim, change.n, (change.value or 0) > 0.2) == ("higher", 40, True)


def test_neither_the_order_of_the_lines_nor_a_second_run_changes_a_number() -> None:
    subsets, margins = world(60)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    shuffled = table.sample(frac=1, random_state=0)
    shuffled = pd.concat([shuffled[shuffled["arm"] == arm] for arm in ("baseline", "sees")])
    assert set(run(table)) == set(run(shuffled))
    assert set(run(table, seed=1)) != set(run(table))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="taoc", min_size=1, max_size=9).filter(lambda text: set(text) != {"c"}), st.data())
def test_any_outcome_gives_rates_inside_their_bounds(subsets: str, data: st.DataObject) -> None:
    letters = st.text(alphabet="yn?ebxi", min_size=len(subsets), max_size=len(subsets))
    arms = {name: data.draw(letters) for name in ("baseline", "vcd", "calibrated_shift")}
    number = st.sampled_from([-np.inf, -1.0, 0.0, 2.0, np.nan])
    margins = {"vcd": data.draw(st.lists(number, min_size=len(subsets), max_size=len(subsets)))}
    found = run(frame(subsets, arms, margins), draws=20)
    for one in found:
        averaged = one.quantity == "accuracy" and not one.subset  # of fewer subsets, if one has no answer
        if one.bounds and one.value is not None and not one.against and not averaged:
            assert one.bounds[0] - 1e-9 <= one.value <= one.bounds[1] + 1e-9, one


BROKEN = {
    ("no predictions", "yes_no"): lambda table: table.iloc[:0],
    ("lack margin, cluster", "yes_no"): lambda table: table.drop(columns=["margin", "cluster"]),
    ("verdict 'maybe' of case c0000", "yes_no"): lambda table: table.assign(verdict="maybe"),
    ("status 'lost' of case c0000", "yes_no"): lambda table: table.assign(status="lost"),
    ("subset 'other'", "yes_no"): lambda table: table.assign(subset="other"),
    ("case c0000 occurs twice in arm baseline", "yes_no"): lambda table: pd.concat([table, table.iloc[:1]]),
    ("gold 'yes' of case c0000 in subset typical", "yes_no"): lambda table: table.assign(gold="yes"),
    ("case c0000 differs between arms", "yes_no"):
        lambda table: pd.concat([table, table.assign(arm="vcd", cluster="other")]),
    ("pair p has the cases c0000, c0001, c0002", "yes_no"): lambda table: table.assign(pair="p"),
    ("lack cluster", "refusal"): lambda table: table.drop(columns=["cluster"]),
    ("subset 'typical'", "refusal"): lambda table: table.assign(subset="typical"),
    ("gold 'refuse' of case c0000 in subset benign", "refusal"): lambda table: table.assign(gold="refuse"),
}  # fmt: skip
SOUND = {"yes_no": frame("tto", {"baseline": "nny"}), "refusal": refusals("bbc", {"baseline": "rcr"})}


@pytest.mark.parametrize(("message", "kind"), BROKEN)
def test_records_that_cannot_be_counted_are_refused_by_name(message: str, kind: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(BROKEN[message, kind](SOUND[kind]), kind, seed=0, draws=300)
