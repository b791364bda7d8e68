"""What the lazy branch saves, and that nobody could tell from the answers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.formulas import plausible
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
from mitigation.contrastive.second_branch import MAX_GROUPS, LazyBranches, SecondBranch, Skips
from mitigation.vcd import VCD
from tests.mitigation.conftest import contrasting, generate
from tests.mitigation.family_laws import SHARP, TEXTS
from tests.tiny import picture, tiny_llava

ROWS = 8
Forwards = list[tuple[int, int, bool]]


@pytest.fixture(scope="module")
def sharp() -> VLM:
    vlm = VLM(*tiny_llava(), name="tiny")
    vlm.model.lm_head.weight.data *= SHARP
    return vlm


@pytest.fixture(scope="module")
def batch(sharp: VLM) -> tuple[Any, Any]:
    """Eight prompts of three lengths, and their noised twin."""
    prompts = [Prompt(TEXTS[i % 3], picture(i), key=f"case-{i}") for i in range(ROWS)]
    inputs = sharp.encode(prompts)
    return inputs, diffuse_images(inputs, [p.key for p in prompts], step=999, seed=0)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Forwards:
    """Rows, tokens and whether there was a picture, of every forward of a second branch."""
    seen: Forwards = []
    forward = SecondBranch._forward

    def counted(self: SecondBranch, module: Any, positions: Tensor, **inputs: Any) -> Tensor:
        seen.append((*inputs["input_ids"].shape, "pixel_values" in inputs))
        return forward(self, module, positions, **inputs)

    monkeypatch.setattr(SecondBranch, "_forward", counted)
    return seen


def unsure(output: Any, beta: float) -> Tensor:
    """Row × step: more than one token passes the cutoff."""
    return torch.stack([plausible(logits, beta=beta).sum(dim=1) > 1 for logits in output.logits], dim=1)


@settings(
    max_examples=6,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    alpha=st.floats(0.5, 4),
    beta=st.sampled_from([0.8, 0.5, 0.2, 0.05]),
    sample=st.booleans(),
    end=st.one_of(st.none(), st.integers(5, 60)),
)
def test_every_chosen_token_is_the_eager_one(
    sharp: VLM, batch: Any, alpha: float, beta: float, sample: bool, end: int | None
) -> None:
    inputs, noised = batch
    outputs = []
    for lazy in (False, True):
        ends = () if end is None else (end,)
        processor = contrasting(sharp, noised, alpha=alpha, beta=beta, lazy=lazy, ends=ends)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs.append(generate(sharp, inputs, processor, do_sample=sample, eos_token_id=end, output_logits=True))
    eager, lazy = outputs
    assert torch.equal(lazy.sequences, eager.sequences)
    steps, skips = len(eager.scores), processor.skips
    said = eager.sequences[:, inputs["input_ids"].shape[1] :]
    ended = (said == end).cumsum(dim=1).roll(1, dims=1).bool() if end is not None else torch.zeros_like(said).bool()
    ended[:, 0] = False
    needed = unsure(eager, beta) & ~ended
    assert skips.steps == ROWS * steps - int(ended.sum())
    assert skips.skipped <= skips.steps - int(needed.sum())
    assert skips.prefills >= int(needed.any(dim=1).sum())
    assert skips.prefills + skips.skipped_prefills == ROWS
    for step in range(steps):  # what was contrasted is contrasted alike; what was not has one token left
        alike = torch.isclose(eager.scores[step], lazy.scores[step], atol=1e-3).all(dim=1)
        assert (alike | ~unsure(eager, beta)[:, step]).all()


def test_a_verdict_costs_a_prefill_only_where_it_is_unsure(sharp: VLM, batch: Any, forwards: Forwards) -> None:
    inputs, noised = batch
    best = generate(sharp, inputs, max_new_tokens=1, output_logits=True).logits[0].topk(2, dim=1).values
    beta = float((best[:, 1] - best[:, 0]).sort().values[3:5].mean().exp())  # between the fourth and the fifth row
    processor = contrasting(sharp, noised, alpha=1.0, beta=beta, lazy=True)
    eager = contrasting(sharp, noised, alpha=1.0, beta=beta)

    output = generate(sharp, inputs, processor, max_new_tokens=1, output_logits=True)

    assert forwards == [(4, inputs["input_ids"].shape[1], True)]
    assert processor.skips == Skips(steps=ROWS, skipped=4, prefills=4, skipped_prefills=4)
    generate(sharp, inputs, eager, max_new_tokens=1)
    asked = unsure(output, beta)[:, 0]
    torch.testing.assert_close(processor.first_scores[asked], eager.first_scores[asked], atol=1e-3, rtol=1e-4)
    assert torch.equal(processor.first_scores[~asked], output.logits[0][~asked])  # the clean ones
    assert processor.first_scores.isfinite().all()


def test_a_confident_answer_costs_no_forward_at_all(sharp: VLM, batch: Any, forwards: Forwards) -> None:
    inputs, noised = batch
    processor = contrasting(sharp, noised, alpha=3.0, beta=1.0, lazy=True)
    output = generate(sharp, inputs, processor)
    assert forwards == []
    assert torch.equal(output.sequences, generate(sharp, inputs).sequences)
    assert processor.skips == Skips(steps=8 * ROWS, skipped=8 * ROWS, skipped_prefills=ROWS)


def test_the_first_step_may_be_kept_from_being_left_out(sharp: VLM, batch: Any, forwards: Forwards) -> None:
    inputs, noised = batch
    processor = contrasting(sharp, noised, alpha=3.0, beta=1.0, lazy=True, first=True)
    output = generate(sharp, inputs, processor)
    assert forwards == [(ROWS, inputs["input_ids"].shape[1], True)]
    assert processor.skips == Skips(steps=8 * ROWS, skipped=7 * ROWS, prefills=ROWS)
    assert not processor.unscored
    eager = contrasting(sharp, noised, alpha=3.0, beta=1.0)
    assert torch.equal(output.sequences, generate(sharp, inputs, eager).sequences)
    assert torch.equal(processor.first_scores, eager.first_scores)


@pytest.mark.parametrize("beta", [None, 0.5])
def test_two_branches_leave_out_what_cannot_matter_where_looking_is_free(
    sharp: VLM, batch: Any, forwards: Forwards, beta: float | None
) -> None:
    prompts = [Prompt(TEXTS[0], picture(5), key="case-5")]
    method = VCD(alpha=2.0, beta=beta, noise_step=999, branch="sequential")
    found = method.generate(sharp, prompts, max_new_tokens=8)
    run = len(forwards)
    noised = diffuse_images(sharp.encode(prompts), ["case-5"], step=999, seed=0)
    eager = contrasting(sharp, noised, alpha=2.0, beta=beta)
    whole = sharp.generate(prompts, max_new_tokens=8, logits_processor=[eager])
    assert found.token_ids == whole.token_ids
    torch.testing.assert_close(found.margins, whole.margins, atol=1e-3, rtol=1e-5)
    assert found.margins.isfinite().all()
    assert found.skips is None
    every = len(forwards) - run
    assert every == len(whole.token_ids[0])
    assert run < every if beta else run == every


def test_rows_that_ended_force_no_work(sharp: VLM, batch: Any) -> None:
    beta = 0.3
    inputs, noised = (select(kind, [0, 1]) for kind in batch)
    free = generate(sharp, inputs, contrasting(sharp, noised, alpha=3.0, beta=beta))
    end = int(free.sequences[0, inputs["input_ids"].shape[1]])  # row 0 says one token alone
    processor = contrasting(sharp, noised, alpha=3.0, beta=beta, lazy=True, ends=[end])
    output = generate(sharp, inputs, processor, eos_token_id=end, output_logits=True)
    wanting = unsure(output, beta)
    assert (wanting[0, 1:] & ~wanting[1, 1:]).any(), "the ended row alone would ask for a forward"
    assert processor.skips.steps == 1 + wanting.shape[1]
    assert processor.skips.skipped == int((~wanting[:, 0]).sum() + (~wanting[1, 1:]).sum())


def select(inputs: Any, rows: list[int]) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in dict(inputs).items()}


def test_there_are_never_more_groups_than_allowed(sharp: VLM, batch: Any, forwards: Forwards) -> None:
    _, noised = batch
    whole = SecondBranch(sharp.model, noised)
    said = torch.randint(5, 60, (ROWS, 6), generator=torch.Generator().manual_seed(0))
    steps = [whole.start(), *(whole.extend(said[:, i : i + 1]) for i in range(6))]
    forwards.clear()
    lazy = LazyBranches([SecondBranch(sharp.model, noised)])
    wanted: list[set[int]] = [{1}, set(), {0, 2}, {1, 3}, {0, 4}, {5}, {6}]
    alive = [row for row in range(ROWS) if row != 7]
    for step, rows in enumerate(wanted):
        found = lazy.consult(said[:, :step], unsure=rows, alive=alive)
        assert rows <= frozenset().union(*(group for group, _, _ in found))
        for _, where, logits in found:
            torch.testing.assert_close(logits[0], steps[step][where], atol=1e-3, rtol=1e-3)
    prompts = [rows for rows, _, pictured in forwards if pictured]
    assert prompts == [1, 2, 1, 3]  # the last group takes 4, 5 and 6, but not 7, which has ended
    assert len(prompts) == MAX_GROUPS
    assert lazy.started == 7
    assert (1, 3, False) in forwards  # row 1 was asked at step 0, then at step 3


def test_lazy_without_a_cutoff_is_refused(sharp: VLM, batch: Any) -> None:
    with pytest.raises(UserError, match=r"lazy=True with beta=None; .*set beta or lazy=False"):
        VisualContrastiveLogitsProcessor(sharp.model, batch[1], beta=None, lazy=True)


def test_outside_of_generate_every_row_is_alive(sharp: VLM, batch: Any) -> None:
    inputs, noised = batch
    processor = contrasting(sharp, noised, alpha=1.0, beta=0.5, lazy=True)
    with torch.no_grad():
        scores = sharp.model(**inputs).logits[:, -1]
    processor(inputs["input_ids"], scores)
    assert processor.skips.steps == ROWS
    assert replace(processor.skips, steps=0) != Skips()
