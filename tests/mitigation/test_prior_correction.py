"""Prior correction: a slow loop, what a prior may see, and what margins owe to their sentences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from interp.generation import AnswerIds
from interp.vlm import VLM, Prompt
from mitigation.branches import BranchLogits
from mitigation.method import PRIORS, Baseline
from mitigation.prior_correction import WORTH, PriorCorrection, prior_inputs, prior_margins, prior_share
from mitigation.vcd import VCD
from mitigation.wrappers import Shifted
from tests.mitigation.slow_rule import decided, held, slow_rule
from tests.tiny import picture

TOKENS = 3


def slowly(vlm: VLM, prompt: Prompt, method: PriorCorrection) -> Any:
    priors = prior_inputs(vlm, [prompt], method.prior, pictures=method.pictures, seed=method.seed)

    def rule(clean: Tensor, others: list[Tensor], step: int) -> Tensor:
        scores = clean.log_softmax(0)
        for other in others:
            scores = scores - method.weight / len(others) * other.log_softmax(0)
        answers = [*vlm.answer_ids.yes, *vlm.answer_ids.no]
        if not step and int(clean.argmax()) in answers:
            scores[[i for i in range(len(scores)) if i not in answers]] = -torch.inf
        return scores  # the tiny tokenizer has one spelling an answer

    return slow_rule(vlm, vlm.encode([prompt]), priors, rule, beta=method.beta, tokens=TOKENS)


@pytest.mark.parametrize(
    ("prior", "answers"), [("none", False), ("blank", True), ("noise", False), ("neutral", True), ("swapped", False)]
)
def test_it_is_the_formula_decoded_greedily(vlm: VLM, prompts: list[Prompt], prior: str, answers: bool) -> None:
    vlm = decided(vlm) if answers else vlm
    method = PriorCorrection(1.5, prior, pictures=2, beta=0.05)
    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    held(got, prompts, lambda prompt: slowly(vlm, prompt, method))
    assert got.token_ids != Baseline().generate(vlm, prompts, max_new_tokens=TOKENS).token_ids or answers


@pytest.mark.parametrize("prior", PRIORS)
def test_margins_are_less_the_mean_of_the_priors(vlm: VLM, prompts: list[Prompt], prior: str) -> None:
    method = Shifted(PriorCorrection(0.7, prior, pictures=3, seed=5), 0.25)
    priors = prior_inputs(vlm, prompts, prior, pictures=3, seed=5)
    assert len(priors) == (1 if prior in ("none", "blank") else 3)
    mean = torch.stack([vlm.score(prompts, encoded=p) for p in priors]).mean(0)
    assert torch.equal(prior_margins(vlm, prompts, prior, pictures=3, seed=5), mean)
    expected = vlm.score(prompts) - 0.7 * mean + 0.25
    torch.testing.assert_close(method.generate(vlm, prompts, max_new_tokens=1).margins, expected, atol=1e-4, rtol=1e-4)


def test_a_prior_sees_nothing_of_the_case(vlm: VLM) -> None:
    cases = [Prompt("what is red", picture(number), key=f"case {number}") for number in (1, 2)]
    for prior in PRIORS:
        first, second = vlm.score(cases, encoded=prior_inputs(vlm, cases, prior, pictures=1, seed=0)[0]).tolist()
        assert (first == pytest.approx(second, abs=1e-5)) == (prior != "swapped")  # whose picture goes by the key
    again = [replace(case, image=picture(7)) for case in cases]
    both = (vlm.score(c, encoded=prior_inputs(vlm, c, "swapped", pictures=1, seed=0)[0]) for c in (cases, again))
    assert torch.equal(*both)


@pytest.mark.parametrize("beta", [1.0, None])
def test_verdicts_follow_their_margins(vlm: VLM, prompts: list[Prompt], beta: float | None) -> None:
    vlm, seen = decided(vlm), set()
    for shift in (-2.0, 0.0, 2.0):
        for weight in (0.0, 4.0):
            method = PriorCorrection(weight, "blank", beta=beta)
            got = (Shifted(method, shift) if shift else method).generate(vlm, prompts, max_new_tokens=1)
            assert got.texts == ["Yes" if margin > 0 else "No" for margin in got.margins]
            seen.add(tuple(got.texts))
    assert len(seen) > 2


def test_below_one_it_ranks_as_vcd_over_the_same_picture(vlm: VLM, prompts: list[Prompt]) -> None:
    alpha = 3.0
    vcd = VCD(alpha=alpha, beta=None, noise="swapped", seed=2).generate(vlm, prompts, max_new_tokens=1)
    method = PriorCorrection(alpha / (1 + alpha), "swapped", pictures=1, seed=2)
    margins = method.generate(vlm, prompts, max_new_tokens=1).margins
    torch.testing.assert_close((1 + alpha) * margins, vcd.margins, atol=1e-4, rtol=1e-4)


def test_spellings_of_an_answer_share_its_prior() -> None:
    clean, prior = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    prior[:, 1] = -30.0  # a spelling that the sentence alone never has
    answers = AnswerIds([0, 1], [2, 5])
    logits = BranchLogits(clean, prior[None], answers)
    scores = PriorCorrection(weight=2.0).scores(logits, 0)

    def margin(logits: Tensor) -> Tensor:
        return logits[:, answers.yes].logsumexp(-1) - logits[:, answers.no].logsumexp(-1)

    torch.testing.assert_close(margin(scores), margin(clean) - 2 * margin(prior))
    plain = PriorCorrection(weight=2.0).scores(logits, 1)
    assert plain.argmax(-1).tolist() == [1, 1, 1]  # by its rarity
    for row, best in enumerate(clean.argmax(-1).tolist()):  # a verdict stays one, other words stay free
        assert bool(scores[row, [3, 4, 6, 7]].isinf().all()) == (best in (0, 1, 2, 5))
    assert scores.isinf().any()
    assert not scores.isinf()[:, 3].all()


SENTENCES = [f"sentence {i // 10}" for i in range(400)]
SAFE = np.arange(400) % 2 == 0


def planted(prior_spread: float, *, seed: int = 0, picture: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Margins of prior + picture, half safe and half unsafe in every sentence, all far below 0; and the priors."""
    rng = np.random.default_rng(seed)
    prior = np.repeat(prior_spread * rng.standard_normal(40), 10) - 5
    return prior + picture * (np.where(SAFE, 1, -1) + rng.standard_normal(400)), prior


