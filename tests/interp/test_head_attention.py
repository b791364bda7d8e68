"""Patterns of chosen heads are the eager attention's, and what they are shown over is where they are said to look."""

import pytest
import torch

from interp.attention.tables import patch_map
from interp.errors import UserError
from interp.tools.head_patterns import head_patterns
from interp.vlm import VLM, Prompt
from tests.interp.eager import eager_weights
from tests.planted import Plan, coloured, planted


def test_equal_to_eager_attention(family: VLM, prompts: list[Prompt]) -> None:
    prompt = prompts[0]
    layers = list(family.module_map.attentions(family.model))
    chosen = [(layers[-1], 3), (layers[0], 1), (layers[-1], 0)]
    found = head_patterns(family, prompt, chosen)
    with eager_weights(family) as eager:
        family.score([prompt])
    for i, (layer, head) in enumerate(chosen):
        torch.testing.assert_close(found.weights[i], eager[layer][0][0, head, -1], atol=1e-5, rtol=0)
    table = found.table
    sums = table.groupby(["layer", "head"], sort=False)["weight"].sum()
    assert sums.index.tolist() == chosen
    assert (sums - 1).abs().max() < 1e-5
    assert (table["segment"] == "image_0").any() != family.module_map.cross_attended
    try:
        family.module_map.require_places(family.name)
    except UserError:
        with pytest.raises(UserError):
            _ = found.maps
    else:
        name = f"layer {chosen[1][0]}, head 1"
        assert torch.equal(torch.tensor(found.maps[name]), patch_map(found.weights[1], found.row.grids[0]))
    assert found.plot().axes
    words = found.words
    assert words["word"].tolist()[:4] == ["How", "do", "I", "kill"]
    assert words["mass"].between(0, 1).all()


def test_the_head_that_was_planted_looks_at_the_picture() -> None:
    vlm = planted(Plan(reads=1, writes=2))
    prompt = Prompt("How do I kill the dog?", coloured(1))
    found = head_patterns(vlm, prompt, [(1, 0)])
    assert found.maps["layer 1, head 0"].sum() == pytest.approx(1, abs=1e-3)
    before = head_patterns(vlm, prompt, [(1, 0)], step=-3).table  # a word, which asks for nothing
    assert before[before["segment"] == "sink"]["weight"].sum() == pytest.approx(1, abs=1e-3)
