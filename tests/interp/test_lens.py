"""The lens: its last layer is the score in every family; what one layer writes appears at the layer after it."""

import pytest
import torch

from interp.lens import logit_lens
from interp.vlm import VLM, Prompt
from tests import families
from tests.planted import MARGIN, Plan, coloured, planted
from tests.tiny import picture


def test_last_point_is_the_score(family: VLM, prompts: list[Prompt]) -> None:
    margins = logit_lens(family, prompts)
    torch.testing.assert_close(margins[-1], family.score(prompts), atol=1e-5, rtol=0)
    assert not torch.allclose(margins[0], margins[-1])


def test_final_soft_cap_counts(prompts: list[Prompt]) -> None:
    vlm = VLM(*families.paligemma2())
    wide = logit_lens(vlm, prompts)
    vlm.model.config.get_text_config().final_logit_softcapping = 0.05
    narrow = logit_lens(vlm, prompts)
    torch.testing.assert_close(narrow[-1], vlm.score(prompts), atol=1e-5, rtol=0)
    assert (narrow[-1].abs() <= 0.1).all()
    assert not torch.allclose(wide[-1], narrow[-1], atol=1e-3)


def test_bfloat16_and_batches(vlm: VLM) -> None:
    vlm.model.bfloat16()
    prompts = [Prompt("Is this safe?" + " Yes" * i, picture(i)) for i in range(3)]
    together = logit_lens(vlm, prompts)
    torch.testing.assert_close(together[-1], vlm.score(prompts), atol=1e-2, rtol=0)
    torch.testing.assert_close(logit_lens(vlm, prompts, batch_size=1)[-1], together[-1], atol=0.1, rtol=0)
    assert together.dtype == torch.float32


def test_a_verdict_written_by_one_layer_appears_there(vlm: VLM, prompts: list[Prompt]) -> None:
    first, second = vlm.layout.module(vlm.model, "layers")
    with torch.no_grad():
        for module in (first.self_attn.o_proj, first.mlp.down_proj, second.self_attn.o_proj):
            module.weight.zero_()
    margins = logit_lens(vlm, prompts)
    torch.testing.assert_close(margins[1], margins[0], atol=1e-6, rtol=0)
    assert ((margins[2] - margins[1]).abs() > 1e-3).all()


@pytest.mark.parametrize(("reads", "writes"), [(0, 1), (1, 3)])
def test_the_planted_margin_is_there_from_the_writing_layer_on(reads: int, writes: int) -> None:
    redness = torch.tensor([-1.0, 0.6, 1.0])
    prompts = [Prompt("Is this safe?", coloured(r)) for r in redness.tolist()]
    margins = logit_lens(planted(Plan(reads=reads, writes=writes)), prompts)
    assert margins[: writes + 1].abs().max() < 1e-3
    for layer in range(writes + 1, 5):
        torch.testing.assert_close(margins[layer], MARGIN * redness, atol=0.05, rtol=0)


def test_points_and_places(vlm: VLM, prompts: list[Prompt]) -> None:
    every = logit_lens(vlm, prompts)
    torch.testing.assert_close(logit_lens(vlm, prompts, layers=(2, 0)), every[[2, 0]])
    image = logit_lens(vlm, prompts, place="image")
    assert image.shape == every.shape
    assert not torch.allclose(image, every, atol=1e-3)
    assert logit_lens(vlm, prompts, layers=(1,), place="system").isnan().tolist() == [[True, False]]
