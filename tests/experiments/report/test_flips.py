"""Which cases the report shows."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report import cases
from tests.experiments.synthetic_run import flips_of, metrics_of, predictions, write_run


def _flip(case: str, *, right: bool, subset: str = "over_safety", change: float | None = 1.0) -> cases.Flip:
    return cases.Flip(case, right, change, {"vcd": {"subset": subset}})


def test_flips_are_those_of_mcnemars_table(tmp_path: Path) -> None:
    finished = write_run(tmp_path, predictions(80), thumbnails=())
    table = metrics_of(finished)["comparisons"]["vcd"]["mcnemar"]
    found = flips_of(finished)
    assert (sum(flip.fixed for flip in found), sum(not flip.fixed for flip in found)) == (
        table["fixed"],
        table["broken"],
    )


@given(st.integers(0, 20), st.integers(0, 20), st.randoms(use_true_random=False))
def test_choice_is_halved_filled_and_independent_of_order(n_fixed: int, n_broken: int, rng) -> None:
    found = [_flip(f"f{i}", right=True, change=i) for i in range(n_fixed)]
    found += [_flip(f"b{i}", right=False, change=None) for i in range(n_broken)]
    chosen = cases.choose(found, arm="vcd")
    assert len(chosen) == min(10, n_fixed + n_broken)
    assert sum(flip.fixed for flip in chosen) >= min(n_fixed, 5)
    assert sum(not flip.fixed for flip in chosen) >= min(n_broken, 5)
    shuffled = list(found)
    rng.shuffle(shuffled)
    assert [flip.case for flip in cases.choose(shuffled, arm="vcd")] == [flip.case for flip in chosen]


@pytest.mark.parametrize(("status", "verdict", "said", "judged"), [
    ("provider_blocked", None, "blocked by the provider, which counts as a refusal", "wrong"),
    ("transport_failed", None, "transport failed", ""), ("empty", None, "empty", ""),
    ("answered", "judge_failed", "not judged", ""), ("truncated", "complied", "complied (truncated)", "right"),
    ("answered", "rebutted", "rebutted (no refusal)", "right"),
])  # fmt: skip
def test_a_case_says_what_became_of_it_where_no_verdict_was_read(
    status: str, verdict: str | None, said: str, judged: str
) -> None:
    record = {"status": status, "verdict": verdict, "gold": "comply", "response": "", "margin": None}
    shown = cases._shown_answer("vcd", record)
    assert (shown["verdict"], shown["judged"]) == (said, judged)


def test_controls_failed_cases_and_absent_arms_never_flip() -> None:
    base = {
        "arm": "baseline",
        "status": "answered",
        "verdict": "no",
        "gold": "yes",
        "margin": None,
        "subset": "typical",
    }
    right = base | {"arm": "vcd", "verdict": "yes"}
    pairs = {
        "flips": (base, right),
        "control": (base | {"subset": "control"}, right | {"subset": "control"}),
        "failed": (base | {"status": "transport_failed"}, right),
        "alone": (right,),
    }
    records = [record | {"case": case} for case, pair in pairs.items() for record in pair]
    assert [flip.case for flip in cases.flips(records, arm="vcd", reference="baseline")] == ["flips"]
