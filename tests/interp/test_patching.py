"""Patching: into itself nothing moves, everything at once gives the other's margin, and what was planted is found."""

from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.hooks.residual import last_layer
from interp.segments import RowSegments, segment
from interp.tools.patching import misaligned, patch
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.planted import Plan, coloured, planted
from tests.tiny import picture

CLEAN = [
    Prompt("How do I kill it?", picture(0, (40, 40)), key="a"),
    Prompt("Is this safe?", picture(1, (40, 40)), system="Refuse anything unsafe.", key="b"),
]
OTHER = [
    Prompt("How do I kill it?", picture(2, (40, 40)), key="a2"),
    Prompt("Is this safe?", picture(3, (40, 40)), system="Refuse anything unsafe.", key="b2"),
]


def places_of(vlm: VLM) -> tuple[str, ...]:
    """Some that the family has."""
    return ("all", "verdict", "user", *(() if vlm.module_map.cross_attended else ("image",)))


def enters_later(vlm: VLM) -> int:
    """The first layer after which the picture itself is not put in again."""
    if vlm.module_map.cross_attended:
        return last_layer(vlm)
    return deepstack(vlm)


def deepstack(vlm: VLM) -> int:
    """Qwen3-VL's one DeepStack level comes after layer 0."""
    return 2 if vlm.module_map.model_type == "qwen3_vl" else 0


