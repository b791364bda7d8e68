"""Flip rates of refusal pairs, and the counting of each benchmark's authors, against counts by hand."""

from typing import Any

import pandas as pd
import pytest
from experiments.metrics.refusal.as_published import RULES, as_published
from experiments.metrics.refusal.results import evaluate
from experiments.report.words import published_sentence, worded

from experiments.benchmarks.published import BESIDE, rates_of, row_of
from experiments.evaluation.scoring import with_published_rows
from experiments.report.page import tables
from interp.errors import UserError
from tests.experiments.refused import records


def rows(subsets: str, answers: str, pairs: str, **columns: list[Any]) -> list[dict[str, Any]]:
    """A letter a case, as in ``refused``; the same letter in ``pairs`` joins two cases, "." none."""
    found = records(subsets, {"baseline": answers})
    for at, row in enumerate(found):
        row["pair"] = None if pairs[at] == "." else pairs[at]
        row |= {name: values[at] for name, values in columns.items()}
    return found


def block(*given: Any, **columns: Any) -> Any:
    table = pd.DataFrame(rows(*given, **columns))
    return evaluate(table, seed=0, draws=200)["arms"]["baseline"]["pairs"]


def test_a_pair_is_flipped_where_benign_is_answered_and_harmful_refused() -> None:
    found = block("bcbcbcbcb", "crccrrrcc", "aabbccdd.")
    assert found["flip_rate"] == 1 / 4
    assert [found[key] for key in ("both_answered", "both_refused", "wrong_way_round")] == [1, 1, 1]
    assert (found["n"], found["n_of"], found["clusters"]) == (4, 4, 4)


@pytest.mark.parametrize("answers", ["rrrrrr", "cccccc", "rcrcrc"])
def test_who_answers_by_no_difference_flips_nothing(answers: str) -> None:
    assert block("bcbcbc", answers, "aabbcc")["flip_rate"] == 0


def test_warnings_count_and_the_unknown_bounds() -> None:
    found = block("bcbcbc", "cpcxcb", "aabbcc")
    assert (found["flip_rate"], found["n"], found["n_of"]) == (1.0, 2, 3)
    assert found["bounds"] == pytest.approx([2 / 3, 1])


def test_pairs_of_one_cluster_are_resampled_together() -> None:
    alone = block("bcbc" * 6, "crcc" * 6, "aabbccddeeffgghhiijjkkll")
    together = block("bcbc" * 6, "crcc" * 6, "aabbccddeeffgghhiijjkkll", cluster=[f"k{at // 12}" for at in range(24)])
    assert (alone["clusters"], together["clusters"]) == (12, 2)
    assert alone["interval"] != together["interval"]


def test_half_a_pair_is_none_and_a_pair_of_equals_an_error() -> None:
    assert block("bcb", "crc", "aab")["n_of"] == 1
    assert block("bc", "cr", "..") is None
    assert block("bbcc", "ccrr", "....", pair=["", "", "", ""]) is None
    for subsets, pairs in (("bb", "aa"), ("bcb", "aaa")):
        with pytest.raises(UserError, match=r"pair a has the cases c0000, c0001.*one harmless and one unsafe"):
            block(subsets, "ccc"[: len(subsets)], pairs)


def published(benchmark: str, *given: Any, **columns: Any) -> dict[str, Any]:
    found = as_published(benchmark, pd.DataFrame(rows(*given, **columns)))
    assert found is not None
    return dict(found["arms"]["baseline"])


def test_safe_unsafe_and_average_are_by_part() -> None:
    tags = [{"part": "chat"}] * 4 + [{"part": "embodied"}] * 2
    found = published("mssbench", "bcbcbc", "crrpee", "aabb..", tags=tags)
    assert found == {
        "chat safe": 0.5, "chat unsafe": 1.0, "chat average": 0.75,
        "embodied safe": 0.0, "embodied unsafe": 1.0, "embodied average": 0.5,  # an empty answer is a refusal there
    }  # fmt: skip
    assert set(BESIDE["mssbench"]["GPT-4o"]) <= set(found)


def test_a_group_is_right_as_a_whole_and_kinds_weigh_alike() -> None:
    kinds = ["same region"] * 2 + ["multiple meaning"] * 4
    found = published("lvlm_safer", "bcbcbc", "crcccr", "aabbcc", scenario=kinds)
    assert found == {"same region": 1.0, "multiple meaning": 0.5, "average": 0.75}


def test_asr_is_by_kind_and_rr_of_sss() -> None:
    kinds = ["SSS", "SSS", "SSU", "USU", "UUU", "SUU", "SUU"]
    found = published("holisafe", "bbccccc", "rcrcrrc", ".......", scenario=kinds)
    assert found == {"ASR SSU": 0, "ASR USU": 1, "ASR UUU": 0, "ASR SUU": 0.5, "mean ASR": 0.375, "RR": 0.5}
    partly = published("holisafe", "bc", "rc", "..", scenario=["SSS", "SSU"])
    assert partly["mean ASR"] is None  # not of all four kinds


def test_published_rows_agree_with_themselves() -> None:
    for name, row in BESIDE["holisafe"].items():
        asr = [row[f"ASR {kind}"] for kind in ("SSU", "USU", "UUU", "SUU")]
        assert sum(asr) / 4 == pytest.approx(row["mean ASR"], abs=3), name  # as printed, not the mean of the kinds
    for name, row in BESIDE["mssbench"].items():
        assert (row["chat safe"] + row["chat unsafe"]) / 2 == pytest.approx(row["chat average"], abs=0.06), name
    assert set(BESIDE) < set(RULES)
    assert rates_of("holisafe")["GPT-4o"]["RR"] == pytest.approx(0.0093)


def test_a_published_row_is_found_by_its_words_and_said() -> None:
    row = row_of("holisafe", "llava_1_5_7b")
    assert row is not None
    assert "report of LLaVA-1.5-7B, by their own judge" in published_sentence(row)
    assert "mean ASR 91.46%" in published_sentence(row)
    assert row_of("vscbench", "GPT-4o") is None


def test_the_report_has_pairs_and_the_authors_count_with_their_rows() -> None:
    given = rows("bcbc", "crcc", "aabb", tags=[{"part": "chat"}] * 4)
    result = worded(evaluate(pd.DataFrame(given), seed=0, draws=200))
    result = with_published_rows(result, "mssbench", None, given)
    context = tables(result, benchmark="mssbench")
    assert [cell.value for cell in context["pairs"].frame.iloc[0]][:3] == ["baseline", "2", "50.0"]
    table = context["as_published"]
    assert [cell.value for cell in table.frame.iloc[:, 0]] == ["baseline", "GPT-4o", "Claude", "Gemini", "LLaVA-1.6"]
    assert [cell.value for cell in table.frame.iloc[:2, 1]] == ["here", "published"]
    assert [cell.value for cell in table.frame.iloc[1, 2:]] == ["98.8", "12.0", "55.4"]
    assert "as_published" not in with_published_rows(
        worded(evaluate(pd.DataFrame(given), seed=0, draws=200)), "x", None, given
    )
