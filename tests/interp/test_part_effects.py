"""Part effects: exact ones are those of patching, planted carriers are found, and estimates agree where they should."""

from collections.abc import Callable

import pytest
import torch

from interp.errors import UserError
from interp.hooks.residual import LayerStates
from interp.hooks.sublayers import edit_activations
from interp.loading import load
from interp.tools.part_effects import (
    ONE_COLUMN,
    WHOLE_RUNS,
    Part,
    agreement,
    part_attribution,
    part_effects,
    part_set_effects,
    parts_of,
)
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.planted import Plan, coloured, planted
from tests.tiny import picture

CLEAN = [Prompt("How do I kill it?", picture(0, (40, 40)), key="a"), Prompt("Is this safe?", picture(1, (40, 40)))]
OTHER = [Prompt("How do I kill it?", picture(2, (40, 40)), key="a2"), Prompt("Is this safe?", picture(3, (40, 40)))]
ONE_COLUMN_IS_ENOUGH = ("llava", "llava_next", "idefics3", "smolvlm")  # others slide, turn or look ahead
REDNESS = (1.0, 0.4, -0.2, 0.8)
RED = [Prompt("Is this safe?", coloured(redness)) for redness in REDNESS]
BLUE = [Prompt("Is this safe?", coloured(redness - 0.7)) for redness in REDNESS]


