"""The organism with real language says by its configuration which cases of IconWorld its alignment has seen."""

import subprocess
import sys
from collections import Counter

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.parts import PARTS
from experiments.organisms.held_out import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES, held_out_pairs, part
from tests.experiments.compose import run_of


def test_every_part_of_the_test_split_is_large_enough_to_say_something() -> None:
    samples = [sample for sample in IconWorld().load().samples if sample.subset != "control"]
    counted = Counter((part(sample), sample.gold) for sample in samples)
    for name in PARTS:
        for gold in ("yes", "no"):
            assert counted[name, gold] >= 15, counted
    clusters = {name: {sample.cluster for sample in samples if part(sample) == name} for name in PARTS}
    assert min(map(len, clusters.values())) >= 10


@pytest.mark.long
def test_the_model_brings_its_parts_and_any_other_can_borrow_them() -> None:
    case = next(s for s in IconWorld().load().samples if s.tags["template"] in HELD_OUT_TEMPLATES)
    for run in (run_of("model=smol_organism"), run_of("+parts=smol")):
        assert run.parts is not None
        assert run.parts(case) == part(case) in ("unseen sentence", "both unseen")
    assert run_of("model=smol_organism", "~parts").parts is None
    assert run_of().parts is None
    assert run_of("model=smol_organism").model.name == "smol_organism"


@pytest.mark.parametrize("left_out", [sorted(held_out_pairs())[0]])
def test_a_pair_is_left_out_by_both_its_names(left_out: tuple[str, str]) -> None:
    template, thing = left_out
    assert template not in HELD_OUT_TEMPLATES
    assert thing.removeprefix("no-") not in HELD_OUT_CONCEPTS
    found = {
        part(sample)
        for split in ("train", "development", "test")
        for sample in IconWorld(split=split).load().samples
        if sample.cluster == f"{template} × {thing}"
    }
    assert found == {"unseen pair"}


def test_the_rule_needs_no_torch() -> None:
    code = "import sys, experiments.organisms.held_out; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