def d_prime(margins: np.ndarray) -> float:
    spread = np.sqrt((margins[SAFE].var() + margins[~SAFE].var()) / 2)
    return float((margins[SAFE].mean() - margins[~SAFE].mean()) / spread)


def test_a_prior_that_differs_by_sentence_is_found_and_its_removal_helps() -> None:
    margins, prior = planted(4.0)
    found = prior_share(margins, prior, SENTENCES)
    assert found.weight == pytest.approx(1, abs=0.05)
    assert found.explained == pytest.approx(1 - 0.5 / margins.var(), abs=0.02)
    assert found.between > 0.95
    assert found.within == pytest.approx(1)
    assert found.helps
    assert d_prime(margins - found.weight * prior) > 4 * d_prime(margins)


def test_a_uniform_bias_is_no_prior_to_correct() -> None:
    margins, _ = planted(0.0)
    found = prior_share(margins, np.full(400, -5.0), SENTENCES)
    assert (found.weight, found.explained, found.factor, found.helps) == (0, 0, 1, False)
    assert np.isnan(found.correlation)
    assert prior_share(margins, -5 + 1e-7 * margins, SENTENCES).weight == 0  # rounding is no prior
    noise = np.repeat(np.random.default_rng(1).standard_normal(40), 10)
    assert not prior_share(margins, noise, SENTENCES).helps


def test_a_prior_that_still_sees_the_picture_does_not_help() -> None:
    margins, prior = planted(0.5)
    found = prior_share(margins, prior + 0.8 * (margins - prior), SENTENCES)
    assert found.factor > WORTH
    assert found.within < 0.5
    assert not found.helps


def test_the_factor_is_that_of_a_difference_that_stays() -> None:
    rng = np.random.default_rng(0)
    prior = np.repeat(rng.standard_normal(40), 10)
    margins = prior + 0.7 * rng.standard_normal(400)
    found = prior_share(margins, prior, SENTENCES)
    tiny = np.where(SAFE, 1e-3, -1e-3)  # against the spread, to which it adds nothing
    gained, had = (d_prime(m + tiny) - d_prime(m) for m in (margins - found.weight * prior, margins))
    assert gained / had == pytest.approx(found.factor, rel=1e-2)


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.1, 10), st.floats(0.1, 10))
def test_constants_and_scales_are_no_matter(up: float, aside: float, margin_scale: float, prior_scale: float) -> None:
    margins, prior = planted(2.0)
    plain = prior_share(margins, prior, SENTENCES)
    moved = prior_share(margin_scale * margins + up, prior_scale * prior + aside, SENTENCES)
    assert moved.weight == pytest.approx(plain.weight * margin_scale / prior_scale)
    for name in ("between", "explained", "correlation", "left", "factor", "within"):
        assert getattr(moved, name) == pytest.approx(getattr(plain, name)), name
    assert moved.helps == plain.helps
