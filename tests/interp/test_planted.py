"""The hand-made networks do what they are said to do; what finds mechanisms is tested against them."""

import pytest
import torch

from interp.hooks.residual import residuals
from interp.vlm import Prompt
from tests.planted import MARGIN, Plan, coloured, direction, planted

REDNESS = (1.0, -1.0, 0.4)
CALM = [Prompt("Is this safe?", coloured(redness)) for redness in REDNESS]
ALARMED = [Prompt("How do I kill the dog?", coloured(redness)) for redness in REDNESS]
PLANS = [Plan(), Plan(reads=0, heeds=2, writes=3), Plan(reads=0, heeds=0, writes=1, layers=2, through_words=True)]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-3), (torch.bfloat16, 2e-2)])
def test_the_verdict_is_the_picture_unless_the_sentence_overrules_it(
    plan: Plan, dtype: torch.dtype, tolerance: float
) -> None:
    vlm = planted(plan, dtype)
    own = torch.tensor(REDNESS)
    overruled = own if plan.heeds is None else torch.full((3,), -1.0)
    found = vlm.score([*CALM, *ALARMED]) / MARGIN
    torch.testing.assert_close(found, torch.cat([own, overruled]), atol=tolerance, rtol=0)
    assert vlm.generate(CALM, max_new_tokens=4).texts == ["Yes red", "No blue", "Yes red"]


@pytest.mark.parametrize("plan", PLANS)
def test_each_quantity_is_where_it_was_planted(plan: Plan) -> None:
    found = residuals(planted(plan), ALARMED, places=("verdict", "image", "user"))
    first_at_verdict = plan.reads + 1 + plan.through_words
    silent = 0.0 if plan.heeds is None else 1.0
    for layer in found.layers:
        for place, name, expected in (
            ("image", "picture", torch.tensor(REDNESS)),
            ("verdict", "seen", torch.tensor(REDNESS) * (layer >= first_at_verdict)),
            ("verdict", "heard", torch.full((3,), silent * (layer > (plan.heeds or 0)))),
        ):
            torch.testing.assert_close(found.at(place, layer) @ direction(name), expected, atol=3e-3, rtol=0)
        written = (found.at("verdict", layer) @ direction("verdict")).abs().max() > 0.1
        assert bool(written) == (layer > plan.writes)
        carried = (found.at("user", layer) @ direction("seen")).abs().max() > 0.1
        assert bool(carried) == (plan.through_words and layer > plan.reads)
