"""What is lost without a part, which parts stand in for it, and whether it reaches the margin by the final norm alone.

Interchange says that a part's output *can* move the margin. Whether the answer needs it is asked by setting the output
to its mean over the prompts, or to 0, in both members of a pair: *lost* is the share of the pairs' difference that is
then gone, Σ gap·(gap − gap without) / Σ gap² (Wang et al. 2022, "Interpretability in the Wild"; Chan et al. 2022,
"Causal scrubbing"). Where little is lost without a part that carries, another may stand in for it: a *backup* is a part
without which, beside the first, more is lost than without either alone (McGrath et al. 2023, "The Hydra effect").

An effect on the margin with all later parts held is a straight one. What it has beyond the direct attribution, where
the final norm's scale is held too, comes through that scale: such a part makes all that others say louder or lower.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.metrics.findings import Answer, statement
from experiments.metrics.slopes import ratios
from experiments.studies.localise.cases import Half, Run
from experiments.studies.localise.measured import Measured
from interp.errors import UserError
from interp.tools.part_effects import ONE_COLUMN, Part, SetEffects, part_set_effects

if TYPE_CHECKING:
    from interp.vlm import VLM

REPLACED = ("mean", "zero")
STANDS_IN = 3  # parts for each carrier that are confirmed as its backups
LITTLE = 0.5  # of what interchange moves: where less is lost without a part, backups are looked for
THROUGH_NORM = 0.5  # of a part's effect: where more comes through the final norm's scale, it is not counted


def direct_effects(vlm: "VLM", run: Run, parts: Sequence[Part]) -> SetEffects | None:
    """What each part writes into the margin itself, the final norm's scale held; None where it cannot be read so."""
    from interp.tools.logit_attribution import direct_logit_attribution

    try:
        clean, other = (direct_logit_attribution(vlm, prompts) for prompts in run)
    except UserError:
        return None
    writes = [
        torch.stack([
            torch.zeros_like(of.metric) if part.layer not in of.layers
            else of.mlps[of.layers.index(part.layer)] if part.head is None
            else of.heads[of.layers.index(part.layer), part.head]
            for part in parts
        ])
        for of in (clean, other)
    ]  # fmt: skip
    ratio = clean.scale / other.scale  # the receiving prompt's scale is held
    moved = torch.stack([writes[1] * ratio - writes[0], writes[0] / ratio - writes[1]])
    sets = tuple((part,) for part in parts)
    return SetEffects(moved, clean.metric, other.metric, sets, "verdict", ONE_COLUMN)


def without(
    vlm: "VLM", runs: Mapping[str, Run], parts: Sequence[Part], names: Sequence[str]
) -> dict[str, dict[str, SetEffects]]:
    """By way of replacing (``REPLACED``) and run, the effects of the ``parts`` one by one; also ``straight``."""
    sets = [(part,) for part in parts]
    found = {how: {name: part_set_effects(vlm, *runs[name], sets, replace=how) for name in names} for how in REPLACED}
    held = {name: part_set_effects(vlm, *runs[name], sets, hold_later=True) for name in names}
    return {**found, "straight": held}


def lost(found: Measured, half: Half, *, seed: int, draws: int) -> list[dict[str, Any]]:
    """The share of the difference that is gone without each set, as entries that hold for all sets at once."""
    top, bottom = found.slope_sums(half.unit)
    return list(ratios(2 * top, bottom, seed=seed, draws=draws).entries)


def through_norm(value: float, straight: float, direct: float | None) -> bool:
    """Whether more than ``THROUGH_NORM`` of an effect comes through the scale of the final norm alone."""
    return direct is not None and abs(straight - direct) > THROUGH_NORM * abs(value)


def backups(
    vlm: "VLM",
    question: str,
    name: str,
    runs: Mapping[str, Mapping[str, Run]],
    halves: Mapping[str, Half],
    carriers: Sequence[int],
    parts: Sequence[Part],
    *,
    seed: int,
    draws: int,
) -> list[dict[str, Any]]:
    """The parts that stand in for ``carriers``, found on the discover half and measured on the other, all set to 0.

    Each with ``part``, ``backup``, what is ``lost`` without both, and ``gain``, what of it is lost without neither
    alone, as an entry with its statement. Costs two forwards of a column a part and carrier.
    """
    if not carriers:
        return []

    def gains(half: str, pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By unit and pair of parts: what is lost without both, and beyond either alone; and Σ gap²."""
        alone = sorted({at for pair in pairs for at in pair})
        sets = [*([parts[at]] for at in alone), *([parts[one], parts[other]] for one, other in pairs)]
        effects = {name: part_set_effects(vlm, *runs[half][name], sets, replace="zero")}
        top, bottom = Measured.of(question, effects).slope_sums(halves[half].unit)
        both, place = 2 * top[:, len(alone) :], {at: column for column, at in enumerate(alone)}
        each = [2 * (top[:, place[one]] + top[:, place[other]]) for one, other in pairs]
        return both, both - np.stack(each, axis=1), bottom

    asked = [(one, other) for one in carriers for other in range(len(parts)) if other != one]
    _, beyond, _ = gains("discover", asked)
    total = beyond.sum(0)
    best: list[tuple[int, int]] = []
    for one in carriers:
        own = sorted((at for at, pair in enumerate(asked) if pair[0] == one), key=lambda at: -total[at])
        best += [asked[at] for at in own[:STANDS_IN]]
    both, beyond, bottom = gains("confirm", best)
    gone, more = (ratios(sums, bottom, seed=seed, draws=draws).entries for sums in (both, beyond))
    return [
        {"part": str(parts[one]), "backup": str(parts[other]), "lost": gone[at],
         "gain": {**more[at], "statement": statement(more[at], small=None).value}}
        for at, (one, other) in enumerate(best) if statement(more[at], small=None) is Answer.ROSE
    ]  # fmt: skip
