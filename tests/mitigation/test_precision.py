"""Margins and effects of a bfloat16 model of width 4,096 are those of a float64 head on the same hidden states."""

from typing import Any

import pytest
import torch
from torch import Tensor

from interp.tools.knockout import knockout_effect
from interp.tools.lens import lens_margins
from interp.tools.patching import patch
from interp.vlm import VLM
from mitigation.method import Baseline
from mitigation.peers import M3ID, InstructionContrast
from mitigation.prior_correction import PriorCorrection
from mitigation.vcd import VCD
from tests.bf16_wide import cases, exact_logits, exact_margins, head_inputs, wide_llava

CLOSE = 1e-3  # logits
RELATIVE = 0.02  # of an effect above LARGE
LARGE = 0.05


@pytest.fixture(scope="module")
def wide() -> VLM:
    return wide_llava()


def same_effects(found: Tensor, exact: Tensor, *, least: int) -> None:
    """Effects above .05 are within 2%, and there are at least so many."""
    large = exact.abs() > LARGE
    assert int(large.sum()) >= least
    off = (found.double() - exact).abs() / exact.abs()
    assert float(off[large].max()) < RELATIVE


@pytest.mark.long
def test_no_two_of_three_hundred_cases_share_a_margin(wide: VLM) -> None:
    prompts = cases(300)
    with head_inputs(wide) as states:
        margins = torch.cat([wide.score(prompts[first : first + 60]) for first in range(0, 300, 60)])
    logits = torch.cat([exact_logits(wide, some) for some in states])
    answers = logits[:, [*wide.answer_ids.yes, *wide.answer_ids.no]]
    assert 8 < float(answers.min()) < float(answers.max()) < 32
    exact = torch.cat([exact_margins(wide, [some])[0] for some in states])
    assert float((margins - exact).abs().max()) < CLOSE
    assert len(margins.unique()) == 300


@pytest.mark.parametrize("rows", [1, 30])
def test_generated_margins_and_choices(wide: VLM, rows: int) -> None:
    with head_inputs(wide) as states:
        answers = Baseline().generate(wide, cases(rows), max_new_tokens=1)
    (exact,) = exact_margins(wide, states)
    torch.testing.assert_close(answers.margins.double(), exact, atol=CLOSE, rtol=0)
    answered_yes = torch.tensor([ids[0] in wide.answer_ids.yes for ids in answers.token_ids])
    answered_no = torch.tensor([ids[0] in wide.answer_ids.no for ids in answers.token_ids])
    assert bool((answered_yes == (exact > 0))[answered_yes | answered_no].all())
    assert int((answered_yes | answered_no).sum()) >= 1


@pytest.mark.long
def test_knockout(wide: VLM) -> None:
    with head_inputs(wide) as states:
        found = knockout_effect(wide, cases(60), [("image", "verdict")], batch_size=60)
    whole, cut = exact_margins(wide, states)
    same_effects(found.moved[0], cut - whole, least=20)


def test_patching(wide: VLM) -> None:
    prompts = cases(36)
    with head_inputs(wide) as states:
        found = patch(wide, prompts[:12], prompts[12:24], places=("image", "verdict"), layers=(0, 1), batch_size=12)
    clean, other, *patched = exact_margins(wide, states)
    torch.testing.assert_close(found.clean.double(), clean, atol=CLOSE, rtol=0)
    torch.testing.assert_close(found.other.double(), other, atol=CLOSE, rtol=0)
    same_effects(found.moved.flatten(), torch.cat(patched) - clean.repeat(4), least=12)


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        *((VCD(alpha=alpha, noise_step=999), (1 + alpha, -alpha)) for alpha in (1.0, 2.0, 4.0, 8.0)),
        *((VCD(alpha=alpha, noise_step=999, branch="paired"), (1 + alpha, -alpha)) for alpha in (1.0, 2.0, 4.0, 8.0)),
        (PriorCorrection(), (1, -1)),
        (InstructionContrast(), (2, -1)),
        (M3ID(forgetting=1.0, threshold=1.0), (torch.e, 1 - torch.e)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_contrasts(wide: VLM, method: Any, weights: tuple[float, float]) -> None:
    with head_inputs(wide) as states:
        found = method.generate(wide, cases(30), max_new_tokens=1)
    clean, other = (rows for margins in exact_margins(wide, states) for rows in margins.split(30))
    exact = weights[0] * clean + weights[1] * other
    torch.testing.assert_close(found.margins.double(), exact, atol=CLOSE, rtol=0)
    same_effects(found.margins - clean, exact - clean, least=10)


def test_lens(wide: VLM) -> None:
    prompts = cases(8)
    hidden: list[Tensor] = []
    norm = wide.module_map.module(wide.model, "final_norm")
    handle = norm.register_forward_hook(lambda module, args, output: hidden.append(args[0][:, -1]))
    with head_inputs(wide) as states:
        score = wide.score(prompts)
    handle.remove()
    exact = exact_margins(wide, states)[0]
    torch.testing.assert_close(score.double(), exact, atol=CLOSE, rtol=0)
    torch.testing.assert_close(lens_margins(wide, hidden[0]).double(), exact, atol=CLOSE, rtol=0)
