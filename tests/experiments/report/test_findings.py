"""The two sentences, for arms whose effect is known by construction."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.metrics.yes_no import results
from experiments.report.findings.yes_no import caveats, sentences, worded
from experiments.report.numbers import change
from interp.errors import UserError
from tests.experiments.answered import frame, from_margins, world


def evaluate(table: pd.DataFrame, *, where: str = "", caveat: str = "", **options: Any) -> dict[str, Any]:
    return worded(results.evaluate(table, **options), where=where, caveat=caveat)


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    subsets, margins = world(400)
    margins["same"] = margins["baseline"].copy()
    return evaluate(from_margins(subsets, margins), seed=0, draws=600, study="sees", where="organism on iconworld")


ARMS = ("baseline", "sees", "shift", "harsher", "blinder", "calibrated_shift", "same")


@pytest.mark.parametrize("arm", ARMS)
def test_there_are_exactly_two_sentences(known: dict[str, Any], arm: str) -> None:
    found = sentences(known, arm)
    assert len(found) == 2
    for sentence in found:
        assert sentence.endswith(".")
        assert not re.search(r"[.!?]\s", sentence), "one sentence, one full stop"
        assert "nan" not in sentence
        assert "None" not in sentence


def test_the_summary_is_about_the_arm_under_study(known: dict[str, Any]) -> None:
    assert known["study"] == "sees"
    assert known["summary"] == sentences(known, "sees", where="organism on iconworld")
    assert known["summary"][0].startswith("organism on iconworld: Under sees, ")


def test_the_first_sentence_carries_rates_intervals_and_denominators(known: dict[str, Any]) -> None:
    delta = known["comparisons"]["sees"]["delta"]
    first = known["summary"][0]
    for name in ("over_safety", "unsafe", "overall"):
        entry = delta[name]
        assert f"{100 * entry['to']:.1f}%" in first
        assert f"{100 * entry['from']:.1f}%" in first
        assert change(entry) in first
    assert "of 200 safe cases" in first
    assert "of 200 unsafe cases" in first
    assert "400 of 400 cases" in first


@pytest.mark.parametrize(
    ("arm", "opening", "ending"),
    [
        ("sees", "Discrimination rose:", "sees beats calibrated_shift"),
        ("blinder", "Discrimination fell:", "so it has added nothing but a threshold."),
        ("shift", "Only the criterion moved,", "so it has added nothing but a threshold."),
        ("same", "Nothing moved beyond chance,", "so it has added nothing but a threshold."),
        ("calibrated_shift", "Only the criterion moved,", "moves nothing but the threshold."),
    ],
)
def test_the_second_sentence_follows_the_rule(known: dict[str, Any], arm: str, opening: str, ending: str) -> None:
    second = sentences(known, arm)[1]
    assert second.startswith(opening)
    assert ending in second
    auroc = known["comparisons"][arm]["delta"]["auroc"]
    assert f"from {auroc['from']:.3f} to {auroc['to']:.3f}" in second
    assert "400 cases" in second


def test_better_ranks_that_do_not_show_in_the_verdicts_are_not_sold_as_more(known: dict[str, Any]) -> None:
    subsets, margins = world(400)
    margins["ranks"] = margins["sees"] - 3  # sees, but answers No to nearly everything
    found = evaluate(from_margins(subsets, margins), seed=0, draws=600, study="ranks")
    assert found["summary"][1].startswith("Discrimination rose:")
    assert found["summary"][1].endswith("so in its verdicts it has added nothing that a threshold would not.")


def test_without_margins_it_says_that_verdicts_cannot_tell_and_shows_d_prime() -> None:
    subsets, margins = world(100)
    table = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    table["margin"] = np.nan
    second = evaluate(table, seed=0, draws=100)["summary"][1]
    assert second.startswith(
        "Whether discrimination changed cannot be told from verdicts alone (AUROC is not available"
    )
    assert "d′ goes from" in second
    assert "without a calibrated_shift arm it is open" in second


def test_without_a_common_case_nothing_is_compared() -> None:
    found = evaluate(frame("to", {"baseline": "xn", "vcd": "nx"}), seed=0, draws=20)
    assert "no case in common (0 of 2)" in found["summary"][0]
    assert "d′ is not available either" in found["summary"][1]


def test_a_single_arm_is_described_by_itself() -> None:
    found = evaluate(frame("ttaoo", {"vcd": "nnyyn"}), seed=0, draws=20)
    assert found["study"] == "vcd"
    assert found["comparisons"] == {}
    assert found["summary"][0].startswith("vcd calls 50.0% of 2 safe cases safe (95% interval ")
    assert "66.7% of 3 unsafe cases unsafe" in found["summary"][0]
    assert "AUROC is not available: this arm gives no margins" in found["summary"][1]
    nothing = evaluate(frame("to", {"vcd": "xx"}), seed=0, draws=20)["summary"]
    assert nothing[0] == "vcd has no answer to any of 2 cases."


def test_caveats_name_what_limits_the_numbers() -> None:
    arms = {"baseline": "nnnnnnynyn", "vcd": "nn?yxnyyyn"}
    found = evaluate(frame("aaaaaaoooo", arms), seed=0, draws=200, caveat="The organism's answers here mean nothing.")
    given, missing, absent, silent, ceiling, wide = found["caveats"]
    assert given == "The organism's answers here mean nothing."
    assert missing.startswith(
        "1 of 10 cases have no answer of vcd; with them its overall accuracy could be anything from "
    )
    assert absent == "No typical case has an answer of vcd: overall is the mean of attack and over-safety alone."
    assert silent == "1 of 9 answers of vcd hold no readable Yes or No and count as wrong."
    assert ceiling.startswith("d′ of vcd comes from rates close to 0 or 1")
    assert re.search(r"about [\d,]+ cases are needed; 9 were compared\.$", wide)


def test_a_sound_arm_has_no_caveats(known: dict[str, Any]) -> None:
    calm = [text for text in caveats(known, "same") if "wider than 5 points" not in text]
    assert calm == []


def test_an_unknown_arm_is_refused(known: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="'vdc' is not in these metrics; known: baseline"):
        sentences(known, "vdc")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"value": 0.0441, "low": 0.01, "high": 0.078}, "+4.4 points, 95% interval +1.0 to +7.8"),
        ({"value": -0.0001, "low": -0.02, "high": 0.0}, "0.0 points, 95% interval −2.0 to 0.0"),
        ({"value": -0.05, "low": None, "high": None}, "−5.0 points, no interval"),
        (None, "not available"),
    ],
)
def test_a_change_is_signed_and_a_rounded_zero_is_not(entry: dict[str, float | None] | None, text: str) -> None:
    assert change(entry) == text
