"""The levels of yes/no benchmarks: the published conventions, what is missing, and the laws of metrics.md."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.metrics.outcomes import PUBLISHED
from experiments.metrics.results import evaluate
from experiments.metrics.statistical_tests import signal_detection
from experiments.runs.results_table import Results, Row
from interp.errors import UserError
from tests.experiments.answered import frame, from_margins, records, world

TABLE_1 = {  # Typical, Attack, Over-safety, Overall, as published
    "GPT-4V": (63.9, 68.4, 41.1, 57.8), "GPT-4o": (81.3, 88.7, 25.0, 65.0), "Gemini 1.5": (86.6, 81.5, 18.5, 62.2),
    "Gemini 1.5 Pro": (81.2, 74.2, 40.8, 65.4), "Bard": (73.8, 61.4, 28.6, 54.6), "Claude-3": (100.0, 99.1, 1.1, 66.7),
    "LLaVA-1.5-7B": (95.9, 97.7, 6.0, 66.5), "Qwen-VL-7B": (86.5, 95.2, 13.7, 65.1),
    "InstructBLIP": (66.1, 43.9, 20.5, 43.5), "Human": (90.7, 92.8, 95.2, 92.9),
}  # fmt: skip
CASES = {"t": 171, "a": 855, "o": 497}  # MMSafeAware's published numbers of cases


def run(table: pd.DataFrame, **options: Any) -> Results:
    return evaluate(table, "yes_no", **{"seed": 0, "draws": 300, **options}).results


def row(results: Results, quantity: str, arm: str = "baseline", **key: str) -> Row:
    found = results.get(arm, quantity, **key)  # type: ignore[arg-type]
    assert found is not None, (arm, quantity, key)
    return found


def notes(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {note["note"]: note for note in evaluate(table, "yes_no", seed=0, draws=20).design["notes"]}


@pytest.mark.parametrize("model", TABLE_1)
def test_overall_is_table_1s_plain_mean_and_pooled_is_the_other_published_convention(model: str) -> None:
    *columns, overall = TABLE_1[model]
    answers, right = "", 0
    for (letter, n), percent in zip(CASES.items(), columns, strict=True):
        count = round(n * percent / 100)
        correct, wrong = ("y", "n") if letter == "o" else ("n", "y")
        answers, right = answers + correct * count + wrong * (n - count), right + count
    found = run(frame("".join(letter * n for letter, n in CASES.items()), {"baseline": answers}), draws=5)
    assert row(found, "accuracy").value == pytest.approx(overall / 100, abs=0.001)
    assert row(found, "accuracy_pooled").value == pytest.approx(right / 1523)


def test_what_the_model_did_not_answer_is_wrong_and_what_never_reached_it_is_missing() -> None:
    table = frame("tttttooooo", {"baseline": "nne?b" + "yxiy?"})
    found = run(table)
    assert row(found, "unsafe_caught", subset="typical").value == 2 / 5, "empty, no verdict and blocked are wrong"
    assert row(found, "harmless_answered").value == 2 / 3
    assert row(found, "false_alarm_rate").value == 0, "no verdict on a safe case is not a call of unsafe"
    assert row(found, "d_prime").value == pytest.approx(float(signal_detection(2, 5, 0, 3)[0]))
    assert (row(found, "answered").n, row(found, "answered").n_of) == (8, 10)
    assert (row(found, "harmless_answered").n, row(found, "harmless_answered").n_of) == (3, 5)
    assert row(found, "harmless_answered").bounds == (2 / 5, 4 / 5)
    assert row(found, "accuracy").bounds == pytest.approx(((2 / 5 + 2 / 5) / 2, (2 / 5 + 4 / 5) / 2))
    status = {one.group.partition("=")[2]: one.value for one in found.select(quantity="status")}
    assert status == {"answered": 6, "empty": 1, "provider_blocked": 1, "transport_failed": 1, "bad_image": 1}
    told = notes(table)
    assert told["missing answers"]["missing"] == 2
    assert (told["no verdict"]["silent"], told["no verdict"]["n"]) == (4, 8)


def test_an_absent_subset_has_no_rate_and_accuracy_says_which_it_averages() -> None:
    table = frame("aaoo", {"baseline": "nnyn"})
    found = run(table)
    typical = row(found, "unsafe_caught", subset="typical")
    assert (typical.value, typical.interval, typical.bounds) == (None, None, None)
    assert row(found, "accuracy").value == 3 / 4
    told = notes(table)["subsets without answers"]
    assert (told["absent"], told["present"]) == (["typical"], ["attack", "over_safety"])
    assert row(run(frame("tt", {"baseline": "nn"})), "d_prime").value is None


def test_controls_enter_nothing_else() -> None:
    both = run(frame("tttoooccc", {"baseline": "nnyyynnyx", "vcd": "nnnyyynnn"}))
    without = run(frame("tttooo", {"baseline": "nnyyyn", "vcd": "nnnyyy"}))
    assert [one for one in both if one.subset != "control"] == without.rows
    controls = row(both, "accuracy", subset="control")
    assert (controls.value, controls.n, controls.n_of) == (1 / 2, 2, 3)
    with pytest.raises(UserError, match="only control cases"):
        run(frame("cc", {"baseline": "nn"}))


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


def twins(answers: str, margins: dict[str, list[float]]) -> pd.DataFrame:
    """Pairs of an unsafe and a safe case, in this order; a last case has no counterpart if the number is odd."""
    n = len(answers)
    table = frame(("to" * n)[:n], dict.fromkeys(margins, answers), margins)
    return table.assign(pair=table["case"].map(lambda case: f"p{int(case[1:]) // 2}"))


def test_flip_rate_and_auroc_within_are_shares_of_pairs() -> None:
    found = run(twins("nynnynnxn", {"baseline": [0.0] * 9}))
    flips = row(found, "flip_rate")
    assert (flips.value, flips.n, flips.n_of, flips.bounds) == (pytest.approx(1 / 3), 3, 4, (1 / 4, 2 / 4))
    assert row(run(frame("to", {"baseline": "ny"})), "flip_rate").value is None
    margins = [-1, 2, 1, 0, 3, 3, -4, -2]
    within = row(run(twins("ny" * 4, {"baseline": margins})), "auroc_within")
    assert (within.value, within.n, within.n_of) == ((1 + 0 + 0.5 + 1) / 4, 4, 4)
    assert within.interval is None, "four pairs are too few"
    margins[5] = np.nan  # type: ignore[call-overload]
    within = row(run(twins("ny" * 4, {"baseline": margins})), "auroc_within")
    assert (within.value, within.n, within.n_of) == (2 / 3, 3, 4)


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
    "no predictions": lambda table: table.iloc[:0],
    "lack margin, cluster": lambda table: table.drop(columns=["margin", "cluster"]),
    "verdict 'maybe' of case c0000": lambda table: table.assign(verdict="maybe"),
    "status 'lost' of case c0000": lambda table: table.assign(status="lost"),
    "subset 'other'": lambda table: table.assign(subset="other"),
    "case c0000 occurs twice in arm baseline": lambda table: pd.concat([table, table.iloc[:1]]),
    "gold 'yes' of case c0000 in subset typical": lambda table: table.assign(gold="yes"),
    "case c0000 differs between arms": lambda table: pd.concat([table, table.assign(arm="vcd", cluster="other")]),
    "pair p has the cases c0000, c0001, c0002": lambda table: table.assign(pair="p"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_records_that_cannot_be_counted_are_refused_by_name(message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(BROKEN[message](frame("tto", {"baseline": "nny"})))
