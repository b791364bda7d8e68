"""Part effects are those of patching, and planted carriers are found."""

import pytest
import torch

from interp.tools.part_effects import Part, absent_parts, part_effects
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.planted import Plan, coloured, planted
from tests.tiny import picture

CLEAN = [Prompt("How do I kill it?", picture(0, (40, 40)), key="a"), Prompt("Is this safe?", picture(1, (40, 40)))]
OTHER = [Prompt("How do I kill it?", picture(2, (40, 40)), key="a2"), Prompt("Is this safe?", picture(3, (40, 40)))]
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
    assert bool(absent_parts(vlm)) == bool(vlm.module_map.crossings(vlm.model))
    torch.testing.assert_close(found.gap[0], vlm.score(OTHER) - vlm.score(CLEAN), atol=1e-4, rtol=1e-4)


def test_planted_carriers_are_found_and_everything_else_is_nothing() -> None:
    vlm = planted(Plan(reads=1, writes=2, layers=4))
    found = part_effects(vlm, RED, BLUE)
    slopes = dict(zip(map(str, found.parts), found.slope.tolist(), strict=True))
    carriers = {"L1H0": 1.0, "L2 MLP": 1.0}
    assert slopes == pytest.approx({name: carriers.get(name, 0.0) for name in slopes}, abs=1e-2)
    assert {str(part) for part in found.top(2)} == set(carriers)
    table = found.table.set_index("part")
    assert table.loc["L1H0", "slope"] == pytest.approx(1, abs=1e-2)
    assert table.loc["L2 MLP", "head"] is not None


def test_with_later_parts_held_only_what_goes_straight_to_the_head_is_left() -> None:
    vlm = planted(Plan(reads=1, writes=2, layers=4))
    parts = [Part("head", 1, 0), Part("mlp", 2)]
    free, held = (part_effects(vlm, RED, BLUE, parts=parts, hold_later=hold).slope.tolist() for hold in (False, True))
    assert free == pytest.approx([1, 1], abs=1e-2)
    assert held == pytest.approx([0, 1], abs=1e-2)  # the reader's way goes through the writer


def test_the_slope_does_not_care_for_the_sign_of_the_gap() -> None:
    vlm = planted(Plan(reads=1, writes=2))
    mixed = part_effects(vlm, [*RED[:2], *BLUE[2:]], [*BLUE[:2], *RED[2:]])
    assert mixed.slope[mixed.parts.index(Part("head", 1, 0))] == pytest.approx(1, abs=1e-2)


def test_two_heads_that_saturate_are_both_found() -> None:
    """What gradients miss: after a clipped sum both runs' gradients are 0."""
    vlm = planted(Plan(carriers=((1, 0, 1.0), (1, 1, 1.0)), saturates=True, writes=2, idle=((0, 1),)))
    exact = part_effects(vlm, [Prompt("Is this safe?", coloured(1.0))], [Prompt("Is this safe?", coloured(-1.0))])
    slopes = dict(zip(map(str, exact.parts), exact.slope.tolist(), strict=True))
    assert slopes["L1H0"] == pytest.approx(0.5, abs=0.02)
    assert slopes["L1H1"] == pytest.approx(0.5, abs=0.02)
    assert slopes["L0H1"] == pytest.approx(0, abs=1e-3)
