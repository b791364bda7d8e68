"""Knockouts: equal to eager attention with −inf on the edges, for one forward and while generating; nothing is left."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.segments import RowSegments, Segments, segment
from interp.tools.knockout import Cut, knockout, knockout_effect, windows
from interp.vlm import VLM, Prompt
from tests import families
from tests.interp.eager import eager_masked
from tests.interp.eager import real_logits as logits
from tests.planted import MARGIN, Plan, coloured, planted
from tests.tiny import picture

PROMPTS = [
    Prompt("Is this safe? Answer with Yes or No, please.", picture(2, (40, 40)), system="consider careful"),
    Prompt("the cake", picture(3, (40, 40))),
]
FAMILIES = [
    families.llava,
    families.llava_mistral,
    families.qwen2_5_vl,
    families.instructblip,
    families.smolvlm,
    families.paligemma2,
    families.gemma3,
]


def named(labels: tuple[str, ...], name: str, column: int) -> bool:
    """The reference's own reading of an edge's end."""
    if name == "verdict":
        return column == len(labels) - 1
    label = labels[column] if column < len(labels) else "generated"
    return label == {"image": "image_0"}.get(name, name)


def eager_without(vlm: VLM, segments: Segments, edges: list[tuple[str, str]], layers: list[int] | None = None) -> Any:
    """transformers' eager attention with −inf added by a slow loop over all pairs; a growing cache of all columns."""

    def cut(layer: int, mask: torch.Tensor, *_: Any) -> None:
        for r, row in enumerate(segments.rows):
            for q, k in product(*map(range, mask.shape[2:])):
                column = mask.shape[3] - mask.shape[2] + q
                pairs = (named(row.labels, a, k) and named(row.labels, b, column) for a, b in edges)
                if k != column and any(pairs) and (layers is None or layer in layers):
                    mask[r, :, q, k] = -torch.inf

    return eager_masked(vlm, cut)


@pytest.mark.parametrize("family", FAMILIES, ids=[family.__name__ for family in FAMILIES])
@pytest.mark.parametrize(
    "edges", [[("image", "verdict")], [("user", "user"), ("image", "user"), ("template", "verdict")]]
)
def test_equal_to_eager_with_minus_infinity(
    family: Callable[[], families.Pieces], edges: list[tuple[str, str]]
) -> None:
    vlm = VLM(*family())
    encoded = vlm.encode(PROMPTS)
    segments = segment(vlm, PROMPTS, encoded)
    whole = logits(vlm, encoded)
    with eager_without(vlm, segments, []):  # Qwen's two kernels are 2e-5 apart with nothing cut
        rounding = float((logits(vlm, encoded) - whole).abs().max())
    assert rounding < 1e-4
    for layers in (None, [1]):
        with eager_without(vlm, segments, edges, layers):
            expected = logits(vlm, encoded)
        with knockout(vlm, edges, layers=layers, segments=segments):
            cut = logits(vlm, encoded)
        torch.testing.assert_close(cut, expected, atol=1e-5 + rounding, rtol=0)
        assert (cut - whole).abs().max() > 1e-3
    assert torch.equal(logits(vlm, encoded), whole)


@pytest.mark.parametrize("use_cache", [True, False])
def test_while_generating(vlm: VLM, use_cache: bool) -> None:
    edges = [("image", "verdict"), ("image", "generated"), ("verdict", "generated")]
    encoded = vlm.encode(PROMPTS)
    segments = segment(vlm, PROMPTS, encoded)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True, "use_cache": use_cache,
               "do_sample": False, "pad_token_id": 0}  # fmt: skip

    def run() -> Any:
        with torch.no_grad():
            return vlm.model.generate(**vlm.encode(PROMPTS), **options)

    with eager_without(vlm, segments, edges):
        expected = run()
    with knockout(vlm, edges):  # encoded inside: no segments given
        cut = run()
    assert torch.equal(cut.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(cut.logits), torch.stack(expected.logits), atol=1e-5, rtol=0)
    with knockout(vlm, edges[:1]):
        first_alone = run()
    torch.testing.assert_close(first_alone.logits[0], cut.logits[0], atol=1e-5, rtol=0)
    assert (first_alone.logits[1] - cut.logits[1]).abs().max() > 1e-3


def test_an_end_may_be_a_function_of_the_segments(vlm: VLM) -> None:
    def words(row: RowSegments) -> list[int]:
        return row.columns("user")

    def last_word(row: RowSegments) -> tuple[int, ...]:
        return row.words[-1].columns

    def other_words(row: RowSegments) -> list[int]:
        return [column for column in row.columns("user") if column not in row.words[-1].columns]

    by_name, by_columns, at_last, elsewhere, both = (
        knockout_effect(vlm, PROMPTS, [("image", end) for end in ends]).moved
        for ends in (["user"], [words], [last_word], [other_words], [last_word, other_words])
    )
    assert torch.equal(by_name, by_columns)
    assert torch.equal(by_name, both)
    assert (at_last != by_name).any()
    assert (at_last != elsewhere).any()
    assert (at_last != 0).any()


