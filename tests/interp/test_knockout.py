"""Knockouts: equal to eager attention with −inf on the edges, for one forward and while generating; nothing is left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from interp.capture import Queries, record_attention
from interp.errors import UserError
from interp.knockout import knockout, knockout_effect
from interp.segments import Segments, segment
from interp.vlm import VLM, Prompt
from tests import families
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


@contextmanager
def eager_without(
    vlm: VLM, segments: Segments, edges: list[tuple[str, str]], layers: list[int] | None = None
) -> Iterator[None]:
    """transformers' eager attention with −inf added by a slow loop over all pairs; a growing cache of all columns."""
    attentions = {module: layer for layer, module in vlm.layout.attentions(vlm.model).items()}
    source = sys.modules[type(next(iter(attentions))).__module__]
    eager = source.eager_attention_forward

    def cutting(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if module in attentions and (layers is None or attentions[module] in layers):
            shape = (query.shape[0], 1, query.shape[2], key.shape[2])
            attention_mask = torch.zeros(shape) if attention_mask is None else attention_mask.expand(shape).clone()
            for r, row in enumerate(segments.rows):
                for q in range(shape[2]):
                    column = shape[3] - shape[2] + q
                    for k in range(shape[3]):
                        pairs = (named(row.labels, a, k) and named(row.labels, b, column) for a, b in edges)
                        if k != column and any(pairs):
                            attention_mask[r, 0, q, k] = -torch.inf
        return eager(module, query, key, value, attention_mask, **options)

    implementations = {id(m.config): (m.config, m.config._attn_implementation) for m in vlm.model.modules()
                       if hasattr(m, "config")}  # fmt: skip
    vlm.model.set_attn_implementation({vlm.layout.text_config: "eager"})  # the vision tower's rounding stays
    source.eager_attention_forward = cutting
    try:
        yield
    finally:
        source.eager_attention_forward = eager
        for config, implementation in implementations.values():
            config._attn_implementation = implementation


def logits(vlm: VLM, encoded: Any) -> torch.Tensor:
    """Of all tokens that are not padding."""
    with torch.no_grad():
        return vlm.model(**encoded).logits[encoded["attention_mask"].bool()].float()


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


def test_decoding_by_hand(vlm: VLM) -> None:
    """The model makes the cache itself, and the next step is known by it."""

    def second_step() -> torch.Tensor:
        encoded = vlm.encode(PROMPTS)
        with torch.no_grad():
            cache = vlm.model(**encoded, use_cache=True).past_key_values
            mask = torch.nn.functional.pad(encoded["attention_mask"], (0, 1), value=1)
            return vlm.model(input_ids=torch.full((2, 1), 7), attention_mask=mask, past_key_values=cache).logits[:, -1]

    whole, segments = second_step(), segment(vlm, PROMPTS, vlm.encode(PROMPTS))
    with eager_without(vlm, segments, [("image", "generated")]):
        expected = second_step()
    with knockout(vlm, [("image", "generated")]):
        cut = second_step()
    torch.testing.assert_close(cut, expected, atol=1e-5, rtol=0)
    assert (cut - whole).abs().max() > 1e-3


def test_the_recorder_sees_what_is_left(vlm: VLM) -> None:
    with record_attention(vlm, queries=Queries.GENERATED) as record, knockout(vlm, [("image", "verdict")], layers=[1]):
        vlm.generate(PROMPTS, max_new_tokens=3)
    image = record.masses[record.masses["segment"] == "image_0"].groupby(["step", "layer"])["mass"].max()
    assert image[0, 1] == 0
    assert min(image[0, 0], image[1, 0], image[1, 1]) > 0.01


def test_two_knockouts_add_up(vlm: VLM) -> None:
    with knockout(vlm, [("image", "verdict")]), knockout(vlm, [("user", "verdict")]):
        nested = vlm.score(PROMPTS)
    with knockout(vlm, [("image", "verdict"), ("user", "verdict")]):
        together = vlm.score(PROMPTS)
    torch.testing.assert_close(nested, together, atol=1e-6, rtol=0)


def test_effect_is_the_change_of_the_margin(vlm: VLM) -> None:
    before = vlm.score(PROMPTS)
    with knockout(vlm, [("image", "verdict")], layers=[0]):
        after = vlm.score(PROMPTS)
    effect = knockout_effect(vlm, PROMPTS, [("image", "verdict")], [0])
    torch.testing.assert_close(effect, after - before, atol=1e-6, rtol=0)
    assert (effect.abs() > 1e-3).all()
    blind = [Prompt(prompt.text) for prompt in PROMPTS]
    assert torch.equal(knockout_effect(vlm, blind, [("image", "verdict")]), torch.zeros(2))


def traces(vlm: VLM) -> list[object]:
    """Everything a knockout touches."""
    return [
        [(type(m).__name__, m.config._attn_implementation) for m in vlm.model.modules() if hasattr(m, "config")],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in vlm.model.modules()],
        sorted(vars(vlm)),
    ]


def test_nothing_is_left_behind_also_after_an_error(vlm: VLM) -> None:
    margins, before = vlm.score(PROMPTS), traces(vlm)
    with knockout(vlm, [("image", "verdict")]):
        vlm.score(PROMPTS)
        assert traces(vlm) != before
    assert traces(vlm) == before

    def interrupted() -> None:
        with knockout(vlm, [("image", "verdict")]):
            vlm.score(PROMPTS)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        interrupted()
    assert traces(vlm) == before
    assert torch.equal(vlm.score(PROMPTS), margins)


@pytest.mark.parametrize(
    ("edges", "layers", "message"),
    [
        ([("picture", "verdict")], None, "no segment 'picture'.*known: image, verdict, sink, system, user"),
        ([("image", "padding")], None, "no segment 'padding'"),
        ([], None, "no edges"),
        ([("image", "verdict")], [2], "no layer 2 in tiny; known: 0 to 1"),
    ],
)
def test_what_is_not_there_is_named(
    vlm: VLM, edges: list[tuple[str, str]], layers: list[int] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        knockout_effect(vlm, PROMPTS, edges, layers)


def test_inputs_encoded_outside_are_refused(vlm: VLM) -> None:
    encoded = vlm.encode(PROMPTS)
    with knockout(vlm, [("image", "verdict")]), pytest.raises(UserError, match="pass segments="):
        vlm.score(PROMPTS, encoded=encoded)
