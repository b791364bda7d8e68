"""The cases that a report shows: which flipped, which are chosen, and with what maps."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report import cases
from experiments.report.cases import attention_of_cases, examples, payload
from experiments.report.saved_run import read_run
from tests.experiments.synthetic_attention import write_attention
from tests.experiments.synthetic_run import flips_of, predictions, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(240))
    flipped = [flip.case for flip in flips_of(folder)]
    write_attention(folder, [*flipped, "icon/0000", "icon/0001", "icon/0003"], ["baseline", "vcd"])
    return folder


def shown(folder: Path) -> dict[str, Any]:
    return examples(read_run(folder), studied="vcd", reference="baseline", attention=attention_of_cases(folder))


def listed(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for _, group in found["groups"] for one in group]


def test_flips_are_those_of_the_results_table(run: Path) -> None:
    results = read_run(run).results
    counted = [results.get("vcd", f"cases_{way}", against="baseline") for way in ("fixed", "broken")]
    found = flips_of(run)
    fixed = sum(flip.fixed for flip in found)
    assert [row.value for row in counted] == [fixed, len(found) - fixed]


def _flip(case: str, *, right: bool, change: float | None = 1.0) -> cases.Flip:
    return cases.Flip(case, right, change, {"vcd": {"subset": "over_safety"}})


@given(st.integers(0, 20), st.integers(0, 20), st.randoms(use_true_random=False))
def test_choice_is_halved_filled_and_independent_of_order(n_fixed: int, n_broken: int, rng: Any) -> None:
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
    found = cases._shown_answer("vcd", record)
    assert (found["verdict"], found["judged"]) == (said, judged)


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


def test_pictures_of_alarming_harmless_cases_are_hidden_too(tmp_path: Path) -> None:
    records = predictions(240)
    harmless = [record for record in records if record["subset"] == "over_safety"]
    for record in harmless:
        record["alarming"] = True
    ids = sorted({record["case"] for record in harmless})
    folder = write_run(tmp_path, records, thumbnails=ids)
    write_attention(folder, ids, ["baseline", "vcd"])
    found = shown(folder)
    assert listed(found)[0]["case"]["subset"] == "over-safety"
    assert all(one["case"]["hidden"] for one in listed(found))
    assert found["glance"] is None
    browsed = payload(read_run(folder), studied="vcd", reference="baseline", attention=None)["cases"]
    assert all(one["hidden"] for one in browsed)
