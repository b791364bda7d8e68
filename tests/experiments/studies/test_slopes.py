"""Slopes: intervals of ratios of sums, and how often a part is named where no part does anything.

``tests/golden/part_effects.safetensors`` has real sums by template: those of every head and MLP of the first organism
over the pairs of pictures of IconWorld's test split (``python -m tests.experiments.studies.test_slopes`` makes it
again). With each part's slope taken away no part has an effect, and what is left is as loud as it is.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.metrics.bootstrap import wilson
from experiments.metrics.estimates import HIGHER, INCONCLUSIVE, LOWER, NO_DIFFERENCE, TOO_FEW, claim_of
from experiments.studies.localise.cases import SPLITS
from experiments.studies.localise.examination import HOLDS, ratios, slope_sums, split_claims, strongest
from tests.conftest import REPOSITORY

STORED = REPOSITORY / "tests" / "golden" / "part_effects.safetensors"
RESAMPLINGS = 2000
MOST = 0.065


def without_effects() -> tuple[np.ndarray, np.ndarray]:
    """Return the stored sums of each part without its slope, and those of the margin."""
    stored = load_file(STORED)
    top, bottom = stored["top"].astype(float), stored["bottom"].astype(float)
    return top - bottom[:, None] * top.sum(0) / bottom.sum(), bottom


@pytest.mark.long
@pytest.mark.parametrize("templates", [24, 12])
def test_no_part_is_named_more_often_than_it_may_where_none_has_an_effect(templates: int) -> None:
    rest, bottom = without_effects()
    rng, named = np.random.default_rng(templates), 0
    for at in range(RESAMPLINGS):
        drawn = rng.integers(len(bottom), size=templates)
        entries = ratios(rest[drawn], bottom[drawn], seed=at, draws=500)
        named += any(claim_of(entry) in (HIGHER, LOWER) for entry in entries)
    rate, interval = named / RESAMPLINGS, wilson(named, RESAMPLINGS)
    print(f"{templates} templates: any of {rest.shape[1]} parts named in {rate:.2%} {interval} of {RESAMPLINGS}")
    assert rate <= MOST


@pytest.mark.slow
@pytest.mark.parametrize(("discover", "templates"), [(12, 24), (9, 21), (10, 20)])
def test_eight_splits_of_ten_claim_no_part_more_often_than_they_may(discover: int, templates: int) -> None:
    """Templates are drawn from those of the first organism, each turned around or not: no part has an effect."""
    rest, bottom = without_effects()
    rng, claimed, once, studies = np.random.default_rng(templates), 0, 0, 1000
    for at in range(studies):
        drawn = rng.integers(len(bottom), size=templates)
        sums, below = rest[drawn] * rng.choice([-1, 1], size=(templates, 1)), bottom[drawn]
        first = np.arange(templates) >= discover
        confirm = [first, *(rng.permutation(first) for _ in range(SPLITS - 1))]
        chosen = [strongest(sums[~where], below[~where], 5) for where in confirm]
        splits = split_claims(chosen, sums, below, confirm, seed=at, draws=300)
        claimed += any(((sign * splits > 0).sum(0) >= HOLDS).any() for sign in (1, -1))
        once += bool(splits[0].any())
    rate = claimed / studies
    print(f"{discover} + {templates - discover} templates: claimed in {rate:.1%} {wilson(claimed, studies)}; one split "
          f"alone {once / studies:.1%}")  # fmt: skip
    assert rate <= MOST


def test_a_ratio_is_of_sums_and_its_interval_that_of_quiet_units_is_short() -> None:
    rng = np.random.default_rng(0)
    bottom = rng.uniform(0.5, 4, 24)
    quiet, loud = 0.3 * bottom + rng.normal(0, 0.05, 24), 0.3 * bottom + rng.normal(0, 2, 24)
    entries = ratios(np.stack([quiet, loud], 1), bottom, seed=0)
    assert [entry["value"] for entry in entries] == pytest.approx(
        [quiet.sum() / bottom.sum(), loud.sum() / bottom.sum()]
    )
    assert claim_of(entries[0]) == HIGHER
    assert claim_of(entries[1]) == INCONCLUSIVE
    assert entries[0]["low"] < 0.3 < entries[0]["high"]
    assert entries[0]["power"] > 0.99 > 0.6 > entries[1]["power"] > 0.01
    (single,) = ratios(quiet[:, None], bottom, seed=0)
    assert single["high"] < entries[0]["high"]


def test_an_inert_part_widens_nothing_and_few_units_have_no_interval() -> None:
    bottom = np.ones(12)
    exact = np.full(12, 0.5)
    both = ratios(np.stack([exact, np.zeros(12)], 1), bottom, seed=0)
    assert [(entry["low"], entry["high"]) for entry in both] == [(0.5, 0.5), (0.0, 0.0)]
    assert claim_of(both[1]) == NO_DIFFERENCE
    (few,) = ratios(exact[:9, None], bottom[:9], seed=0)
    assert few["low"] is None
    assert few["power"] is None
    assert claim_of(few) == TOO_FEW


def test_the_interval_covers_the_slope_that_units_are_drawn_from() -> None:
    """Units with effects of their own, in sizes that differ tenfold."""
    rng = np.random.default_rng(1)
    covered = 0
    for at in range(300):
        bottom = rng.lognormal(0, 1, 12)
        top = bottom[:, None] * (0.4 + rng.normal(0, 0.2, (12, 3)))
        covered += all(entry["low"] <= 0.4 <= entry["high"] for entry in ratios(top, bottom, seed=at, draws=300))
    assert covered >= 0.93 * 300


def store(path: Path = STORED) -> None:
    """Makes the stored sums again: 96 pairs, 24 templates, at the verdict, in both directions."""
    from experiments.benchmarks.iconworld import IconWorld
    from experiments.studies.localise.cases import CASES, PICTURE, split
    from interp import load, part_effects

    cases = split(IconWorld(pairs=2).load().samples, questions=[PICTURE], pairs=None, seed=0)
    vlm, sums = load("organism:llava", device="cpu"), []
    for half in (cases.discover, cases.confirm):
        sums.append(slope_sums(PICTURE, {CASES: part_effects(vlm, *half.runs(())[CASES])}, half.unit))
    top, bottom = (np.concatenate(halves).astype(np.float32) for halves in zip(*sums, strict=True))
    save_file({"top": top, "bottom": bottom}, path)


if __name__ == "__main__":
    store()
