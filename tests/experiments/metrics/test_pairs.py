"""Pairs by themselves: which there are, which are drawn, and what a name overrides."""

from collections import Counter
from dataclasses import replace

import numpy as np

from experiments.benchmarks.iconworld import IconWorld
from experiments.metrics.pairs import TIMES, all_pairs, are_pair, drawn_pairs, twins
from experiments.types import Sample


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
