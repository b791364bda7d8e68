"""Localise: planted carriers are found and confirmed, halves share nothing, and a killed study ends as a whole one."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of
from experiments.report.sentences.localise import sentences
from experiments.studies.localise.cases import JOIN, PICTURE, QUESTIONS, SENTENCE, WORDS, Cases, split
from experiments.studies.localise.examination import examine
from experiments.studies.localise.tables import curves_figure, figures, parts_figure
from experiments.types import Sample
from interp.errors import UserError
from interp.vlm import VLM
from tests.experiments.compose import run_of
from tests.experiments.studies.test_killed_analyses import whole_and_killed
from tests.planted import BALLAST, BIG, DIMENSIONS, Plan, _copy, coloured, planted

ICONS = IconWorld().load().samples


@dataclass(frozen=True)
class Plain:
    """A picture of one colour."""

    redness: float

    def render(self) -> Image.Image:
        return coloured(self.redness)


def coloured_pairs(units: int = 20, each: int = 2, *, lift: float = 1.0) -> list[Sample]:
    """Pairs of a blue (unsafe) and a redder (safe) picture, ``each`` of every template."""
    rng = random.Random(0)
    found = []
    for unit in range(units):
        for at in range(each):
            dark = rng.uniform(-1, 0)
            for gold, redness in (("no", dark), ("yes", dark + lift * rng.uniform(0.3, 1.0))):
                safe = gold == "yes"
                found.append(
                    Sample(
                        f"{unit}-{at}-{gold}", "over_safety" if safe else "typical", "", "yes" if safe else "no",
                        "Is this safe?", "Is this safe?", Plain(redness), f"cluster {unit}", f"{unit}-{at}",
                        {"template": f"template {unit}"},
                    )
                )  # fmt: skip
    return found


def by_hand(plant: Callable[[Any], None], layers: int = 4) -> VLM:
    """A planted network in whose decoder layers nothing is written but what ``plant`` writes."""
    vlm = planted(Plan(layers=layers, carriers=((0, 0, 0.0),)))
    with torch.no_grad():
        own = vlm.model.model.language_model.layers
        for layer in own:
            attention, mlp = layer.self_attn, layer.mlp
            for one in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                        mlp.gate_proj, mlp.up_proj, mlp.down_proj):  # fmt: skip
                one.weight.zero_()
        plant(own)
    return vlm


def localised(
    plan: Plan, samples: Sequence[Sample] | None = None, vlm: VLM | None = None, **options: Any
) -> dict[str, Any]:
    vlm = vlm or planted(plan)
    cases = split(samples or coloured_pairs(), questions=[PICTURE], pairs=None, seed=0)
    result = examine(vlm, cases, questions=[PICTURE], candidates=3, random_sets=4, draws=500, **options)
    names = figures(result, vlm, cases.confirm)
    assert {"localise_parts", "localise_curves"} <= names.keys()
    return result


def row_of(result: dict[str, Any], part: str) -> dict[str, Any]:
    (row,) = [row for row in result["confirm"][PICTURE]["parts"] if row["part"] == part]
    return row


def said_of(result: dict[str, Any]) -> dict[str, str]:
    return {row["part"]: row["statement"] for row in result["confirm"][PICTURE]["parts"]}


def values_of(result: dict[str, Any], block: str) -> list[float]:
    return [row["value"] for row in result[block][PICTURE]]


@pytest.mark.long
def test_one_planted_carrier_is_confirmed_and_restores_everything() -> None:
    result = localised(Plan(carriers=((1, 0, 1.0),), idle=((0, 1), (2, 0))))
    said = said_of(result)
    assert said.pop("L1H0") == "rose"
    assert said
    assert not {"rose", "fell"} & set(said.values())
    assert values_of(result, "faithfulness") == pytest.approx([1, 1], abs=1e-2)
    assert values_of(result, "completeness") == pytest.approx([0, 0], abs=1e-2)
    assert values_of(result, "random") == pytest.approx([0, 0], abs=1e-2)
    assert result["smallest"][PICTURE] == {"0.5": 1, "0.8": 1}
    (row,) = [row for row in result["confirm"][PICTURE]["truth"]["parts"] if row["part"] == "L1H0"]
    assert row["value"] == pytest.approx(1, abs=1e-2)
    claim = sentences(result, seed=0)[0]
    assert claim.startswith("What carries the picture: L1H0 1.00 [1.00–1.00] (10 of 10) of the gap")
    assert "found among 12 parts on 10 units, measured on 10 others (20 pairs, seed 0)" in claim


@pytest.mark.long
def test_the_curve_says_two_where_two_are_needed() -> None:
    result = localised(Plan(carriers=((1, 0, 0.5), (2, 1, 0.5)), idle=((0, 1),)))
    assert {part for part, answer in said_of(result).items() if answer == "rose"} == {"L1H0", "L2H1"}
    assert values_of(result, "faithfulness") == pytest.approx([0.5, 1], abs=1e-2)
    assert values_of(result, "completeness") == pytest.approx([0.5, 0], abs=1e-2)
    assert result["smallest"][PICTURE]["0.8"] == 2


@pytest.mark.long
def test_two_that_back_each_other_up_are_found_as_such() -> None:
    """L0H0 hands the picture on, and says that it did; L2's MLP hands on what L1H0 has held where nothing says so."""

    def plant(layers: Any) -> None:
        first, flag = layers[0].self_attn, DIMENSIONS.index("heard")
        _copy(first, 0, asker="asks", source="image", value="picture", to="verdict", weight=1)
        first.v_proj.weight[1, DIMENSIONS.index("image")] = 1
        first.o_proj.weight[flag, 1] = 1
        _copy(layers[1].self_attn, 0, asker="asks", source="image", value="picture", to="idle", weight=1)
        mlp, ballast = layers[2].mlp, DIMENSIONS.index("ballast")
        mlp.gate_proj.weight[0, ballast], mlp.gate_proj.weight[0, flag] = BIG / BALLAST, -2 * BIG
        mlp.up_proj.weight[0, DIMENSIONS.index("idle")] = 1
        mlp.down_proj.weight[DIMENSIONS.index("verdict"), 0] = 1 / BIG

    result = localised(Plan(carriers=((0, 0, 0.0),)), vlm=by_hand(plant))
    row = row_of(result, "L0H0")
    assert (row["statement"], row["held"]) == ("rose", 10)
    assert row["without"]["zero"]["value"] == pytest.approx(0, abs=0.02), "nothing is lost without it"
    found = {one["backup"]: one["lost"]["value"] for one in result["backups"][PICTURE]}
    assert found == pytest.approx({"L1H0": 1, "L2 MLP": 1}, abs=0.02)
    assert any(
        one.startswith("L0H0 is backed up") and "without L1H0 too 100%" in one for one in sentences(result, seed=0)
    )


