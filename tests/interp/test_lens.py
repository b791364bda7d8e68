"""The lens: its last layer is the score in every family; what one layer writes appears at the layer after it."""

import pytest
import torch

from interp.hooks.residual import last_layer
from interp.tools.lens import logit_lens
from interp.vlm import VLM, Prompt
from tests import families
from tests.planted import MARGIN, Plan, coloured, planted


def test_final_soft_cap_counts(prompts: list[Prompt]) -> None:
    vlm = VLM(*families.paligemma2())
    wide = logit_lens(vlm, prompts).margins[0]
    vlm.model.config.get_text_config().final_logit_softcapping = 0.05
    narrow = logit_lens(vlm, prompts).margins[0]
    torch.testing.assert_close(narrow[-1], vlm.score(prompts), atol=1e-5, rtol=0)
    assert (narrow[-1].abs() <= 0.1).all()
    assert not torch.allclose(wide[-1], narrow[-1], atol=1e-3)


@pytest.mark.parametrize(("reads", "writes"), [(0, 1), (1, 3)])
def test_the_planted_margin_is_there_from_the_writing_layer_on(reads: int, writes: int) -> None:
    redness = torch.tensor([-1.0, 0.6, 1.0])
    prompts = [Prompt("Is this safe?", coloured(r)) for r in redness.tolist()]
    margins = logit_lens(planted(Plan(reads=reads, writes=writes)), prompts).margins[0]
    assert margins[: writes + 1].abs().max() < 1e-3
    for layer in range(writes + 1, 5):
        torch.testing.assert_close(margins[layer], MARGIN * redness, atol=0.05, rtol=0)


def test_tokens_are_those_of_the_model_at_every_position(family: VLM, prompts: list[Prompt]) -> None:
    """By hand: the model's own logits of each column, at the last layer."""
    prompt = prompts[0]
    with torch.no_grad():
        logits = family.model(**family.encode([prompt])).logits[0]
    width = len(logits)
    found = logit_lens(family, prompt, layers=(last_layer(family),), places=range(1 - width, 1), top=3)
    expected = logits.float().softmax(-1).topk(3)
    torch.testing.assert_close(found.probabilities[:, 0, 0], expected.values, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.margins[:, 0, 0], family.margin(logits), atol=1e-5, rtol=1e-5)
    clear = (expected.values[:, 0] - expected.values[:, 1]) > 1e-4
    assert torch.equal(found.tokens[clear, 0, 0, 0], expected.indices[clear, 0])
    assert not torch.allclose(logit_lens(family, prompt, layers=(0,)).margins, found.margins[-1:])
    last = found.table[found.table["place"] == 0]
    assert last["token"].tolist() == [family.tokenizer.decode([i]) for i in found.tokens[-1, 0, 0].tolist()]
    assert last["rank"].tolist() == [1, 2, 3]
