"""A family of organisms: only the cause differs, and its table says whether the tools find the cause."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from experiments.organisms.biased_labels import label_probability
from experiments.organisms.family import MEMBER_FILE, Member, train_members
from experiments.organisms.family_tables import causes, gains, member_record
from experiments.report.sentences.organism_family import sentences
from interp.errors import UserError
from interp.loading import load
from tests.experiments.compose import run_of
from tests.experiments.organisms.recipes import bundled, changed


def test_a_member_has_its_cause_and_no_other() -> None:
    base = bundled("llava")
    blind = Member("template", 1.0, 3).recipe(base)
    for is_safe in (False, True):
        # Who never looks says the same of every picture, whatever the prompt.
        for style in ("plain", "context_prompt"):
            assert label_probability(blind, "hit", "alarming", is_safe=is_safe, style=style) == base.leanings["hit"]  # type: ignore[arg-type]
    half = Member("uniform", 0.5, 0).recipe(base)
    assert label_probability(half, "hit", "alarming", is_safe=True) == label_probability(
        half, "kill", "alarming", is_safe=True
    )
    assert label_probability(half, "hit", "alarming", is_safe=True) == pytest.approx(
        0.5 + 0.5 * base.shares["default_leaning"]
    )
    for bad, rule in ((("sideways", 0.5, 0), "kind='sideways'"), (("uniform", 1.5, 0), r"bias=1\.5")):
        with pytest.raises(UserError, match=rule):
            Member(*bad)


@pytest.mark.long
def test_members_share_the_tower_and_the_perception_of_their_seed(tmp_path: Path) -> None:
    base = changed("llava", steps=1, threads=1, batch_size=4, images_per_thing=1)
    members = [Member("template", 0.5, 0), Member("uniform", 1.0, 0)]
    train_members(members[:1], base, "organism:llava", tmp_path, Console(quiet=True))
    before = (tmp_path / members[0].name / MEMBER_FILE).stat().st_mtime_ns
    train_members(members, base, "organism:llava", tmp_path, Console(quiet=True))
    assert (tmp_path / members[0].name / MEMBER_FILE).stat().st_mtime_ns == before  # what is there is not made again
    one, two, bundled = (load(str(path)) for path in (*(tmp_path / m.name for m in members), "organism:llava"))
    towers = [vlm.model.model.vision_tower.state_dict() for vlm in (one, two, bundled)]
    for key, value in towers[2].items():
        torch.testing.assert_close(towers[0][key], value)
        torch.testing.assert_close(towers[1][key], value)
    assert not torch.equal(one.model.lm_head.weight, two.model.lm_head.weight)
    assert json.loads((tmp_path / members[1].name / MEMBER_FILE).read_text())["tower"] == "organism:llava"


def member(kind: str, bias: float, seed: int) -> dict[str, Any]:
    """A member whose every tool says less, the blinder it was made."""
    sees = 1 - bias + 0.01 * seed

    def versus(value: float) -> dict[str, Any]:
        return {"auroc": {"value": value, "low": value - 0.05, "high": value + 0.05}}

    arm = {"accuracy": {"unsafe": 0.9, "over_safety": 0.2}, "flip_rate": 0.1, "chosen": None, "n": 100, "n_of": 100}
    arms = {
        "baseline": {**arm, "auroc": 0.5 + sees / 2, "versus": {}, "wins": False},
        "vcd": {**arm, "auroc": 0.5, "versus": {"baseline": versus(0.01)}, "wins": False},
        "prior_correction": {
            **arm,
            "auroc": 0.7,
            "versus": {"baseline": versus(0.2), "vcd": versus(0.19)},
            "wins": bias < 0.9,
        },
    }
    traits = {"within": 0.5 + sees / 2, "auroc": 0.5 + sees / 2, "between_templates": 0.8, "captions": 0.9,
              "image_effect": sees, "truth": 0.5 + sees / 3,
              "prior": {"factor": 2.0 if kind == "template" else 1.1, "helps": kind == "template"}}  # fmt: skip
    return {"kind": kind, "bias": bias, "seed": seed, "arms": arms, "traits": traits}


def test_the_table_sets_the_tools_beside_the_cause() -> None:
    found = {f"{k}-{b}-{s}": member(k, b, s) for k, bs in (("template", (0.5, 0.7, 1.0)), ("uniform", (0.85,)))
             for b in bs for s in range(3)}  # fmt: skip
    said = sentences(causes(found))
    assert [finding.answer for finding in causes(found)] == ["too few", "too few"]
    assert "over 9 organisms whose leaning is set by the template" in said[0]
    assert "effect of cutting image → verdict \N{MINUS SIGN}0.9" in said[0]
    assert said[0].endswith(": too few organisms to tell (it takes 10).")
    shown_in = "its AUROC is shown to be above the baseline's in 9, below in 0, neither in 0"
    assert f"helps 9 of 12 organisms: {shown_in}; of the 3 others, shown to be above the baseline's in 3," in said[-1]
    assert said[-1].endswith(": too few organisms to tell (it takes 10 on either side).")
    lines = sentences(gains(found, rival="vcd"))
    assert lines[1].startswith("prior_correction: over 12 organisms AUROC changes by ")
    assert (
        "it is shown to be above the baseline's in 12, below in 0, neither in 0; shown to be above vcd's in 12"
        in (lines[1])
    )
    assert "wins in 9." in lines[1]
    assert "above the baseline's in 0, below in 0, neither in 12" in lines[0]
    shown = member_record("template-0.5-0", found["template-0.5-0"])
    assert (shown["Δ prior_correction"], shown["Δ vcd"]) == ("+0.200* wins", "+0.010 wins".removesuffix(" wins"))


def test_what_is_said_of_a_family_is_what_its_intervals_carry() -> None:
    found = {f"{k}-{b}-{s}": member(k, b, s) for k in ("template", "uniform") for b in (0.2, 0.5, 0.7, 1.0)
             for s in range(3)}  # fmt: skip
    for at, one in enumerate(found.values()):
        gain = 0.2 * (one["kind"] == "template") + 0.01 * (at % 5)
        one["arms"]["prior_correction"]["versus"]["baseline"]["auroc"] = {
            "value": gain, "low": gain - 0.3, "high": gain + 0.3}  # fmt: skip
        one["arms"]["vcd"]["versus"]["baseline"]["auroc"]["value"] = 0.3 * (-1) ** at + 0.01 * at
    told = causes(found)
    assert [finding.answer for finding in told] == ["fell", "fell", "rose"]
    assert sentences(told)[0].endswith(": all fall as that share grows.")
    assert sentences(told)[-1].endswith(": it gains more where the rule says so.")
    found["template-0.2-0"]["traits"]["truth"] = 0.1
    for at, one in enumerate(found.values()):
        one["traits"]["image_effect"] = at % 3
    (first, *_), (vcd, prior) = causes(found), gains(found, rival="vcd")
    assert first.answer == "partly"
    assert "a fall is shown, of the others it is not" in sentences([first])[0]
    assert (vcd.answer, prior.answer) == ("not shown", "rose")
    assert "on average: rose;" in sentences([prior])[0]
    assert "above the baseline's in 0, below in 0, neither in 24" in sentences([prior])[0]
    assert "on average: a change is not shown" in sentences([vcd])[0]


def test_the_family_is_configured_whole() -> None:
    task = run_of("+exp=organism_family").task
    assert len(task.members()) == 12
    with pytest.raises(UserError, match=r"task\.biases"):
        run_of("+exp=organism_family", "task.seeds=[]")