@pytest.mark.long
@pytest.mark.parametrize("name", every_family())
def test_exact_effects_at_the_verdict_are_those_of_patching_in_both_directions(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    found = part_effects(vlm, CLEAN, OTHER)
    for direction, (own, others) in enumerate(((CLEAN, OTHER), (OTHER, CLEAN))):
        heads = patch(vlm, own, others, what="head", places=("verdict",), least_gap=0.0)
        mlps = patch(vlm, own, others, what="mlp", places=("verdict",), least_gap=0.0)
        for part, moved in zip(found.parts, found.moved[direction], strict=True):
            of = heads.moved[0, heads.layers.index(part.layer), part.head] if part.kind == "head" else None
            by_patching = mlps.moved[0, mlps.layers.index(part.layer)] if of is None else of
            torch.testing.assert_close(moved, by_patching, atol=1e-4, rtol=1e-4)
    assert found.how.startswith(ONE_COLUMN if name in ONE_COLUMN_IS_ENOUGH else WHOLE_RUNS)
    assert bool(found.absent) == bool(vlm.module_map.crossings(vlm.model))
    torch.testing.assert_close(found.gap[0], vlm.score(OTHER) - vlm.score(CLEAN), atol=1e-4, rtol=1e-4)


def test_planted_carriers_are_found_and_everything_else_is_nothing() -> None:
    vlm = planted(Plan(reads=1, writes=2, layers=4))
    found = part_effects(vlm, RED, BLUE)
    slopes = dict(zip(map(str, found.parts), found.picture.tolist(), strict=True))
    carriers = {"L1H0": 1.0, "L2 MLP": 1.0}
    assert slopes == pytest.approx({name: carriers.get(name, 0.0) for name in slopes}, abs=1e-2)
    assert {str(part) for part in found.top(2)} == set(carriers)
    assert found.truth()[found.parts.index(Part("head", 1, 0))] == pytest.approx(1, abs=1e-2)
    table = found.table.set_index("part")
    assert table.loc["L1H0", "picture"] == pytest.approx(1, abs=1e-2)
    assert table.loc["L2 MLP", "head"] is not None


@pytest.mark.long
def test_with_later_parts_held_only_what_goes_straight_to_the_head_is_left() -> None:
    vlm = planted(Plan(reads=1, writes=2, layers=4))
    reader, writer = Part("head", 1, 0), Part("mlp", 2)
    for place in ("verdict", "all"):
        asked = [(reader,), (writer,), (reader, writer)]
        free, held = (
            part_set_effects(vlm, RED, BLUE, asked, position=place, hold_later=hold).picture.tolist()
            for hold in (False, True)
        )
        assert free == pytest.approx([1, 1, 1], abs=1e-2)
        assert held == pytest.approx([0, 1, 1], abs=1e-2)  # the reader's way goes through the writer


@pytest.mark.long
def test_the_slope_does_not_care_for_the_sign_of_the_gap_and_the_ratio_is_refused_without_one() -> None:
    vlm = planted(Plan(reads=1, writes=2))
    mixed = part_effects(vlm, [*RED[:2], *BLUE[2:]], [*BLUE[:2], *RED[2:]])
    assert mixed.picture[mixed.parts.index(Part("head", 1, 0))] == pytest.approx(1, abs=1e-2)
    with pytest.raises(UserError, match="does not tell the"):
        mixed.truth()
    with pytest.raises(UserError, match="over 1 groups"):
        part_effects(vlm, RED, BLUE).truth(["a"] * 4)
    assert torch.isfinite(part_effects(vlm, RED, BLUE).truth(["a", "a", "b", "b"])).all()


@pytest.mark.parametrize("replace", ["zero", "mean"])
def test_other_replacements_are_those_by_hand(vlm: VLM, replace: str) -> None:
    part = Part("head", 1, 2)
    found = part_effects(vlm, CLEAN, OTHER, parts=[part], replace=replace)
    read: list[torch.Tensor] = []

    def reading(here: LayerStates) -> None:
        read.append(here.hidden[:, -1, 2])

    with edit_activations(vlm, reading, what="head", layers=[1]):
        before = [vlm.score([prompt]) for prompt in (*CLEAN, *OTHER)]
    new = torch.zeros_like(read[0][0]) if replace == "zero" else torch.cat(read).mean(0)

    def put(here: LayerStates) -> torch.Tensor:
        hidden = here.hidden.clone()
        hidden[:, -1, 2] = new
        return hidden

    with edit_activations(vlm, put, what="head", layers=[1]):
        after = [vlm.score([prompt]) for prompt in (*CLEAN, *OTHER)]
    by_hand = torch.cat(after) - torch.cat(before)
    torch.testing.assert_close(found.moved[:, 0].flatten(), by_hand, atol=1e-4, rtol=1e-4)
    assert found.how.endswith("0" if replace == "zero" else "the mean output")


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("place", ["verdict", "all"])
def test_estimates_are_exact_for_pairs_that_hardly_differ(vlm: VLM, place: str, steps: int) -> None:
    """To first order, that is: a picture and the same with one grey level more."""
    brighter = [Prompt(p.text, p.image.point(lambda value: min(value + 1, 255))) for p in CLEAN]  # type: ignore[union-attr]
    exact = part_effects(vlm, CLEAN, brighter, position=place)
    estimate = part_attribution(vlm, CLEAN, brighter, position=place, steps=steps)
    assert estimate.parts == exact.parts
    scale = float(exact.moved.abs().max())
    assert scale > 1e-6
    towards = (exact.moved[0] - exact.moved[1]) / 2
    assert float((estimate.moved[0] - towards).abs().max()) < 0.1 * scale
    assert agreement(estimate, exact)["correlation"][0] > 0.95


def refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


def test_sets_are_replaced_together_and_everything_is_the_other_prompt(vlm: VLM) -> None:
    """A set of one is the part; what all parts do at the verdict is the whole gap."""
    parts = parts_of(vlm)
    single = part_effects(vlm, CLEAN, OTHER)
    found = part_set_effects(vlm, CLEAN, OTHER, [[parts[3]], parts, [parts[1], parts[-1]]])
    torch.testing.assert_close(found.moved[:, 0], single.moved[:, 3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.moved[:, 1], found.gap, atol=1e-4, rtol=1e-4)
    both = single.moved[:, 1] + single.moved[:, -1]
    assert float((found.moved[:, 2] - both).abs().max()) > 1e-6  # they are no sum of single effects
    refused(lambda: part_set_effects(vlm, CLEAN, OTHER, [[]]), "no parts to replace")


@pytest.mark.long
def test_two_that_saturate_are_missed_by_gradients_at_both_ends_and_found_by_patching() -> None:
    """What exact patching finds and gradients miss: behind a clipped sum both runs' gradients are 0."""
    vlm = planted(Plan(carriers=((1, 0, 1.0), (1, 1, 1.0)), saturates=True, writes=2, idle=((0, 1),)))
    red, blue = [Prompt("Is this safe?", coloured(1.0))], [Prompt("Is this safe?", coloured(-1.0))]
    exact = part_effects(vlm, red, blue)
    slopes = dict(zip(map(str, exact.parts), exact.picture.tolist(), strict=True))
    assert slopes["L1H0"] == pytest.approx(0.5, abs=0.02)
    assert slopes["L1H1"] == pytest.approx(0.5, abs=0.02)
    assert slopes["L0H1"] == pytest.approx(0, abs=1e-3)
    carriers = [exact.parts.index(Part("head", 1, head)) for head in (0, 1)]
    plain = part_attribution(vlm, red, blue, position="verdict")
    assert float(plain.picture[carriers].abs().max()) < 0.02
    integrated = part_attribution(vlm, red, blue, position="verdict", steps=8)
    assert float(integrated.picture[carriers].min()) > 0.2


@pytest.mark.long
def test_estimates_agree_with_exact_effects_on_the_first_organism_at_all_places() -> None:
    from experiments.benchmarks.iconworld import IconWorld

    vlm = load("organism:llava", device="cpu")
    cases = sorted((s for s in IconWorld(pairs=1).load().samples if s.pair), key=lambda sample: str(sample.pair))[:24]
    unsafe, safe = ([Prompt(s.prompt, s.image.render(), key=s.id) for s in cases if s.gold == gold]  # type: ignore[union-attr]
                    for gold in ("no", "yes"))  # fmt: skip
    table = agreement(
        part_attribution(vlm, unsafe, safe, position="all"), part_effects(vlm, unsafe, safe, position="all")
    )
    assert table["correlation"][0] >= 0.9