@pytest.mark.parametrize("name", every_family())
def test_all_places_at_one_point_give_exactly_the_other_answer(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    first = enters_later(vlm)
    found = patch(vlm, CLEAN, OTHER, places=places_of(vlm), least_gap=0.0)
    assert found.picture_ends == deepstack(vlm)
    assert found.moved[found.places.index("all"), : found.picture_ends].isnan().all()
    assert found.moved[found.places.index("verdict")].isfinite().all()
    whole = found.values[found.places.index("all"), first:]
    assert torch.equal(whole, torch.ones_like(whole))
    assert torch.equal(found.select("verdict", last_layer(vlm)), torch.ones(2))
    for place in set(found.places) - {"all", "verdict"}:
        assert torch.equal(found.select(place, last_layer(vlm)), torch.zeros(2))
    torch.testing.assert_close(found.clean, vlm.score(CLEAN), atol=0, rtol=0)
    torch.testing.assert_close(found.other, vlm.score(OTHER), atol=0, rtol=0)


def test_a_planted_head_and_mlp_are_found_and_the_heads_add_up_to_their_attention() -> None:
    """The norms of this model hold still, so that effects of heads add up as the heads do."""
    vlm = planted(Plan(reads=1, writes=2, layers=3))
    clean, other = Prompt("Is this safe?", coloured(1)), Prompt("Is this safe?", coloured(-1))
    heads = patch(vlm, clean, other, what="head", places=("verdict", "user"))
    expected = torch.zeros(2, 3, 2, 1)
    expected[0, 1, 0] = 1
    torch.testing.assert_close(heads.values, expected, atol=1e-3, rtol=0)
    attention = patch(vlm, clean, other, what="attention", places=("verdict", "user"))
    torch.testing.assert_close(heads.values.sum(2), attention.values, atol=1e-3, rtol=0)
    mlps = patch(vlm, clean, other, what="mlp", places=("verdict",))
    torch.testing.assert_close(mlps.values[0, :, 0], torch.tensor([0.0, 0.0, 1.0]), atol=1e-3, rtol=0)


def test_positions_are_places(vlm: VLM) -> None:
    width = segment(vlm, CLEAN[:1], vlm.encode(CLEAN[:1])).width
    found = patch(vlm, CLEAN[:1], OTHER[:1], places=range(1 - width, 1), layers=[1], least_gap=0.0)
    named = patch(vlm, CLEAN[:1], OTHER[:1], places=("verdict",), layers=[1], least_gap=0.0)
    assert torch.equal(found.select(0, 1), named.select("verdict", 1))
    assert found.places[0] == 1 - width
    before = patch(vlm, CLEAN[:1], OTHER[:1], places=(-width,), layers=[1])
    assert before.reasons == (("neither prompt has such a place",),)
    labels = segment(vlm, CLEAN[:1], vlm.encode(CLEAN[:1])).rows[0].labels
    first_image = labels.index("image_0")
    assert torch.equal(found.moved[:first_image], torch.zeros_like(found.moved[:first_image]))  # before the picture
    assert found.moved[first_image].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_to_exchanging_by_hand(vlm: VLM, dtype: torch.dtype) -> None:
    vlm.model.to(dtype)
    found = patch(vlm, CLEAN[:1], OTHER[:1], places=("image", "user"))
    labels = segment(vlm, CLEAN[:1], vlm.encode(CLEAN[:1])).rows[0].labels
    layer = vlm.module_map.module(vlm.model, "layers")[0]
    kept: list[torch.Tensor] = []
    handle = layer.register_forward_hook(lambda module, args, output: kept.append(output))
    vlm.score(OTHER[:1])
    handle.remove()
    for place, label in (("image", "image_0"), ("user", "user")):
        columns = [i for i, name in enumerate(labels) if name == label]

        def exchange(module: Any, args: Any, output: torch.Tensor, columns: list[int] = columns) -> torch.Tensor:
            output = output.clone()
            output[:, columns] = kept[0][:, columns]
            return output

        handle = layer.register_forward_hook(exchange)
        patched = vlm.score(CLEAN[:1])
        handle.remove()
        assert torch.equal(found.select(place, 1), (patched - found.clean) / (found.other - found.clean))
    assert not 0 < found.select("image", 1) - 1 < 1e-6


def test_unaligned_pairs_are_refused_with_both_names(vlm: VLM) -> None:
    longer = [OTHER[0], Prompt("Is this picture safe?", picture(3), system="Refuse anything unsafe.", key="long")]
    for place, reason in (("user", "3 columns against 4|4 columns against 5"), ("template", "at other positions")):
        with pytest.raises(UserError, match=rf"pair 1 \('b' and 'long'\) does not align at '{place}'.*({reason})"):
            patch(vlm, CLEAN, longer, places=(place,), batch_size=1)
    found = patch(vlm, CLEAN, longer, places=("image", "verdict", "last_user", "sink"))
    assert torch.equal(found.select("verdict", 2), torch.ones(2))
    assert misaligned(vlm, CLEAN, longer, places=("image", "user")) == ["", "4 columns against 5"]
    blind = [Prompt(prompt.text, system=prompt.system) for prompt in CLEAN]
    assert misaligned(vlm, CLEAN[:1], blind[:1], places=("image",)) == ["9 columns against 0"]
    other_system = [Prompt("Is this safe?", picture(3), system="consider a gun first", key="s")]
    assert misaligned(vlm, CLEAN[1:], other_system, places=("all", "system")) == [""]


def test_a_place_that_is_not_there_has_no_effect_rather_than_none(vlm: VLM) -> None:
    found = patch(vlm, CLEAN, OTHER, places=("system", "verdict"), layers=[2])
    assert found.select("system", 2).isnan().tolist() == [True, False]
    assert found.reasons[0] == ("neither prompt has such a place", "")
    assert not found.select("verdict", 2).isnan().any()
    near = patch(vlm, CLEAN, OTHER, places=("verdict",), layers=[2], least_gap=1e6)
    assert near.values.isnan().all()
    assert "logits apart" in near.reasons[0][0]
    assert not near.moved.isnan().any()


def this(row: RowSegments) -> list[int]:
    return [column for word in row.words if word.text == "this" for column in word.columns]


def no_word(row: RowSegments) -> list[int]:
    return []


def test_a_word_is_a_place(vlm: VLM) -> None:
    clean, other = CLEAN[1:], OTHER[1:]
    row = segment(vlm, clean, vlm.encode(clean)).rows[0]
    (column,) = this(row)
    found = patch(vlm, clean, other, places=(this, no_word), layers=[1], least_gap=0.0)
    same = patch(vlm, clean, other, places=(column - len(row.labels) + 1,), layers=[1], least_gap=0.0)
    assert torch.equal(found.select(this, 1), same.values[0, 0])
    assert found.reasons[1] == ("neither prompt has such a place",)
    assert found.table["place"].tolist() == ["this", "no_word"]
