"""Refusal benchmarks: what counts as a refusal, what is missing, pairs, and the counting of benchmarks' authors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.metrics.estimates import TOO_FEW, StandardError, share_interval
from experiments.metrics.results import evaluate
from experiments.runs.results_table import Results, Row
from interp.errors import UserError
from tests.experiments.metrics.test_verdicts import row
from tests.experiments.refused import TYPES, frame, records

BENIGN, CONTRAST = {"subset": "benign"}, {"subset": "contrast"}
OF_TYPE = {"subset": "benign", "group": f"type={TYPES[0]}"}


def run(table: pd.DataFrame, **options: Any) -> Results:
    return evaluate(table, "refusal", **{"seed": 0, "draws": 300, **options}).results


def arm(subsets: str, answers: str, **options: Any) -> Results:
    return run(frame(subsets, {"baseline": answers}), **options)


def rate(found: Results, name: str = "baseline", **key: str) -> Row:
    return row(found, "refusal_rate", name, **key)


def test_a_rates_interval_is_that_of_its_clusters() -> None:
    assert rate(arm("bbbbbbccc", "rccrpc" + "rrc"), **BENIGN).interval is None, "six cases are too few"
    assert rate(arm("b" * 12 + "ccc", "rrrccccccccc" + "rrc"), **BENIGN).interval == pytest.approx(
        share_interval(1 / 4, StandardError(np.sqrt(3 / 16 / 11), 12), 12)
    )


def test_better_takes_fewer_benign_refusals_and_no_fewer_harmful_ones() -> None:
    n = 300
    before = "r" * 2 * n
    answers = {
        "fewer": "c" * 60 + "r" * (2 * n - 60),  # benign requests alone
        "looser": "c" * 60 + "r" * (n - 60) + "c" * 60 + "r" * (n - 60),  # harmful ones too
        "one": "c" + "r" * (2 * n - 1),
    }
    wins = [row(run(frame("b" * n + "c" * n, {"baseline": before, name: own})), "wins", name, against="baseline").value
            for name, own in answers.items()]  # fmt: skip
    assert wins == [1, 0, 0]


def test_under_ten_cases_a_type_has_no_interval_and_nothing_is_concluded() -> None:
    found = run(frame("b" * 27 + "c" * 27, {"baseline": "r" * 54, "arm": "c" * 27 + "r" * 27}))
    by_type = rate(found, "arm", against="baseline", **OF_TYPE)
    assert (by_type.value, by_type.low, by_type.claim) == (-1, None, TOO_FEW)
    assert row(found, "refusal_gap", group=f"type={TYPES[0]}").low is None
    few = run(frame("b" * 9 + "c" * 9, {"baseline": "r" * 18, "arm": "c" * 9 + "r" * 9}))
    assert row(few, "wins", "arm", against="baseline").value == 0
    harmful_only = run(frame("c" * 40, {"baseline": "rncr" * 10, "arm": "crcc" * 10}))
    assert all(found.value is None for found in harmful_only.select(quantity="wins"))


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.text(alphabet="bc", min_size=1, max_size=9), st.data(), st.booleans())
def test_any_outcome_gives_rates_inside_their_bounds(subsets: str, data: st.DataObject, published: bool) -> None:
    answers = st.text(alphabet="rpcjebxi", min_size=len(subsets), max_size=len(subsets))
    table = frame(subsets, {"baseline": data.draw(answers), "prompt": data.draw(answers)})
    for one in run(table, draws=20, empty_as_refusal=published):
        if one.bounds and one.value is not None and not one.against:
            assert one.bounds[0] - 1e-9 <= one.value <= one.bounds[1] + 1e-9


def test_refusals_of_cases_from_templates_are_judged_by_the_wider_interval() -> None:
    """An arm that refuses all requests of six templates less often and leaves eighteen as they are."""
    template = np.repeat(np.arange(24), 20)
    after = "".join("c" if one < 6 and at % 2 else "r" for at, one in enumerate(template))
    table = frame("b" * 480, {"baseline": "r" * 480, "vcd": after})
    plain = rate(run(table), "vcd", against="baseline", **BENIGN)
    table["tags"] = [{"template": f"t{one}", "concept": f"c{at % 31}"} for at, one in enumerate(np.tile(template, 2))]
    found = run(table)
    wide = rate(found, "vcd", against="baseline", **BENIGN)
    assert (wide.value, wide.clusters) == (plain.value, 24)
    assert np.ptp(wide.interval or ()) > 3 * np.ptp(plain.interval or ())
    assert rate(found, "vcd", against="baseline", **OF_TYPE).clusters == 24


# Pairs.


def paired(subsets: str, answers: str, pairs: str, **columns: list[Any]) -> pd.DataFrame:
    """A letter a case, as in ``refused``; the same letter in ``pairs`` joins two cases, "." none."""
    rows = records(subsets, {"baseline": answers})
    for at, record in enumerate(rows):
        record["pair"] = None if pairs[at] == "." else pairs[at]
        record |= {name: values[at] for name, values in columns.items()}
    return pd.DataFrame(rows)


def test_pairs_have_bounds_and_pairs_of_one_cluster_are_resampled_together() -> None:
    unknown = row(run(paired("bcbcbc", "cpcxcb", "aabbcc")), "flip_rate")
    assert (unknown.value, unknown.n, unknown.n_of) == (1.0, 2, 3)
    assert unknown.bounds == pytest.approx((2 / 3, 1))
    letters = "aabbccddeeffgghhiijjkkll"
    alone = row(run(paired("bcbc" * 6, "crcc" * 6, letters)), "flip_rate")
    joined = paired("bcbc" * 6, "crcc" * 6, letters, cluster=[f"k{at // 12}" for at in range(24)])
    together = row(run(joined), "flip_rate")
    assert (alone.clusters, together.clusters) == (12, 2)
    assert alone.interval != together.interval


def test_half_a_pair_is_none_and_a_pair_of_equals_an_error() -> None:
    assert row(run(paired("bcb", "crc", "aab")), "flip_rate").n_of == 1
    assert run(paired("bc", "cr", "..")).get("baseline", "flip_rate") is None
    for subsets, pairs in (("bb", "aa"), ("bcb", "aaa")):
        with pytest.raises(UserError, match=r"pair a has the cases c0000, c0001.*one harmless and one unsafe"):
            run(paired(subsets, "ccc"[: len(subsets)], pairs))
