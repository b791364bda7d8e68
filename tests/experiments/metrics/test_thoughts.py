"""Thoughts that were cut off, and the budget that would have let them end."""

import numpy as np
import pandas as pd
import pytest

from experiments.evaluation.scoring import thoughts_by_arm, tokens_until


def test_without_cuts_it_is_the_share_that_ended() -> None:
    lengths = list(range(1, 101))
    assert tokens_until(lengths, [True] * 100) == 95
    assert tokens_until([7], [True]) == 7
    assert tokens_until([], []) is None


@pytest.mark.parametrize(("cut", "known"), [(5, True), (6, False)])
def test_one_budget_tells_no_more_than_what_it_let_end(cut: int, known: bool) -> None:
    lengths = [*range(1, 101 - cut), *[200] * cut]
    found = tokens_until(lengths, [length < 200 for length in lengths])
    assert (found == 95) if known else (found is None)


def test_cuts_at_several_budgets_are_not_taken_for_ends() -> None:
    random = np.random.default_rng(0)
    lengths, budgets = random.exponential(100, 20_000), random.uniform(50, 600, 20_000)
    found = tokens_until(np.ceil(np.minimum(lengths, budgets)).tolist(), (lengths <= budgets).tolist())
    assert found == pytest.approx(100 * np.log(20), rel=0.04)  # 299.6; of the ended ones alone it would be 238
    assert np.quantile(lengths[lengths <= budgets], 0.95) < 250


def test_arms_that_think() -> None:
    thinks = {"arm": "thinks", "status": "truncated", "response": "", "thought": "a"}
    rows = [
        {"arm": "plain", "status": "answered", "response": "Yes"},
        thinks | {"status": "answered", "response": "Yes", "thought_tokens": 3, "margin": 1.0, "verdict_step": 3},
        thinks | {"thought_tokens": 8},
        thinks | {"response": "Yes, for", "thought_tokens": 5},
        thinks | {"arm": "api", "margin": 0.5},
    ]
    rows = [{"subset": "typical"} | row for row in rows]
    rows.append(rows[-2] | {"subset": "control"})
    found = thoughts_by_arm(pd.DataFrame(rows))
    names = ("n", "thought", "cut_off", "longest", "budget", "at_verdict")
    assert {arm: [one[name] for name in names] for arm, one in found.items()} == {
        "thinks": [3, 3, 1, 8, None, True], "api": [1, 1, 1, None, None, False],
    }  # fmt: skip
    assert (found["thinks"]["tokens"], found["api"]["tokens"]) == (pytest.approx(16 / 3), None)
    assert thoughts_by_arm(pd.DataFrame(rows[:1])) == {}