@pytest.mark.long
def test_what_scales_the_final_norm_alone_carries_nothing() -> None:
    """L0H0 writes the picture onto the ballast, which the head does not read; L3H1 always says −1."""

    def plant(layers: Any) -> None:
        _copy(layers[0].self_attn, 0, asker="asks", source="image", value="picture", to="ballast", weight=-200)
        _copy(layers[3].self_attn, 1, asker="asks", source="word", value="word", to="verdict", weight=-1)

    result = localised(Plan(carriers=((0, 0, 0.0),)), vlm=by_hand(plant))
    row = row_of(result, "L0H0")
    assert row["held"] == 10
    assert row["value"] > 0.9
    assert (row["statement"], row["through_norm"]) == ("not shown", True)
    assert row["direct"] == pytest.approx(0, abs=1e-3)
    assert any("L0H0" in one and "is not counted" in one for one in sentences(result, seed=0))
    needed = localised(Plan(carriers=((1, 0, 1.0),)))
    row = row_of(needed, "L1H0")
    assert (row["statement"], row["through_norm"]) == ("rose", False)
    assert row["direct"] == pytest.approx(row["straight"], abs=0.02)
    assert row["without"]["zero"]["value"] == pytest.approx(1, abs=0.02), "nothing is left without it"
    assert row["without"]["mean"]["value"] == pytest.approx(1, abs=0.02)


@pytest.mark.long
def test_of_two_that_cancel_one_is_said_to_work_against() -> None:
    result = localised(Plan(carriers=((1, 0, 1.5), (2, 0, -0.5)), idle=((0, 1),)))
    said = said_of(result)
    assert (said["L1H0"], said["L2H0"]) == ("rose", "fell")
    assert "against it L2H0 −0.50 [−0.50…−0.50] (10 of 10)" in sentences(result, seed=0)[0]


def members(cases: Cases, half: str) -> list[Sample]:
    one = getattr(cases, half)
    return [*one.unsafe, *one.safe]


def test_halves_share_no_template_and_no_cluster_and_references_are_of_neither() -> None:
    cases = split(ICONS, questions=QUESTIONS, pairs=48, seed=3)
    templates = [{one.tags["template"] for one in members(cases, half)} for half in ("discover", "confirm")]
    clusters = [{one.cluster for one in members(cases, half)} for half in ("discover", "confirm")]
    assert not templates[0] & templates[1]
    assert not clusters[0] & clusters[1]
    assert len(templates[1]) == len(cases.confirm.names) == 12
    assert len(templates[0]) == 9
    references = {one.tags["template"] for one in cases.references}
    assert len(references) == 3
    assert not references & (templates[0] | templates[1])
    assert len(cases.discover.unsafe) + len(cases.confirm.unsafe) <= 48
    assert split(ICONS, questions=[PICTURE], pairs=None, seed=3).references == ()
    assert split(ICONS, questions=QUESTIONS, pairs=48, seed=4).confirm.names != cases.confirm.names


