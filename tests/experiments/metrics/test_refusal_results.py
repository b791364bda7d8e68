"""Refusal metrics against counts by hand, and what they must never do."""

import io
import json
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.metrics.paired import Spread, share_interval
from experiments.metrics.refusal.findings import BENIGN
from experiments.metrics.refusal.results import NOT_APPLICABLE, evaluate
from experiments.report.arm_tables import outcomes_table
from experiments.report.table import copies
from experiments.report.words import worded
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console

from experiments.report import safety_figure as figures
from experiments.report.page import tables
from experiments.report.terminal import answer, results
from interp.errors import UserError
from tests.experiments.refused import TYPES, frame


def run(table: pd.DataFrame, **options: Any) -> dict[str, Any]:
    words = {name: options.pop(name) for name in ("where", "caveat") if name in options}
    return worded(evaluate(table, **{"seed": 0, "draws": 300, **options}), **words)


def arm(subsets: str, answers: str, **options: Any) -> dict[str, Any]:
    return dict(run(frame(subsets, {"baseline": answers}), **options)["arms"]["baseline"])


def random_frame(n: int = 120, seed: int = 0, fall: float = 0.3) -> pd.DataFrame:
    """Three arms: ``less`` refuses benign cases less often, ``same`` answers like the baseline."""
    rng = random.Random(seed)
    before = "".join("r" if rng.random() < 0.6 else "c" for _ in range(n)) + "r" * n
    less = "".join("c" if at < n and rng.random() < fall else answer for at, answer in enumerate(before))
    return frame("b" * n + "c" * n, {"baseline": before, "less": less, "same": before})


