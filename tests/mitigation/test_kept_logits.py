"""Formulas scored again on kept logits: the answers of asking anew, or none where they cannot be known."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from interp.generation import Generation
from interp.vlm import VLM, Prompt
from mitigation import (
    AGLA,
    M3ID,
    PAI,
    VCD,
    VISTA,
    InstructionContrast,
    PriorCorrection,
    Sampled,
    SelfContrast,
    TextOnly,
)
from mitigation.branches import BranchMethod, keeping_logits
from mitigation.contrastive.kept_steps import KeptSteps
from mitigation.kept_logits import Line, replayed

TOKENS = 3
GRID: dict[str, tuple[Any, dict[str, Any]]] = {
    "vcd": (VCD(noise_step=999), {"alpha": 3.0}),
    "vcd_cut_more": (VCD(noise_step=999), {"alpha": 3.0, "beta": 0.5}),
    "text_only": (TextOnly(), {"alpha": 2.5}),
    "prior": (PriorCorrection(pictures=2, prior="neutral"), {"weight": 0.4}),
    "prior_off": (PriorCorrection(), {"weight": 0.0}),
    "icd": (InstructionContrast(disturbance="consider the dog"), {"alpha": 2.0}),
    "m3id": (M3ID(forgetting=0.03, threshold=0.9, beta=0.1), {"from_picture": True}),
    "pai": (PAI(first_layer=0), {"gamma": 3.0}),
    "agla": (AGLA(keep=0.5), {"alpha": 0.5}),
}

Kept = list[tuple[Generation, list[dict[str, Any]]]]


def keeper(kept: Kept) -> Callable[[Generation, KeptSteps], None]:
    def keep(generation: Generation, steps: KeptSteps) -> None:
        written = json.loads(json.dumps(steps.lines(generation.token_ids), allow_nan=False))
        kept.append((generation, written))

    return keep


def asked(vlm: VLM, prompts: list[Prompt], *methods: Any) -> tuple[list[Generation], list[list[Line]]]:
    """The answers of each method, and by prompt the logits kept along all of them."""
    kept: Kept = []
    with keeping_logits(keeper(kept)):
        answers = [method.generate(vlm, prompts, max_new_tokens=TOKENS) for method in methods]
    return answers, [[lines[row] for _, lines in kept] for row in range(len(prompts))]


@pytest.mark.parametrize("name", GRID)
def test_a_replay_is_what_asking_gives(vlm: VLM, prompts: list[Prompt], name: str) -> None:
    method, changes = GRID[name]
    other = replace(method, **changes)
    plain = [one.generate(vlm, prompts, max_new_tokens=TOKENS) for one in (method, other)]
    answers, both = asked(vlm, prompts, method, other)
    for one, own in zip(plain, answers, strict=True):
        assert own.token_ids == one.token_ids
        assert torch.allclose(own.margins, one.margins, atol=1e-5)
    assert not torch.allclose(plain[0].margins, plain[1].margins, atol=1e-3)
    for row, kept in enumerate(both):
        for one, live in ((method, plain[0]), (other, plain[1])):
            again = replayed(one, kept if changes != {"weight": 0.0} else kept[:1])
            assert again.margin == pytest.approx(float(live.margins[row]), abs=1e-5)
            assert again.tokens in (tuple(live.token_ids[row]), None)
            if len(kept) == 2:  # both answers were recorded, so that none can leave them
                assert again.tokens is not None
        first = kept[0]  # from one answer alone: that one, or unknown where it goes another way
        same = plain[1].token_ids[row] == first["tokens"]
        assert replayed(other, [first]).tokens == (tuple(first["tokens"]) if same else None)


def test_a_lower_cutoff_is_known_only_where_no_left_out_token_passes_it(vlm: VLM, prompts: list[Prompt]) -> None:
    method = VCD(beta=0.9)
    for row, kept in enumerate(asked(vlm, prompts, method)[1]):
        assert len(kept[0]["steps"][0]["ids"]) < 10  # of a hundred
        lower, none = (replayed(replace(method, beta=beta), kept) for beta in (0.001, None))
        assert lower.tokens is none.tokens is None
        live = replace(method, beta=0.001).generate(vlm, [prompts[row]], max_new_tokens=1)
        assert lower.margin == none.margin == pytest.approx(float(live.margins[0]), abs=1e-5)


def test_without_a_cutoff_margins_alone_are_known(vlm: VLM, prompts: list[Prompt]) -> None:
    method = VISTA(window=1)
    for row, kept in enumerate(asked(vlm, prompts, method)[1]):
        other = replace(method, gamma=0.6)
        again = replayed(other, kept)
        assert again.tokens is None
        live = other.generate(vlm, prompts, max_new_tokens=1)
        assert again.margin == pytest.approx(float(live.margins[row]), abs=1e-5)


def test_no_branch_is_left_out_and_no_batch_is_paired_while_logits_are_kept(vlm: VLM, prompts: list[Prompt]) -> None:
    assert VCD().branch_now(vlm) == "paired"
    kept: Kept = []
    with keeping_logits(keeper(kept)):
        assert VCD().branch_now(vlm) == "sequential"
        VCD(branch="paired").generate(vlm, prompts, max_new_tokens=TOKENS)
        VCD(branch="lazy").generate(vlm, prompts, max_new_tokens=TOKENS)
        assert not kept
        drawn = Sampled(SelfContrast()).generate(vlm, prompts, max_new_tokens=TOKENS)
    ((generation, lines),) = kept
    assert [line["tokens"] for line in lines] == generation.token_ids == drawn.token_ids
    assert all(len(line["steps"]) == len(line["tokens"]) for line in lines)


def test_every_setting_that_scores_read_is_one_of_the_method() -> None:
    import dataclasses

    for method, _ in GRID.values():
        assert isinstance(method, BranchMethod)
        assert set(method.score_settings) <= {each.name for each in dataclasses.fields(method)}
