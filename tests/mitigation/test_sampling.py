"""Sampling that is exact, repeatable, and independent of the batch."""

import pytest
import torch

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.contrastive.processors import plausible
from mitigation.method import Baseline
from mitigation.processors import CaseSampler, PlausibilityLogitsProcessor, gumbel
from mitigation.wrappers import Sampled


def test_tokens_are_drawn_with_the_softmaxs_probabilities() -> None:
    keys, temperature = [f"case-{i}" for i in range(4000)], 0.7
    scores = torch.tensor([0.0, 1.0, 2.0, -torch.inf, -1.0])
    sampler = CaseSampler(keys, temperature=temperature, seed=0)
    drawn = sampler(torch.zeros(len(keys), 3, dtype=torch.long), scores.expand(len(keys), -1)).argmax(dim=1)
    shares = torch.bincount(drawn, minlength=5) / len(keys)
    assert shares[3] == 0
    assert (shares - (scores / temperature).softmax(0)).abs().max() < 0.025  # three standard errors


def test_every_step_key_and_seed_has_noise_of_its_own() -> None:
    zeros, ids = torch.zeros(2, 6), torch.zeros(2, 3, dtype=torch.long)
    sampler = CaseSampler(["a", "b"], temperature=1.0, seed=0)
    first, second = sampler(ids, zeros), sampler(torch.zeros(2, 4, dtype=torch.long), zeros)
    other = CaseSampler(["a", "b"], temperature=1.0, seed=1)(ids, zeros)
    rows = [*first, *second, *other]
    assert all(not torch.equal(x, y) for i, x in enumerate(rows) for y in rows[:i])
    padded = CaseSampler(["b"], temperature=1.0, seed=0)(torch.zeros(1, 9, dtype=torch.long), zeros[:1])
    assert torch.equal(padded[0], first[1])  # neither its row nor the batch's padding is in it


def test_gumbel_noise_has_its_distribution() -> None:
    noise = gumbel(200_000, "a", 0)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.std().item() == pytest.approx(1.2825, abs=0.02)


def test_a_draw_of_zero_makes_no_forbidden_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponential draws may be 0, of which infinite noise would come, and not a number at a token that is −inf."""
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, *_, **__: self.zero_())
    scores = torch.tensor([[-torch.inf, 1.0, 2.0]])
    sampler = CaseSampler(["a"], temperature=1.0, seed=0)
    assert sampler(torch.zeros(1, 3, dtype=torch.long), scores).argmax() == 2


def test_the_cutoff_alone_keeps_scores_and_the_likeliest() -> None:
    scores = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)) * 3
    cut = PlausibilityLogitsProcessor(beta=0.2)(torch.zeros(5, 1, dtype=torch.long), scores)
    assert torch.equal(cut.isfinite(), plausible(scores, beta=0.2))
    assert torch.equal(cut[cut.isfinite()], scores[cut.isfinite()])
    assert torch.equal(cut.argmax(1), scores.argmax(1))


def test_an_answer_repeats_and_depends_on_its_seed(vlm: VLM, prompts: list[Prompt]) -> None:
    seeds = (Sampled(Baseline(), temperature=1.5, seed=seed) for seed in (3, 3, 4))
    first, again, other, plain = (m.generate(vlm, prompts, max_new_tokens=6).token_ids for m in (*seeds, Baseline()))
    assert first == again
    assert first not in (other, plain)


def test_cold_sampling_is_greedy_and_the_global_generator_is_left_alone(vlm: VLM, prompts: list[Prompt]) -> None:
    before = torch.get_rng_state()
    cold = Sampled(Baseline(), temperature=1e-4).generate(vlm, prompts, max_new_tokens=6)
    plain = Baseline().generate(vlm, prompts, max_new_tokens=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert cold.token_ids == plain.token_ids
    assert torch.equal(cold.margins, plain.margins)


def test_a_loop_of_its_own_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    class Own:
        def generate(self, vlm: VLM, prompts: list[Prompt], *, max_new_tokens: int) -> object:
            return vlm.model.generate(**vlm.encode(prompts), max_new_tokens=max_new_tokens)

    with pytest.raises(UserError, match="its own decoding loop"):
        Sampled(Own()).generate(vlm, prompts, max_new_tokens=1)
