"""The residual stream: equal to transformers' own hidden states in any batch; edits do what they say and no more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.hooks.residual import PLACES, LayerStates, edit_residual, last_layer, residuals
from interp.segments import segment
from interp.tools.knockout import knockout
from interp.vlm import VLM, Prompt
from mitigation.contrastive.processors import SecondBranch
from tests.families import FAMILIES, Pieces, every_family, llava, paligemma2
from tests.interp.conftest import PROMPTS
from tests.tiny import picture


def own_states(vlm: VLM, prompts: list[Prompt]) -> tuple[Any, list[torch.Tensor]]:
    """transformers' hidden states, where the last is not yet normed, with the segments they belong to."""
    encoded = vlm.encode(prompts)
    unnormed: list[torch.Tensor] = []
    norm = vlm.module_map.module(vlm.model, "final_norm")
    handle = norm.register_forward_pre_hook(lambda module, args: unnormed.append(args[0]))
    mask = encoded["attention_mask"]
    positions = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if vlm.module_map.position_kind == "1d" else {}
    try:
        with torch.no_grad():
            states = vlm.model(**encoded, **positions, output_hidden_states=True)
    finally:
        handle.remove()
    states = getattr(states, "language_model_outputs", states).hidden_states
    return segment(vlm, prompts, encoded), [*states[:-1], unnormed[0]]


def reference(segments: Any, row: int, place: str) -> list[int]:
    """The columns of a place, by the words of the docstring."""
    last = segments.width - 1
    if place == "verdict":
        return [last]
    name = place.removeprefix("last_")
    columns = [c for c in segments.rows[row].columns("image_0" if name == "image" else name) if c != last]
    return columns[-1:] if name != place else columns


