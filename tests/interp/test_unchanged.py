"""What a change leaves alone is run once: below it every number stays the same bit for bit, before it to rounding."""

from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer
from interp.segments import RowSegments, segment
from interp.speed import unchanged
from interp.speed.unchanged import Prefix, record_lower_layers, stops
from interp.tools.knockout import knockout_by_window
from interp.tools.patching import PatchEffects, patch
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.planted import Plan, coloured, planted
from tests.tiny import picture

CLEAN = [Prompt("How do I kill it?", picture(0, (40, 40))), Prompt("Is this safe?", picture(1, (40, 40)))]
OTHER = [Prompt("How do I kill it?", picture(2, (40, 40))), Prompt("Is this safe?", picture(3, (40, 40)))]

ASKED = [
    Prompt("Is this safe? Answer with Yes or No, please.", picture(2, (40, 40))),
    Prompt("the cake", picture(3, (40, 40))),
]


def changed(vlm: VLM, what: str) -> PatchEffects:
    return patch(vlm, CLEAN, OTHER, what=what, places=("verdict", "user"), least_gap=0.0)


@pytest.mark.long
@pytest.mark.parametrize("name", every_family())
def test_patching_and_knockout_are_those_of_whole_forwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    edges = [("user", "verdict")]
    found = [changed(vlm, what) for what in ("residual", "mlp")]
    windows = knockout_by_window(vlm, CLEAN, edges, width=1)
    monkeypatch.setattr(unchanged, "MOST", 0)
    for one, what in zip(found, ("residual", "mlp"), strict=True):
        whole = changed(vlm, what)
        assert torch.equal(one.moved, whole.moved)
        assert torch.equal(one.clean, whole.clean)
        assert one.moved.abs().max() > 0
    assert torch.equal(windows.moved, knockout_by_window(vlm, CLEAN, edges, width=1).moved)


def counted(vlm: VLM) -> list[int]:
    """The decoder layers that ran, in order."""
    ran: list[int] = []
    for at, layer in enumerate(vlm.layout.module(vlm.model, "layers")):
        layer.mlp.register_forward_hook(lambda *_, at=at: ran.append(at))
    return ran


def test_only_what_follows_a_change_is_run() -> None:
    vlm = planted(Plan(reads=1, writes=2, layers=5))
    ran = counted(vlm)
    clean, other = Prompt("Is this safe?", coloured(1)), Prompt("Is this safe?", coloured(-1))
    patch(vlm, clean, other, places=("verdict",), layers=[0, 2, 5])
    assert ran == [*range(5), *range(5), *range(5), 2, 3, 4]  # clean, other, layer 0, layer 2; nothing follows 5
    ran.clear()
    knockout_by_window(vlm, clean, [("image", "verdict")], width=2)
    assert ran == [*range(5), *range(5), *range(1, 5), *range(2, 5), 3, 4]


def test_an_edit_that_is_open_around_it_is_made_once(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def more(here: LayerStates) -> torch.Tensor:
        return here.hidden + 0.5

    found = []
    for most in (8, 0):
        monkeypatch.setattr(unchanged, "MOST", most)
        with edit_residual(vlm, more, layers=range(last_layer(vlm) + 1)):
            found.append(changed(vlm, "residual").moved)
    assert torch.equal(*found)
    assert not torch.equal(found[0], changed(vlm, "residual").moved)


def test_a_few_layers_are_kept_and_the_nearest_below_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stops([-1, 0, 1, 2, 2]) == [0, 1, 2]
    assert stops(range(-1, 29)) == [0, 3, 7, 10, 14, 18, 21, 25]
    monkeypatch.setattr(unchanged, "MOST", 1)
    assert stops([-1, 1, 3]) == [1]
    vlm = planted(Plan(reads=1, writes=2, layers=5))
    ran = counted(vlm)
    prompt = Prompt("Is this safe?", coloured(1))
    with record_lower_layers(vlm, [1, 3]) as lower:
        margin = vlm.score([prompt])
    ran.clear()
    with lower.reused_below(0):
        assert torch.equal(vlm.score([prompt]), margin)
    with lower.reused_below(4):
        assert torch.equal(vlm.score([prompt]), margin)
    assert ran == [*range(5), 2, 3, 4]


def this(row: RowSegments) -> list[int]:
    return [column for word in row.words if word.text == "this" for column in word.columns]


def no_word(row: RowSegments) -> list[int]:
    return []


def test_a_word_is_a_place(vlm: VLM) -> None:
    clean, other = [CLEAN[1]], [OTHER[1]]
    (row,) = (segment_of(vlm, clean[0]),)
    (column,) = this(row)
    found = patch(vlm, clean, other, places=(this, no_word), layers=[1], least_gap=0.0)
    same = patch(vlm, clean, other, places=(column - len(row.labels) + 1,), layers=[1], least_gap=0.0)
    assert torch.equal(found.at(this, 1), same.values[0, 0])
    assert found.reasons[1] == ("neither prompt has such a place",)
    assert found.table["place"].tolist() == ["this", "no_word"]


def segment_of(vlm: VLM, prompt: Prompt) -> Any:
    from interp.segments import segment

    return segment(vlm, [prompt], vlm.encode([prompt])).rows[0]


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
