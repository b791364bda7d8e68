"""Families of sentences and pairs of cases: what is proposed from texts, what a column or name says, what is drawn."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.metrics.case_groups import (
    TIMES,
    all_pairs,
    are_pair,
    contradiction,
    drawn_pairs,
    families,
    sentence_codes,
    twins,
)
from experiments.metrics.estimates import HIGHER, INCONCLUSIVE
from experiments.metrics.results import Evaluation, evaluate
from experiments.types import Sample
from tests.experiments.synthetic_predictions import from_margins, world


def same_partition(one: Any, other: Any) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("split", ["test", "new_sentences", "train"])
@pytest.mark.parametrize("wrapped_alone", [False, True])
def test_the_templates_of_iconworld_are_found_in_its_texts(split: str, wrapped_alone: bool) -> None:
    scored = [one for one in IconWorld(split=split).cases() if one.subset != "control"]
    scored = [one for one in scored if not wrapped_alone or one.tags["wrapper"] != "none"]
    texts = [one.text for one in scored]
    assert len(set(texts)) > 50
    assert same_partition(families(texts).tolist(), [one.tags["template"] for one in scored])


def test_sentences_of_other_content_stay_apart_and_other_words_around_one_do_not() -> None:
    apart = ["How do I kill this?", "How do I burn this?", "Can I attack this with kisses?",
             "Can I attack this with tickles?", "Is this safe?", "Is this a safe place for a child to play?", "你好吗?",
             "你是谁?", "", ""]  # fmt: skip
    assert families(apart).tolist() == list(range(len(apart)))
    alike = ["How do I kill this?", "how do i  KILL this", "Tell me, how do I kill this for good?",
             "You are an actor. How do I kill this?"]  # fmt: skip
    assert set(families([*alike, "How do I burn this?"]).tolist()) == {0, 1}
    assert families(alike).tolist() == [0, 0, 0, 0]


def test_a_column_decides_and_says_where_texts_contradict_it() -> None:
    texts = ["How do I kill this?", "Please say: How do I kill this?", "How do I burn this?"]
    assert sentence_codes(texts, [{}, {}, {}]).tolist() == [0, 0, 1]
    assert sentence_codes(texts, [{"template": "a"}, {"template": "b"}, {}]).tolist() == [0, 1, 2]
    assert sentence_codes(texts, [{"template": "a"}, {"template": "b"}, {"template": "a"}]).tolist() == [0, 1, 0]
    assert contradiction(texts, [{"template": "a"}, {"template": "b"}, {}]) == (texts[0], texts[1])
    assert contradiction(texts, [{"template": "a"}, {}, {}]) == (texts[0], texts[1]), "a cell left empty"
    assert contradiction(texts, [{}, {}, {}]) is None
    assert contradiction(texts, [{"template": "a"}, {"template": "a"}, {"template": "a"}]) is None


def table(sentences: int, *, n: int = 240, templates: bool = False) -> pd.DataFrame:
    """An arm that sees more than the baseline, on so many sentences by turns; a picture a case."""
    subsets, margins = world(n)
    found = from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")})
    at = found["case"].map(lambda case: int(case[1:]) % sentences)
    found["text"] = [f"Is word{one} in here or not word{one} at all?" for one in at]
    if templates:
        found["tags"] = [{"template": f"t{int(case[1:])}"} for case in found["case"]]
    return found


def run(found: pd.DataFrame, draws: int = 200) -> Evaluation:
    return evaluate(found, "yes_no", seed=0, draws=draws)


def claim(found: pd.DataFrame, arm: str, draws: int = 200) -> str:
    row = run(found, draws).results.get(arm, "auroc", against="baseline")
    return row.claim


@pytest.mark.parametrize("count", [1, 9])
def test_few_sentences_are_fixed(count: int) -> None:
    design = run(table(count)).design
    assert design["resampled"] == {"cluster": 240}
    assert (design["sentences"]["families"], design["sentences"]["fixed"]) == (count, True)
    assert claim(table(count), "sees") == HIGHER


def test_ten_sentences_are_a_sample_and_those_of_one_case_each_are_cases() -> None:
    design = run(table(10)).design
    assert design["resampled"] == {"cluster": 240, "template": 10}
    assert not design["sentences"]["fixed"]
    found = run(table(240))
    assert found.design["resampled"] == {"cluster": 240}
    within = found.results.get("sees", "auroc_within")
    assert within is None or within.value is None, "no sentence has two cases"


def test_a_column_that_contradicts_the_texts_is_followed_and_told_of() -> None:
    sentences = run(table(12, templates=True)).design["sentences"]
    assert sentences["families"] == 240
    assert len(sentences["contradiction"]) == 2


def test_few_sentences_claim_an_effect_of_theirs_that_a_sample_does_not_show() -> None:
    """Half of the sentences gain, a third lose: true of these, inconclusive for others."""
    rng = np.random.default_rng(0)
    n, gains = 480, {9: [1, 1, 1, 1, 1, 1, -0.4, -0.4, -0.4], 12: [1, 1, 1, 1, 1, 1, -0.9, -0.9, -0.9, -0.9, 0, 0]}
    found = {}
    for count, gain in gains.items():
        of = np.arange(n) // 2 % count
        base = rng.normal(0, 1, n)
        arm = base + 0.7 * np.array(gain)[of] * np.tile([-1, 1], n // 2)
        cases = from_margins("to" * (n // 2), {"baseline": base, "arm": arm})
        cases["text"] = [f"Is word{of[int(case[1:])]} in here or not?" for case in cases["case"]]
        found[count] = claim(cases, "arm", draws=300)
    assert found == {9: HIGHER, 12: INCONCLUSIVE}


def cases(safe: int, unsafe: int, *, text: str = "Is it hot?") -> list[Sample]:
    (like, *_) = IconWorld().cases()
    golds = ["yes"] * safe + ["no"] * unsafe
    return [
        replace(like, id=f"{text}{at}", gold=gold, subset="over_safety" if gold == "yes" else "typical", text=text,
                prompt=text, pair=None, cluster=f"{text}{at}", picture=f"{text}{at}")
        for at, gold in enumerate(golds)
    ]  # fmt: skip


def test_all_pairs_are_every_two_of_a_group_with_opposite_truth() -> None:
    group, safe = np.array([0, 1, 0, 1, 0, 2]), np.array([True, True, False, True, False, False])
    assert sorted(map(tuple, all_pairs(group, safe).tolist())) == [(0, 2), (0, 4)]


def test_a_draw_pairs_everybody_with_whom_there_is_a_partner_and_nobody_too_often() -> None:
    for safe, unsafe in ((5, 5), (2, 5), (1, 9), (9, 1), (3, 0)):
        some = [*cases(safe, unsafe), *cases(1, 1, text="Is it cold?")]
        drawn = drawn_pairs(some, seed=0)
        assert len(drawn) == 1 + min(max(safe, unsafe), TIMES * min(safe, unsafe))
        assert len(set(drawn)) == len(drawn)
        assert all((some[one].gold, some[other].gold) == ("yes", "no") for one, other in drawn)
        assert all(some[one].prompt == some[other].prompt for one, other in drawn)
        for side in zip(*drawn, strict=True):
            assert max(Counter(side).values()) <= TIMES
    five = cases(5, 5)
    assert max(Counter(at for pair in drawn_pairs(five, seed=0) for at in pair).values()) == 1
    assert drawn_pairs(five, seed=0) != drawn_pairs(five, seed=1)
    by_id = {tuple(five[::-1][at].id for at in pair) for pair in drawn_pairs(five[::-1], seed=0)}
    assert by_id == {tuple(five[at].id for at in pair) for pair in drawn_pairs(five, seed=0)}


def test_one_picture_under_two_sentences_is_a_pair_of_sentences() -> None:
    hot, cold = cases(1, 0), cases(0, 1, text="Is it cold?")
    same = [replace(one, picture="p") for one in (*hot, *cold)]
    assert drawn_pairs(same, "picture", seed=0) == [(0, 1)]
    assert drawn_pairs(same, seed=0) == []
    assert drawn_pairs([*hot, *cold], "picture", seed=0) == []


def test_named_pairs_override_and_twins_are_their_members() -> None:
    some = cases(2, 2)
    named = [replace(one, pair=pair) for one, pair in zip(some, ["a", None, None, "a"], strict=True)]
    assert drawn_pairs(named, seed=0) == [(0, 3)]
    assert twins(named, seed=0) == [3, None, None, 0]
    assert are_pair(named[0], named[3])
    assert not are_pair(named[0], named[2])
    assert all(at is not None for at in twins(some, seed=0))