@pytest.mark.parametrize("name", every_family())
def test_equal_to_transformers_own_hidden_states(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    places = tuple(p for p in PLACES if not vlm.module_map.cross_attended or "image" not in p)
    found = residuals(vlm, PROMPTS, places=places)
    segments, states = own_states(vlm, PROMPTS)
    assert found.values.shape == (len(places), last_layer(vlm) + 1, 2, states[0].shape[-1])
    for place in places:
        for layer in found.layers:
            for row in range(2):
                columns = reference(segments, row, place)
                expected = states[layer][row, columns].float().mean(0)
                torch.testing.assert_close(
                    found.select(place, layer)[row], expected, atol=1e-5, rtol=1e-5, equal_nan=True
                )
    assert not found.select("verdict", 0).isnan().any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_batch_equals_its_rows(vlm: VLM, dtype: torch.dtype, tolerance: float) -> None:
    vlm.model.to(dtype)
    together = residuals(vlm, PROMPTS, places=PLACES)
    alone = torch.cat([residuals(vlm, [prompt], places=PLACES).values for prompt in PROMPTS], dim=2)
    in_batches_of_one = residuals(vlm, PROMPTS, places=PLACES, batch_size=1)
    assert together.values.dtype == torch.float32
    torch.testing.assert_close(together.values, alone, atol=tolerance, rtol=tolerance)
    assert torch.equal(in_batches_of_one.values, alone)


@pytest.mark.long
@pytest.mark.parametrize("family", [llava, paligemma2], ids=["llava", "paligemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_edit_is_there_where_it_was_made(family: Callable[[], Pieces], dtype: torch.dtype) -> None:
    """Each layer and place: what is read afterwards there, and nowhere else at that layer, is the edit."""
    vlm = VLM(*family())
    vlm.model.to(dtype)
    before = residuals(vlm, PROMPTS, places=PLACES)
    margins = vlm.score(PROMPTS)
    for layer in before.layers:
        for place in ("image", "verdict", "user", "sink"):

            def doubled(here: LayerStates, place: str = place) -> torch.Tensor:
                return torch.where(here.where(place)[..., None], 2 * here.hidden, here.hidden)

            with edit_residual(vlm, doubled, layers=[layer]):
                after = residuals(vlm, PROMPTS, places=PLACES)
            for other in ("image", "verdict", "user", "sink", "template"):
                factor = 2 if other == place else 1
                expected = factor * before.select(other, layer)
                torch.testing.assert_close(after.select(other, layer), expected, atol=0, rtol=0, equal_nan=True)
            torch.testing.assert_close(
                after.values[:, :layer], before.values[:, :layer], atol=0, rtol=0, equal_nan=True
            )
    assert torch.equal(vlm.score(PROMPTS), margins)


def test_nested_edits_follow_each_other(vlm: VLM) -> None:
    seen: list[torch.Tensor] = []
    with (
        edit_residual(vlm, lambda here: here.hidden + 1, layers=[1]),
        edit_residual(vlm, lambda here: 3 * here.hidden, layers=[1]),
        edit_residual(vlm, lambda here: seen.append(here.hidden), layers=[1]),
        knockout(vlm, [("image", "verdict")], layers=[1]),
        record_attention(vlm, queries=Queries.VERDICT) as record,
    ):
        vlm.score(PROMPTS)
    mask = vlm.encode(PROMPTS)["attention_mask"].bool()
    _, states = own_states(vlm, PROMPTS)
    torch.testing.assert_close(seen[0][mask], 3 * (states[1][mask] + 1), atol=1e-5, rtol=1e-5)
    image = record.masses[record.masses["segment"] == "image_0"].groupby("layer")["mass"].max()
    assert image[1] == 0 < image[0]


@pytest.mark.parametrize("use_cache", [True, False])
def test_generated_columns_are_followed(vlm: VLM, use_cache: bool) -> None:
    """The same edit with a cache, without, and by one forward over the whole answer."""
    seen: list[tuple[int, list[int], list[bool]]] = []

    def shifted(here: LayerStates) -> torch.Tensor:
        where = here.where("generated") | here.where("verdict")
        seen.append((here.start, list(here.hidden.shape[:2]), here.where("image").any(1).tolist()))
        return here.hidden + 0.5 * where[..., None]

    with edit_residual(vlm, shifted, layers=[0, 2]):
        answer = vlm.generate(PROMPTS, max_new_tokens=4, eos_token_id=[], use_cache=use_cache)
    width = vlm.encode(PROMPTS)["input_ids"].shape[1]
    starts = [start for start, _, _ in seen[::2]]
    assert starts == ([0, width, width + 1, width + 2] if use_cache else [0, 0, 0, 0])
    assert seen[-1][1] == ([2, 1] if use_cache else [2, width + 3])
    assert seen[-1][2] == [not use_cache, not use_cache]
    encoded = vlm.encode(PROMPTS)
    whole = dict(encoded) | {
        "input_ids": torch.cat([encoded["input_ids"], torch.tensor(answer.token_ids)], 1),
        "attention_mask": torch.nn.functional.pad(encoded["attention_mask"], (0, 4), value=1),
    }

    def by_column(here: LayerStates) -> torch.Tensor:  # asks for no segment, so the follower need not know this batch
        return here.hidden + 0.5 * (torch.arange(here.hidden.shape[1]) >= width - 1)[:, None]

    with edit_residual(vlm, by_column, layers=[0, 2]), torch.no_grad():
        logits = vlm.model(**whole, position_ids=(whole["attention_mask"].cumsum(-1) - 1).clamp(min=0)).logits
    assert logits[:, width - 1 : -1].argmax(-1).tolist() == answer.token_ids
    torch.testing.assert_close(vlm.margin(logits[:, width - 1]), answer.margins, atol=1e-5, rtol=0)
    assert vlm.generate(PROMPTS, max_new_tokens=4, eos_token_id=[]).token_ids != answer.token_ids


def test_a_second_branch_that_catches_up_is_edited_as_token_by_token(vlm: VLM) -> None:
    """VCD feeds its second branch several tokens at once where no step between asked for it."""
    said = torch.tensor([[7, 8, 9], [10, 11, 12]])

    def shifted(here: LayerStates) -> torch.Tensor:
        return here.hidden + 0.5 * here.where("generated")[..., None]

    with edit_residual(vlm, shifted, layers=[1]):
        branch = SecondBranch(vlm.model, vlm.encode(PROMPTS))
        branch.start()
        at_once = branch.extend(said)
        branch.start()
        one_by_one = [branch.extend(said[:, column : column + 1]) for column in range(3)]
    torch.testing.assert_close(at_once, one_by_one[-1], atol=1e-5, rtol=1e-5)


def test_a_batch_of_no_known_prompts_is_refused_only_where_segments_are_asked_for(vlm: VLM) -> None:
    encoded = vlm.encode(PROMPTS)
    plain = vlm.score(PROMPTS, encoded=encoded)
    with edit_residual(vlm, lambda here: here.hidden * here.where("all")[..., None], layers=[1]):
        assert torch.equal(vlm.score(PROMPTS, encoded=encoded), plain)
        branch = SecondBranch(vlm.model, vlm.encode([Prompt("a dog", picture(5))]))
        branch.start()
    with (
        edit_residual(vlm, lambda here: here.hidden * here.where("user")[..., None], layers=[1]),
        pytest.raises(UserError, match="pass segments="),
    ):
        vlm.score(PROMPTS, encoded=encoded)
    segments = segment(vlm, PROMPTS, encoded)
    silence = edit_residual(
        vlm, lambda here: here.hidden * ~here.where("user")[..., None], layers=[1], segments=segments
    )
    with silence:
        assert not torch.equal(vlm.score(PROMPTS, encoded=encoded), plain)