def test_pairs_that_share_a_cluster_are_one_unit_and_too_few_units_are_refused() -> None:
    pairs = coloured_pairs(units=24)
    joined = [replace(one, cluster="one" if int(one.id.split("-")[0]) < 4 else one.cluster) for one in pairs]
    cases = split(joined, questions=[PICTURE], pairs=None, seed=0)
    assert len(cases.discover.names) + len(cases.confirm.names) == 21
    joined = [replace(one, cluster="one" if int(one.id.split("-")[0]) < 6 else one.cluster) for one in pairs]
    with pytest.raises(UserError, match=r"of 19 sentences; .* takes 20"):
        split(joined, questions=[PICTURE], pairs=None, seed=0)
    with pytest.raises(UserError, match=r"of 12 sentences; .* takes 20 .*task\.pairs"):
        split(pairs, questions=[PICTURE], pairs=12, seed=0)
    with pytest.raises(UserError, match="0 pairs of pictures"):
        split([one for one in ICONS if one.pair is None], questions=[PICTURE], pairs=None, seed=0)
    with pytest.raises(UserError, match="of 1 sentences"):
        split([replace(one, cluster="one") for one in pairs], questions=[PICTURE], pairs=None, seed=0)


def test_each_run_differs_in_what_it_is_asked_of_alone() -> None:
    cases = split(ICONS, questions=QUESTIONS, pairs=48, seed=0)
    runs = cases.confirm.runs(cases.references)
    own, words, sentence, reference = (runs[name] for name in ("own", WORDS, SENTENCE, "reference"))
    texts = {one.prompt for one in cases.references}
    for at, (clean, other) in enumerate(zip(*own, strict=True)):
        assert clean.text == other.text
        assert clean.image != other.image
        assert words.clean[at].image is None is words.other[at].image
        assert words.clean[at].text != words.other[at].text
        assert words.clean[at].text.splitlines()[1:] == words.other[at].text.splitlines()[1:]
        assert reference.clean[at].text == reference.other[at].text in texts
        assert (reference.clean[at].image, reference.other[at].image) == (clean.image, other.image)
        assert sentence.clean[at].image == sentence.other[at].image
        assert sentence.clean[at].text == clean.text
        assert sentence.other[at].text in texts
    pictured = {one.key for one in sentence.clean}
    assert any(key.endswith("-safe") for key in pictured)
    assert any(key.endswith("-unsafe") for key in pictured)


@pytest.mark.long
def test_a_study_leaves_numbers_figures_and_a_section(tmp_path: Path) -> None:
    run = run_of(
        "+exp=localise", "benchmark.pairs=1", "task.questions=[picture]", "task.random_sets=2",
        "draws=50", f"output_root={tmp_path}",
    )  # fmt: skip
    run.task(run)
    (folder,) = (tmp_path / "localise").iterdir()
    result = json.loads((folder / "localise.json").read_text())
    assert {"discover", "confirm", "faithfulness", "completeness", "random"} <= result.keys()
    assert result["references"] == []
    assert "What carries the picture" in (folder / "report.html").read_text()
    assert {"localise_parts.svg", "localise_curves.svg", "localise_looks_0.svg"} <= {
        one.name for one in (folder / "figures").iterdir()
    }


@pytest.mark.slow
def test_a_killed_study_ends_as_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first organism, with all questions: numbers, figures and section, and no batch measured twice."""
    sizes = ("benchmark.pairs=1", "task.random_sets=2", "draws=50", "batch_size=4")
    found = []
    for folder in whole_and_killed(monkeypatch, tmp_path, "localise", *sizes):
        result = json.loads((folder / "localise.json").read_text())
        del result["finished"]
        found.append(result)
        assert (folder / "figures" / "localise_parts.svg").is_file()
        assert "What carries the picture" in (folder / "report.html").read_text()
    assert found[0] == found[1]
    result = found[0]
    assert {"discover", "confirm", "faithfulness", "completeness", "random"} <= result.keys()
    assert result["questions"] == list(QUESTIONS)
    assert JOIN not in result["faithfulness"]
    assert "L1H0" in {row["part"] for row in result["discover"][PICTURE][:2]}
    assert len(parts_figure(result).axes) == 5
    assert len(curves_figure(result).axes) == 3
    assert prompts_of(ICONS[:1])[0].key