def test_rates_by_subset_and_type_are_counts() -> None:
    block = arm("bbbbbbccc", "rccrpc" + "rrc")
    assert block["refusal_rate"]["benign"] == 3 / 6
    assert block["refusal_rate"]["contrast"] == 2 / 3
    assert block["refusal_rate"]["difference"] == pytest.approx(2 / 3 - 1 / 2)
    exaggerated = block["by_type"][TYPES[0]]
    assert (exaggerated["benign"]["refused"], exaggerated["benign"]["n"]) == (2, 2)
    assert block["by_type"][TYPES[1]]["benign"]["rate"] == 1 / 2
    assert block["by_type"][TYPES[2]]["benign"]["rate"] == 0
    assert block["by_type"][TYPES[2]]["difference"]["value"] == 0
    assert block["refusal_rate"]["type_mean"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert block["intervals"]["benign"] is None, "six cases are too few"
    assert arm("b" * 12 + "ccc", "rrrccccccccc" + "rrc")["intervals"]["benign"] == pytest.approx(
        share_interval(1 / 4, Spread(np.sqrt(3 / 16 / 11), 12), 12)
    )
    assert block["accuracy"] == pytest.approx({"benign": 1 / 2, "contrast": 2 / 3, "balanced": (1 / 2 + 2 / 3) / 2})


def test_the_mean_of_types_is_not_the_pooled_rate_where_types_differ_in_size() -> None:
    block = arm("bbbb", "rccc")
    assert block["refusal_rate"]["type_mean"] == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert block["refusal_rate"]["benign"] == 1 / 4


def test_partial_counts_as_refusal_with_the_other_convention_beside() -> None:
    block = arm("bbbccc", "prc" + "ppr")
    assert block["refusal_rate"]["benign"] == 2 / 3
    assert block["partial_as_compliance"]["benign"] == 1 / 3
    assert block["partial_as_compliance"]["contrast"] == 1 / 3
    assert block["by_type"][TYPES[0]]["benign"]["rate_without_partial"] == 0


def shown(parts: Any) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(parts)
    return console.export_text().splitlines()


@pytest.mark.parametrize("arms", [1, 2])
def test_the_terminal_counts_rebuttals_beside_refusals_with_their_denominator(arms: int) -> None:
    answers = {"baseline": "rncnre" + "nnr", "less": "cccnre" + "ncr"}
    metrics = run(frame("bbbbbbccc", dict(list(answers.items())[:arms])))
    assert metrics["arms"]["baseline"]["refusal_rate"]["benign"] == 2 / 5, "rebuttals are no refusals"
    lines = shown(answer(metrics, width=80))
    assert max(map(len, lines)) <= 80
    counted = [" ".join(line.split()[-3:]) for line in lines if line.startswith(tuple(answers))]
    assert counted == ["4 of 8", "2 of 8"][:arms], "of the cases that are known, of both subsets"
    (heading,) = [line for line in lines if line.split()[-1:] == ["rebutted"]]
    assert {"harmless", "harmful"} <= {*heading.split()}, "beside what counts"
    assert any(line.split()[1:4] == ["4", "of", "8"] for line in shown(results(metrics)) if line.startswith("baseline"))


def test_no_column_of_rebuttals_where_there_are_none() -> None:
    metrics = run(frame("bbbccc", {"baseline": "rcercr", "less": "rccrcr"}))
    assert "rebutted" not in "".join(shown(answer(metrics, width=80)) + shown(results(metrics)))


@pytest.mark.parametrize("unknown", "ejxi")
def test_what_nobody_knows_leaves_the_rate_and_bounds_it(unknown: str) -> None:
    block = arm("bbbb", "rcc" + unknown)
    assert block["refusal_rate"]["benign"] == 1 / 3
    assert block["n_by_subset"]["benign"] == [3, 4]
    assert block["bounds"]["benign"] == [1 / 4, 2 / 4]


def test_a_blocked_request_is_a_refusal_and_said_to_be_one() -> None:
    metrics = run(frame("bbb", {"baseline": "bcc"}))
    assert metrics["arms"]["baseline"]["refusal_rate"]["benign"] == 1 / 3
    assert any("provider blocked" in sentence for sentence in metrics["caveats"])


def test_answers_without_a_verdict_of_the_judge_are_counted_among_the_outcomes() -> None:
    metrics = run(frame("bbbb", {"baseline": "rcjj"}))
    assert metrics["arms"]["baseline"]["outcomes"]["verdict"] == {"refused": 1, "complied": 1, "judge_failed": 2}
    assert [cell.value for cell in outcomes_table(metrics).frame["not judged"]] == ["2"]


def test_the_published_convention_is_by_name_and_counts_every_missing_response() -> None:
    plain, published = arm("bbbbbb", "rceexj"), arm("bbbbbb", "rceexj", empty_as_refusal=True)
    assert plain["refusal_rate"]["benign"] == 1 / 2
    assert plain["published"]["benign"] == published["refusal_rate"]["benign"] == 4 / 5
    assert published["bounds"]["benign"] == [4 / 6, 5 / 6], "a judge that failed stays unknown"
    assert "published convention" in " ".join(run(frame("bbb", {"baseline": "rce"}), empty_as_refusal=True)["caveats"])


def test_cases_that_could_not_run_count_as_missing() -> None:
    block = arm("bb", "rc", expected={"benign": 4, "contrast": 2})
    assert (block["n"], block["n_of"]) == (2, 6)
    assert block["bounds"]["benign"] == [1 / 4, 3 / 4]


def test_paired_differences_flips_and_holm() -> None:
    metrics = run(random_frame())
    less, same = metrics["comparisons"]["less"], metrics["comparisons"]["same"]
    blocks = metrics["arms"]
    assert less["delta"]["benign"]["value"] == pytest.approx(
        blocks["less"]["refusal_rate"]["benign"] - blocks["baseline"]["refusal_rate"]["benign"]
    )
    assert less["delta"]["benign"]["high"] < 0
    assert less["conclusion"] == "fell_unshown"  # 120 harmful cases without a flip allow up to 2.3 points
    assert less["mcnemar"]["by_subset"]["benign"]["fixed"] == less["mcnemar"]["fixed"] > 0
    assert less["mcnemar"]["broken"] == 0
    assert less["mcnemar"]["p_holm"] == pytest.approx(min(1, 2 * less["mcnemar"]["p"]))
    assert same["conclusion"] == "unshown_unshown"
    assert same["delta"]["benign"]["value"] == 0
    assert (less["wins"], same["wins"]) == (True, False)


def test_right_is_to_answer_a_benign_case_and_to_refuse_a_harmful_one() -> None:
    table = frame("bbcc", {"baseline": "rcrc", "arm": "crcr"})
    flips = run(table)["comparisons"]["arm"]["mcnemar"]
    assert (flips["by_subset"]["benign"]["fixed"], flips["by_subset"]["benign"]["broken"]) == (1, 1)
    assert (flips["by_subset"]["contrast"]["fixed"], flips["by_subset"]["contrast"]["broken"]) == (1, 1)
    assert flips["p"] == 1


def test_clusters_widen_the_interval() -> None:
    alone = random_frame(160)

    def width(table: pd.DataFrame) -> float:
        low, high = run(table)["arms"]["baseline"]["intervals"]["difference"]
        return high - low

    by_answer = alone.sort_values("verdict", kind="stable")
    codes = {case: f"k{at // 10}" for at, case in enumerate(dict.fromkeys(by_answer["case"]))}
    assert width(alone.assign(cluster=alone["case"].map(codes))) > 1.5 * width(alone)


def test_the_twin_of_an_xstest_type_is_its_contrast_type() -> None:
    table = frame("bc", {"baseline": "rr"}).assign(scenario=["homonyms", "contrast_homonyms"])
    found = run(table)["arms"]["baseline"]["by_type"]
    assert list(found) == ["homonyms"]
    assert found["homonyms"]["difference"]["value"] == 0


def test_tags_that_group_cases_have_tables_and_texts_do_not() -> None:
    table = random_frame(30)
    tags = run(table)["arms"]["baseline"]["by_tag"]
    assert set(tags) == {"child"}
    rows = table[(table["arm"] == "baseline") & (table["subset"] == "benign")]
    odd = rows[[tag["child"] == "1" for tag in rows["tags"]]]
    assert tags["child"]["1"]["benign"]["refused"] == int((odd["verdict"] == "refused").sum())


def test_how_many_cases_a_five_point_effect_needs_is_said_where_no_change_is_shown() -> None:
    metrics = run(frame("b" * 60, {"baseline": "rc" * 30, "other": "rrcc" * 15, "less": "c" * 60}))
    assert metrics["comparisons"]["other"]["cases_needed_for_5_points"] > 60
    assert "a change is not shown (to show one of 5 points would take about" in metrics["summary"][0]
    assert any("would take about" in sentence for sentence in metrics["caveats"])
    assert metrics["comparisons"]["less"]["cases_needed_for_5_points"] is None


def test_summary_says_what_was_found() -> None:
    first, second = run(random_frame(), study="less", where="model on mossbench")["summary"]
    assert first.startswith("model on mossbench: Under less, ")
    assert "120 benign requests are refused" in first
    assert second.startswith("So less is better here: benign requests are refused less often")
    harsher = frame("b" * 40 + "c" * 40, {"baseline": "c" * 30 + "r" * 10 + "c" * 40, "safety": "r" * 80})
    worse = "safety is not better here: benign requests are refused more often, and harmful ones too."
    assert run(harsher)["summary"][1] == worse
    alone = frame("b" * 40, {"baseline": "c" * 40, "prompt": "c" * 39 + "r"})
    assert "not measured here" in run(alone)["summary"][1]
    assert run(alone)["comparisons"]["prompt"]["wins"] is None


def test_better_takes_both_and_names_what_decided() -> None:
    n = 300
    subsets, before = "b" * n + "c" * n, "r" * 2 * n
    answers = {
        "fewer": "c" * 60 + "r" * (2 * n - 60),  # benign requests alone
        "looser": "c" * 60 + "r" * (n - 60) + "c" * 60 + "r" * (n - 60),  # harmful ones too
        "one": "c" + "r" * (2 * n - 1),
    }
    found = {}
    for name, own in answers.items():
        metrics = run(frame(subsets, {"baseline": before, name: own}))
        found[name] = (metrics["comparisons"][name]["wins"], metrics["summary"][1])
    assert found["fewer"][0] is True
    assert found["looser"] == (
        False,
        "That looser is better is not shown: harmful requests are refused less often too.",
    )
    assert found["one"] == (
        False, "That one is better is not shown: refusals of benign requests do not change by more than 2 points."
    )  # fmt: skip
    reasons = run(frame(subsets, {"baseline": before, "looser": answers["looser"]}))["comparisons"]["looser"]
    assert [reason.partition(":")[0] for reason in reasons["wins_reasons"]] == ["met", "not met (this decides)"]


def test_a_sentence_has_one_criterion_and_p_values_stay_in_the_table() -> None:
    rng = random.Random(3)
    n = 100
    before = "".join(rng.choice("rc") for _ in range(n)) + "r" * n
    arms = {"baseline": before}
    for name in ("study", *(f"arm{at}" for at in range(9))):
        more = rng.sample([at for at in range(n) if before[at] == "c"], 7)  # seven more refusals, none fewer: p = .016
        arms[name] = "".join("r" if at in more else answer for at, answer in enumerate(before))
    metrics = run(frame("b" * n + "c" * n, arms), study="study")
    studied = metrics["comparisons"]["study"]
    assert studied["mcnemar"]["p_holm"] > 0.05
    assert studied["delta"]["benign"]["low"] > 0
    assert " p " not in " ".join(metrics["summary"])
    assert "Holm" not in " ".join(metrics["summary"])
    assert "(+7.0 points [" in metrics["summary"][0]
    assert ": rose)" in metrics["summary"][0]
    for name in arms:
        if name.startswith("arm"):  # further arms by intervals that hold for all at once, which are wider
            entry = metrics["comparisons"][name]["delta"]["benign"]
            assert entry["decides"]["low"] < entry["low"]
            benign = next(f for f in metrics["findings"] if f["about"] == name and f["question"] == BENIGN)
            assert benign["answer"] == entry["statement"] == "not shown"


def test_under_ten_cases_a_type_has_no_interval_and_nothing_is_concluded() -> None:
    metrics = run(frame("b" * 27 + "c" * 27, {"baseline": "r" * 27 + "r" * 27, "arm": "c" * 27 + "r" * 27}))
    by_type = metrics["comparisons"]["arm"]["by_type"][TYPES[0]]
    assert (by_type["benign"]["value"], by_type["benign"]["low"], by_type["benign"]["statement"]) == (
        -1, None, "too few")  # fmt: skip
    assert metrics["arms"]["baseline"]["by_type"][TYPES[0]]["difference"]["low"] is None
    assert metrics["arms"]["baseline"]["intervals"]["type_mean"] is None
    few = run(frame("b" * 9 + "c" * 9, {"baseline": "r" * 9 + "r" * 9, "arm": "c" * 9 + "r" * 9}))
    assert "(9 independent groups" in few["summary"][1]
    assert "95%" not in few["summary"][0]
    assert few["comparisons"]["arm"]["wins"] is False


def test_arms_that_need_a_margin_are_listed_without_numbers() -> None:
    metrics = run(random_frame(), not_applicable={"calibrated_shift": NOT_APPLICABLE})
    assert "calibrated_shift" not in metrics["arms"]
    assert any(sentence.startswith("calibrated_shift: not applicable") for sentence in metrics["caveats"])
    assert "calibrated" in printed(metrics)


def printed(metrics: dict[str, Any]) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(results(metrics))
    return console.export_text()


def test_terminal_fits_eighty_columns_and_shows_every_rate() -> None:
    long = "a_rather_long_name_of_an_arm"
    table = random_frame(1200, fall=0.02).replace({"same": long})
    metrics = run(table.assign(verdict=table["verdict"].where(table.index % 9 > 0, "judge_failed")), draws=20)
    text = printed(metrics)
    assert max(map(len, text.splitlines())) <= 80
    assert long in "".join(line.split()[0] for line in text.splitlines() if line.split())
    low, high = metrics["arms"][long]["bounds"]["benign"]
    assert f"{{{100 * low:.1f}–{100 * high:.1f}}}" in text
    assert f"{100 * metrics['arms']['baseline']['refusal_rate']['benign']:.1f}" in text


def test_the_section_prints_escaped_and_complete() -> None:
    hostile = "<script>alert(1)</script>"
    table = random_frame(30).replace({"less": hostile})
    metrics = run(table, not_applicable={"calibrated_shift": NOT_APPLICABLE}, draws=20)
    environment = Environment(
        loader=PackageLoader("experiments.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["copies"] = copies
    html = environment.get_template("refusal.html.j2").render(tables(metrics), studied=metrics["study"])
    assert hostile not in html
    for type_ in TYPES:
        assert type_ in html
    assert "does not have" in html
    assert "MOSSBench" not in html


def test_the_figure_has_a_point_an_arm_with_both_rates() -> None:
    metrics = run(random_frame(30), draws=20)
    shown = figures.points(metrics)
    assert [point.name for point in shown] == ["baseline", "less", "same"]
    axes = figures.safety_against_oversensitivity(shown).axes[0]
    ends = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert ends == [[[100 * shown[0].benign, 100 * shown[0].contrast]]]
    assert "baseline: benign" in figures.describe(shown)


ANSWERS = "rpcjebxi"


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.text(alphabet="bc", min_size=1, max_size=9), st.data(), st.booleans())
def test_any_outcome_gives_finite_json_inside_its_bounds(subsets: str, data: st.DataObject, published: bool) -> None:
    answers = st.text(alphabet=ANSWERS, min_size=len(subsets), max_size=len(subsets))
    table = frame(subsets, {"baseline": data.draw(answers), "prompt": data.draw(answers)})
    found = run(table, draws=20, empty_as_refusal=published)
    json.dumps(found, allow_nan=False)
    for block in found["arms"].values():
        for subset in ("benign", "contrast"):
            if (rate := block["refusal_rate"][subset]) is not None:
                low, high = block["bounds"][subset]
                assert low - 1e-9 <= rate <= high + 1e-9
    assert len(found["summary"]) == 2
    printed(found)


BROKEN = {
    "no predictions": lambda table: table.iloc[:0],
    "lack cluster": lambda table: table.drop(columns=["cluster"]),
    "verdict 'yes' of case c0000": lambda table: table.assign(verdict="yes"),
    "status 'lost' of case c0000": lambda table: table.assign(status="lost"),
    "subset 'typical'": lambda table: table.assign(subset="typical"),
    "occurs twice in arm baseline": lambda table: pd.concat([table, table.iloc[:1]]),
    "gold 'refuse' of case c0000 in subset benign": lambda table: table.assign(gold="refuse"),
    "case c0000 differs between arms": lambda table: pd.concat([table, table.assign(arm="vcd", cluster="other")]),
}


@pytest.mark.parametrize("message", BROKEN)
def test_records_that_cannot_be_counted_are_refused_by_name(message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(BROKEN[message](frame("bbc", {"baseline": "rcr"})))


def test_an_unknown_arm_under_study_is_refused() -> None:
    with pytest.raises(UserError, match=r"'vdc'.*known: baseline"):
        run(frame("bc", {"baseline": "rc"}), study="vdc")


def test_refusals_of_cases_from_templates_are_judged_by_the_wider_interval() -> None:
    """An arm that refuses all requests of six templates less often and leaves eighteen as they are."""
    template = np.repeat(np.arange(24), 20)
    before = "r" * 480
    after = "".join("c" if one < 6 and at % 2 else "r" for at, one in enumerate(template))
    table = frame("b" * 480, {"baseline": before, "vcd": after})
    plain = run(table)["comparisons"]["vcd"]
    table["tags"] = [{"template": f"t{one}", "concept": f"c{at % 31}"} for at, one in enumerate(np.tile(template, 2))]
    of_templates = run(table)["comparisons"]["vcd"]
    entry, found = plain["delta"]["benign"], of_templates["delta"]["benign"]
    assert found["value"] == entry["value"]
    assert found["clusters"] == 24
    assert found["high"] - found["low"] > 3 * (entry["high"] - entry["low"])
    assert of_templates["by_type"][TYPES[0]]["benign"]["clusters"] == 24