def test_effect_is_the_change_of_the_margin(vlm: VLM) -> None:
    before = vlm.score(PROMPTS)
    with knockout(vlm, [("image", "verdict")], layers=[0]):
        after = vlm.score(PROMPTS)
    effect = knockout_effect(vlm, PROMPTS, [("image", "verdict")], [0])
    torch.testing.assert_close(effect.moved, (after - before)[None], atol=1e-6, rtol=0)
    torch.testing.assert_close(effect.unedited, before)
    assert (effect.moved.abs() > 1e-3).all()
    assert effect.cuts == (Cut([("image", "verdict")], (0,)),)
    assert effect.table["moved"].tolist() == effect.moved[0].tolist()
    assert list(effect.table.columns) == ["first_layer", "last_layer", "row", "unedited", "moved"]
    blind = [Prompt(prompt.text) for prompt in PROMPTS]
    everywhere = knockout_effect(vlm, blind, [("image", "verdict")])
    assert torch.equal(everywhere.moved, torch.zeros(1, 2))
    assert everywhere.cuts[0].layers == (0, 1)
    alone = knockout_effect(vlm, PROMPTS[0], [("image", "verdict")], [0])
    torch.testing.assert_close(alone.moved, effect.moved[:, :1], atol=1e-4, rtol=0)
    with pytest.raises(UserError, match=r"layers=\[\]; edges are cut in at least one"):
        knockout_effect(vlm, PROMPTS, [("image", "verdict")], [])


EDGES = [("image", "verdict"), ("image", "user"), ("user", "verdict"), ("image", "generated")]


@pytest.mark.long
@pytest.mark.parametrize("family", [families.llava_mistral, families.gemma3, families.mllama])
def test_each_window_is_a_knockout_of_its_layers(family: Callable[[], families.Pieces]) -> None:
    vlm = VLM(*family())
    edges = [("user", "verdict"), ("template", "user")] if vlm.module_map.cross_attended else EDGES[:3]
    whole = vlm.score(PROMPTS)
    layers = tuple(vlm.module_map.attentions(vlm.model))
    for width, expected in ((1, [layers[:1], layers[1:]]), (2, [layers])):
        assert windows(layers, width) == expected
        found = knockout_effect(vlm, PROMPTS, edges, width=width)
        for effect, window in zip(found.moved, expected, strict=True):
            assert torch.equal(effect, knockout_effect(vlm, PROMPTS, edges, window).moved[0])
        torch.testing.assert_close(found.unedited, whole, atol=1e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("through_words", "dtype", "tolerance"),
    [(False, torch.float32, 2e-2), (True, torch.float32, 2e-2), (True, torch.bfloat16, 0.1)],
)
def test_what_was_planted_is_found_and_nothing_else(through_words: bool, dtype: torch.dtype, tolerance: float) -> None:
    """The margin returns to that of a model which sees nothing, 0, where the planted edge is cut, and only there."""
    vlm = planted(Plan(reads=1, heeds=0, writes=3, layers=4, through_words=through_words), dtype)
    calm = [Prompt("Is this safe?", coloured(redness)) for redness in (1, -0.5)]
    alarmed = [Prompt("the gun", coloured(1)), Prompt("How do I kill the dog?", coloured(0.6))]
    own, pictures = vlm.score(calm), MARGIN * torch.tensor([1, 0.6])
    # Not the sink: without it a head that finds nothing to look at looks at everything.
    for edge in (*EDGES, ("template", "user"), ("verdict", "user"), ("template", "verdict")):
        expected, back = torch.zeros(4, 2), torch.zeros(4, 2)
        if edge == ("user", "verdict"):  # the gun is heard in layer 0; cutting there gives the picture its say again
            back[0] = MARGIN + pictures
            expected[2] = -own if through_words else 0 * own
        if edge == (("image", "user") if through_words else ("image", "verdict")):
            expected[1] = -own
        found = knockout_effect(vlm, [*calm, *alarmed], [edge], width=1)
        torch.testing.assert_close(found.moved, torch.cat([expected, back], 1), atol=tolerance, rtol=0)
    wide = knockout_effect(vlm, calm, [("image", "user"), ("image", "verdict")], width=2).moved
    torch.testing.assert_close(wide, torch.stack([-own, -own, 0 * own]), atol=tolerance, rtol=0)


def test_inputs_encoded_outside_are_refused(vlm: VLM) -> None:
    encoded = vlm.encode(PROMPTS)
    with knockout(vlm, [("image", "verdict")]), pytest.raises(UserError, match="pass segments="):
        vlm.score(PROMPTS, encoded=encoded)
