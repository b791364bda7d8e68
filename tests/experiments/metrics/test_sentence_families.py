"""Families of sentences: what is proposed from texts, what a column says, and what is said of few and of many."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.metrics.yes_no.results import evaluate
from experiments.report.words import worded

from experiments.benchmarks.iconworld import IconWorld
from experiments.metrics.sentence_families import contradiction, families, sentence_codes
from experiments.studies.preview import understood
from experiments.types import Sample
from tests.experiments.answered import from_margins, world


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


def summary(found: pd.DataFrame) -> tuple[dict[str, Any], list[str], str]:
    metrics = worded(evaluate(found, seed=0, draws=200))
    return metrics, metrics["summary"], " ".join(metrics["caveats"])


@pytest.mark.parametrize(("count", "words"), [(1, "this one sentence"), (9, "these 9 sentences")])
def test_of_few_sentences_every_statement_is_about_these(count: int, words: str) -> None:
    metrics, said, caveats = summary(table(count))
    assert metrics["method"]["resampled"] == {"cluster": 240}
    assert all(f"For {words}: " in sentence for sentence in said)
    assert f"All cases are of {words}" in caveats
    assert metrics["comparisons"]["sees"]["delta"]["auroc"]["statement"] == "rose"


def test_ten_sentences_are_a_sample_and_those_of_one_case_each_are_cases() -> None:
    metrics, said, caveats = summary(table(10))
    assert metrics["method"]["resampled"] == {"cluster": 240, "template": 10}
    assert not any("sentence:" in one or "sentences:" in one for one in said)
    metrics, said, caveats = summary(table(240))
    assert metrics["method"]["resampled"] == {"cluster": 240}
    assert "sentence" not in caveats
    assert metrics["arms"]["sees"]["auroc_within"] is None, "no sentence has two cases"


def test_a_column_that_contradicts_the_texts_is_followed_and_told_of() -> None:
    metrics, _, caveats = summary(table(12, templates=True))
    assert metrics["method"]["sentences"]["families"] == 240
    assert caveats.count("The column template tells apart texts that are alike") == 1


def test_few_sentences_say_rose_of_an_effect_of_theirs_that_a_sample_does_not_show() -> None:
    """Half of the sentences gain, a third lose: true of these, not shown of others."""
    rng = np.random.default_rng(0)
    n, gains = 480, {9: [1, 1, 1, 1, 1, 1, -0.4, -0.4, -0.4], 12: [1, 1, 1, 1, 1, 1, -0.9, -0.9, -0.9, -0.9, 0, 0]}
    said = {}
    for count, gain in gains.items():
        of = np.arange(n) // 2 % count
        base = rng.normal(0, 1, n)
        arm = base + 0.7 * np.array(gain)[of] * np.tile([-1, 1], n // 2)
        found = from_margins("to" * (n // 2), {"baseline": base, "arm": arm})
        found["text"] = [f"Is word{of[int(case[1:])]} in here or not?" for case in found["case"]]
        metrics = evaluate(found, seed=0, draws=300)
        said[count] = metrics["comparisons"]["arm"]["delta"]["auroc"]["statement"]
    assert said == {9: "rose", 12: "not shown"}


def sample(case: int, text: str, **tags: str) -> Sample:
    return Sample(id=f"c{case}", subset="typical", scenario="s", gold="no", text=text, prompt=text, image=None,
                  cluster=f"k{case}", tags=tags)  # fmt: skip


def test_the_preview_shows_the_families() -> None:
    texts = [f"Is word{at % 12} in here or not?" for at in range(36)]
    shown = understood([sample(at, text) for at, text in enumerate(texts)], "yes_no", "mine")
    assert "sentences: 12 (of 3 cases each): a sample" in shown
    assert "3 cases: Is word0 in here or not?" in shown
    few = understood([sample(at, text) for at, text in enumerate(texts[:2] * 3)], "yes_no", "mine")
    assert "sentences: 2 (of 3 cases each): fewer than 10, so that all is said of these sentences alone" in few
    own = understood([sample(at, f"word{at} here") for at in range(12)], "yes_no", "mine")
    assert "sentences: 12, each case has its own" in own
    split = understood([sample(at, "Is it here or not?", template=str(at)) for at in range(12)], "yes_no", "mine")
    assert "warning: the column template tells apart texts that are alike" in split
