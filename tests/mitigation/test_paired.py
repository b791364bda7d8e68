"""Clean and noised rows in one batch: two branches' tokens, draws from the right distribution, what is refused."""

from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from interp.errors import UserError
from interp.vlm import VLM
from mitigation.contrastive.paired import PairedContrastLogitsProcessor, generate_paired, pair_inputs
from mitigation.processors import CaseSampler
from tests.mitigation.conftest import TOKENS, answer, contrasting, generate
from tests.mitigation.family_laws import case
from tests.slow import first

DRAWS = 20_000
WARPERS = {"temperature": TemperatureLogitsWarper, "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper}


def paired(vlm: VLM, inputs: Any, noised: Any, **options: Any) -> Any:
    options = {"alpha": 2.0, "beta": 0.1, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0} | options
    return generate_paired(vlm.model, inputs, noised, **options)


def pairing(vlm: VLM, ids: Tensor, *, alpha: float = 1.0, beta: float | None = 0.1) -> PairedContrastLogitsProcessor:
    return PairedContrastLogitsProcessor(vlm.model, ids, alpha=alpha, beta=beta)


def sampler(rows: int) -> CaseSampler:
    return CaseSampler([str(row) for row in range(rows)], temperature=1.0, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("alpha", first([1.5, 0.0]))
@pytest.mark.parametrize(
    "settings",
    first([{"temperature": 1.7, "top_k": 6, "top_p": 0.8}, {}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7}]),
    ids=lambda settings: "_".join(settings) or "plain",
)
def test_draws_follow_the_distribution_that_transformers_samples_from(
    vlm: VLM, inputs: Any, noised: Any, alpha: float, settings: dict[str, Any]
) -> None:
    # transformers' own loop, its own warpers, our processor before them: what it hands to multinomial.
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    processor = contrasting(vlm, noised, alpha=alpha, beta=0.1)
    with torch.random.fork_rng(devices=[]):
        law = generate(vlm, inputs, processor, do_sample=True, max_new_tokens=1, **off | settings).scores[0]
    clean, worse = vlm.model(**inputs).logits[0, -1], vlm.model(**noised).logits[0, -1]
    scores = torch.cat([row.detach().expand(DRAWS, -1) for row in (clean, worse)])
    ids = torch.zeros(2 * DRAWS, 1, dtype=torch.long)
    contrasting_halves = pairing(vlm, ids, alpha=alpha, beta=0.1)
    contrasting_halves.after.extend([*(WARPERS[name](value) for name, value in settings.items()), sampler(DRAWS)])
    drawn = contrasting_halves(ids, scores)

    assert torch.equal(drawn[:DRAWS], drawn[DRAWS:])
    counts = drawn[:DRAWS].argmax(dim=1).bincount(minlength=len(clean))
    expected = law[0].softmax(dim=0)
    assert counts[expected == 0].sum() == 0
    assert (expected > 0).sum() > 2, "a law with a choice"
    often = expected * DRAWS > 5
    seen = torch.cat([counts[often], counts[~often].sum()[None]]).double()
    hoped = torch.cat([expected[often], expected[~often].sum()[None]]).double() * DRAWS
    some = hoped > 1e-9
    assert chisquare(seen[some], hoped[some] / hoped[some].sum() * seen[some].sum()).pvalue > 1e-3


def test_sampled_answers_repeat_with_their_seed_and_differ_without(vlm: VLM, inputs: Any, noised: Any) -> None:
    def sampled(seed: int) -> Tensor:
        drawing = CaseSampler(["a", "b", "c"], temperature=3.0, seed=seed)
        return paired(vlm, inputs, noised, beta=0.01, logits_processor=[drawing]).sequences

    state = torch.random.get_rng_state()
    assert torch.equal(sampled(1), sampled(1))
    assert not torch.equal(sampled(1), sampled(2))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_forbidden_tokens_stay_forbidden_also_without_a_cutoff(vlm: VLM, inputs: Any, noised: Any) -> None:
    free = answer(paired(vlm, inputs, noised, beta=None), inputs)
    banned = free[:, 0].unique().tolist()
    sequential = generate(vlm, inputs, contrasting(vlm, noised, alpha=2.0, beta=None), suppress_tokens=banned)
    output = paired(vlm, inputs, noised, beta=None, suppress_tokens=banned)
    assert not output.first_scores.isnan().any()
    assert torch.equal(output.sequences, sequential.sequences)
    assert not torch.isin(answer(output, inputs), torch.tensor(banned)).any()


def test_a_penalty_of_the_checkpoint_is_refused_and_its_sampling_left_aside(vlm: VLM, inputs: Any, noised: Any) -> None:
    expected = paired(vlm, inputs, noised).sequences
    config = vlm.model.generation_config
    config.do_sample, config.temperature, config.top_k, config.num_beams = True, 9.0, 3, 5
    assert torch.equal(paired(vlm, inputs, noised).sequences, expected)
    config.repetition_penalty = 1.3
    with pytest.raises(UserError, match=r"repetition_penalty=1\.0"):
        paired(vlm, inputs, noised)
    assert torch.equal(paired(vlm, inputs, noised, repetition_penalty=1.0).sequences, expected)


def test_tiles_and_prompts_of_other_lengths_are_filled_up() -> None:
    whole = case("idefics3")
    short = dict(whole.vlm.encode(whole.prompts[:1])), dict(whole.vlm.encode(whole.prompts[1:2]))
    short = tuple(sorted(short, key=lambda half: half["input_ids"].shape[1]))
    clean, worse = short
    assert clean["pixel_values"].shape[1] != worse["pixel_values"].shape[1]
    assert clean["input_ids"].shape[1] < worse["input_ids"].shape[1]
    said = paired(whole.vlm, clean, worse).sequences
    assert torch.equal(said[:, :-TOKENS], clean["input_ids"])
    both = pair_inputs(whole.vlm.model, clean, worse)
    alone = [whole.vlm.model(**half).logits[0, -1] for half in short]
    torch.testing.assert_close(whole.vlm.model(**both).logits[:, -1], torch.stack(alone), atol=1e-2, rtol=1e-3)
