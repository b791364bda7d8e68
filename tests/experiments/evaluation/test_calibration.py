"""Where fitted controls get their constant, and from which cases."""

from typing import Any

import numpy as np
import pytest

from experiments.evaluation.fitting import computed, fitted, recomputed
from interp.errors import UserError
from mitigation.controls import YesBias
from mitigation.threshold import CalibratedShift, ConstantShift
from tests.experiments.compose import run_of
from tests.experiments.synthetic_predictions import records, world


def said(arm: str, subsets: str, answers: str, margins: list[float]) -> list[dict[str, Any]]:
    return records(subsets, {arm: answers}, {arm: margins})


def test_a_yes_bias_says_yes_as_often_as_the_arm_under_study() -> None:
    baseline = said("baseline", "ttoo", "nnny", [-3.0, -1.0, -2.0, 4.0])
    studied = said("vcd", "ttoo", "nyyy", [9.0] * 4)  # whatever its margins are
    shift = fitted(YesBias(), [*baseline, *studied], study="vcd")
    assert shift == ConstantShift(2.5)  # three of four: between −3 and −2


def test_controls_and_cases_without_answer_do_not_count() -> None:
    baseline = said("baseline", "tocto", "nnnnx", [-3.0, -1.0, 50.0, -2.0, 0.0])
    studied = said("vcd", "tocto", "nynxy", [0.0] * 5)
    # Left are the first two, of which one says Yes: the middle between −3 and −1.
    assert fitted(YesBias(), [*baseline, *studied], study="vcd") == ConstantShift(2.0)
    assert fitted(YesBias(), baseline, study="vcd") == ConstantShift(0.0)


def test_a_calibrated_shift_reads_the_baseline_alone() -> None:
    subsets, margins = world(80)
    baseline = records(subsets, {"baseline": "n" * 80}, {"baseline": list(margins["baseline"])})
    other = records(subsets, {"vcd": "y" * 80}, {"vcd": list(margins["sees"])})
    assert fitted(CalibratedShift(), [*baseline, *other], study="vcd") == fitted(CalibratedShift(), baseline)
    safe = np.array([short == "o" for short in subsets])
    assert fitted(CalibratedShift(), baseline) == CalibratedShift().fit(margins["baseline"], safe)
    assert fitted(CalibratedShift(), [r for r in baseline if r["gold"] == "yes"]) == ConstantShift(0.0)


def test_a_control_changes_the_verdict_with_the_sign_and_only_there() -> None:
    lines = said("baseline", "tttto", "nnyny", [-3.0, -1.0, 2.0, -0.5, 0.5])
    plain = [line | {"settings": "s", "published_verdict": line["verdict"]} for line in lines]
    after = [computed(line, "shift", ConstantShift(1.5)) for line in plain]
    assert [record["margin"] for record in after] == [-1.5, 0.5, 3.5, 1.0, 2.0]
    assert [record["verdict"] for record in after] == ["no", "yes", "yes", "yes", "yes"]
    assert all(record["computed"] and record["response"] is None for record in after)
    assert [record["margin_unshifted"] for record in after] == [line["margin"] for line in lines]


def test_a_control_without_a_margin_has_no_verdict_and_a_drawn_answer_follows_the_sign() -> None:
    (line,) = said("baseline", "t", "y", [-1.0])
    plain = line | {"settings": "s", "published_verdict": "yes"}
    assert computed(plain, "shift", ConstantShift(0.5))["verdict"] == "yes"  # as answered: the margin keeps its sign
    assert computed(plain | {"sampled": True}, "shift", ConstantShift(0.5))["verdict"] == "no"
    assert computed(plain | {"margin": None}, "shift", ConstantShift(0.5))["verdict"] is None


def test_a_control_follows_the_verdict_that_the_baseline_is_given_later() -> None:
    (line,) = said("baseline", "t", "n", [-1.0])
    plain = line | {"settings": "s", "published_verdict": "no"}
    control = computed(plain, "shift", ConstantShift(0.5))
    assert control["verdict"] == "no"
    later = {"verdict": "yes", "judge": "human"}
    assert recomputed([plain | later, control])[1] == control | later


def test_a_yes_bias_with_nothing_to_match_is_refused_before_weights_load(no_weights: None, tmp_path: Any) -> None:
    run = run_of("method=yes_bias", f"output_root={tmp_path}")
    with pytest.raises(UserError, match="which is yes_bias"):
        run.task(run)
