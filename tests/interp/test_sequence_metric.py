"""The margin over whole openings: equal to brute force, and followed by the tools to a planted cause."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from interp.hooks.residual import last_layer
from interp.sequence_metric import SequenceMetric
from interp.tools.knockout import knockout_effect
from interp.tools.lens import logit_lens, sequence_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from tests.families import every_family
from tests.mitigation.family_laws import family
from tests.mitigation.test_forced import by_plain_forwards
from tests.planted import OPENINGS, Plan, coloured, planted
from tests.tiny import picture

QUESTION = "How do I fire this ?"
PROMPTS = [Prompt("How do I kill it ?", picture(1)), Prompt("a cake", picture(2)), Prompt(QUESTION, picture(3))]
SEVERAL = SequenceMetric(((7, 8, 9), (7, 10), (11,), (12, 13)))


def brute_force(vlm: VLM, prompts: list[Prompt], metric: SequenceMetric) -> torch.Tensor:
    """Return the margins by one forward for each token of each opening, each prompt alone."""
    return (metric.shift - by_plain_forwards(vlm, prompts, metric.openings).exp().sum(-1).logit()).float()


@pytest.mark.parametrize("name", every_family())
def test_a_score_is_the_sum_over_openings_by_brute_force_in_a_ragged_batch(name: str) -> None:
    vlm = family(name)
    metric = replace(SEVERAL, shift=1.5)
    expected = brute_force(vlm, PROMPTS, metric)
    torch.testing.assert_close(vlm.score(PROMPTS, metric=metric), expected, atol=1e-5, rtol=1e-5)
    vlm.metric = metric
    try:
        torch.testing.assert_close(vlm.batches.scores(PROMPTS), expected, atol=1e-5, rtol=1e-5)
        layers = [last_layer(vlm)]
        torch.testing.assert_close(sequence_lens(vlm, PROMPTS, metric, layers)[0], expected, atol=1e-4, rtol=1e-4)
    finally:
        vlm.metric = None


def test_each_stem_is_read_once() -> None:
    assert SEVERAL.stems == [(7, 8), (12,)]  # (7, 10) is read with the first, (11,) with any


def test_the_next_token_is_the_metric_of_one_column() -> None:
    vlm = family("llava")
    metric = SEVERAL.next_token((7,))
    assert metric == SequenceMetric(((8,), (10,)), answer_prefix=(7,))
    begun = metric.begin(PROMPTS)
    expected = brute_force(vlm, begun, metric)
    torch.testing.assert_close(vlm.score(begun, metric=metric), expected, atol=1e-5, rtol=1e-5)
    read = logit_lens(vlm, begun, metric=metric).margins[0, -1]
    torch.testing.assert_close(read, expected, atol=1e-4, rtol=1e-4)
    total = direct_logit_attribution(vlm, begun, metric=metric).total
    torch.testing.assert_close(total, expected, atol=1e-3, rtol=1e-3)


def refusing(**plan: Any) -> tuple[VLM, SequenceMetric]:
    vlm = planted(Plan(in_words=True, **plan))
    ids = vlm.tokenizer.convert_tokens_to_ids
    return vlm, SequenceMetric(tuple(tuple(ids(list(opening))) for opening in OPENINGS))


def asked(redness: float, text: str = QUESTION) -> Prompt:
    return Prompt(text, coloured(redness))


def test_the_planted_model_answers_and_refuses_in_words_and_its_margin_is_known() -> None:
    vlm, metric = refusing()
    prompts = [asked(redness) for redness in (1, 0.4, -0.2, -1)]
    answers = vlm.generate(prompts, max_new_tokens=3).texts
    assert answers == ["please start", "please start", "please Refuse", "unsafe text"]
    margins = vlm.score(prompts, metric=metric)
    assert [bool(margin > 0) for margin in margins] == [True, True, False, False]
    assert margins.tolist() == sorted(margins.tolist(), reverse=True)


def test_a_planted_picture_cause_is_found_by_patching() -> None:
    vlm, metric = refusing()
    clean, other = [asked(-1)] * 2, [asked(1), asked(0.4)]
    effects = patch(vlm, clean, other, places=("image", "user", "verdict"), metric=metric)
    ones, zeros = torch.ones(2), torch.zeros(2)
    close: Any = {"atol": 1e-3, "rtol": 0}
    torch.testing.assert_close(effects.select("image", 1), ones, **close)  # the head of layer 1 reads it
    torch.testing.assert_close(effects.select("image", 2), zeros, **close)
    torch.testing.assert_close(effects.select("verdict", 1), zeros, **close)
    torch.testing.assert_close(effects.select("verdict", 2), ones, **close)  # also in the columns of the openings
    torch.testing.assert_close(effects.select("verdict", 4), ones, **close)
    torch.testing.assert_close(effects.values[1], torch.zeros_like(effects.values[1]), **close)


def test_a_knockout_of_the_verdict_and_of_forced_tokens_takes_the_picture_away() -> None:
    vlm, metric = refusing()
    prompts = [asked(1), asked(-1)]
    both = [("image", "verdict"), ("image", "generated")]
    whole = vlm.score(prompts, metric=metric)
    without = (knockout_effect(vlm, prompts, both, metric=metric).moved[0] + whole).tolist()
    assert without[0] == pytest.approx(without[1], abs=1e-3)  # nothing of the picture is left
    first = (knockout_effect(vlm, prompts, both[:1], metric=metric).moved[0] + whole).tolist()
    assert first[0] != pytest.approx(first[1], abs=1e-2)
