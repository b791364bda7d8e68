"""The last columns run again give the margins of the whole prompt, also with an edit in them."""

import pytest
import torch

from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.segments import segment
from interp.tools.prefix import Prefix
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import picture

ASKED = [
    Prompt("Is this safe? Answer with Yes or No, please.", picture(2, (40, 40))),
    Prompt("the cake", picture(3, (40, 40))),
]


@pytest.mark.parametrize("family", ["llava", "llava_next", "smolvlm"])
def test_margins_are_those_of_the_whole_prompt_also_with_an_edit_behind_it(family: str) -> None:
    vlm = VLM(*FAMILIES[family]())
    encoded = vlm.encode(ASKED)
    segments = segment(vlm, ASKED, encoded)
    at = segments.width - 2
    assert Prefix.fits(vlm, segments, at)
    prefix = Prefix.of(vlm, encoded, columns=at)

    def edit(here: LayerStates) -> torch.Tensor:
        hidden = here.hidden.clone()
        hidden[:, at - here.start] *= -1
        return hidden

    whole = vlm.score(ASKED, encoded=encoded)
    with edit_residual(vlm, edit, layers=[1]):
        edited = vlm.score(ASKED, encoded=encoded)
        for _ in range(2):
            torch.testing.assert_close(prefix.score(), edited, atol=2e-5, rtol=0)
    assert (edited - whole).abs().min() > 1e-4
    torch.testing.assert_close(prefix.score(), whole, atol=2e-5, rtol=0)


def test_what_cannot_be_kept_apart() -> None:
    vlm = VLM(*FAMILIES["llava"]())
    encoded = vlm.encode(ASKED)
    segments = segment(vlm, ASKED, encoded)
    first = min(row.columns("image_0")[0] for row in segments.rows)
    assert not Prefix.fits(vlm, segments, first)  # the picture would be cut in two
    assert not Prefix.fits(vlm, segments, segments.width)
    with pytest.raises(UserError, match="both parts need one"):
        Prefix.of(vlm, encoded, columns=segments.width)
    for family in ("qwen2_5_vl", "paligemma2", "llava_mistral"):
        other = VLM(*FAMILIES[family]())
        apart = segment(other, ASKED, other.encode(ASKED))
        assert not Prefix.fits(other, apart, apart.width - 2)
