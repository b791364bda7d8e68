"""Localise: planted carriers are found and confirmed, halves share nothing, and a killed study ends as a whole one."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.report.tables import lines
from experiments.runs.results_table import Results, Row, read_results
from experiments.studies.localise.cases import CASES, PICTURE, QUESTIONS, REFERENCE, SENTENCE, Cases, Half, split
from experiments.studies.localise.examination import Examination
from experiments.studies.localise.study import figures, tables
from experiments.types import Sample
from interp.errors import UserError
from interp.vlm import VLM
from tests.experiments.compose import ran, run_of
from tests.planted import Coloured, Plan, _copy, planted

ICONS = IconWorld().load().samples


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
                        "Is this safe?", "Is this safe?", Coloured(redness), f"cluster {unit}", f"{unit}-{at}",
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


def localised(plan: Plan, vlm: VLM | None = None) -> tuple[dict[str, Any], Results]:
    vlm = vlm or planted(plan)
    cases = split(coloured_pairs(), questions=[PICTURE], pairs=None, seed=0)
    details, rows = Examination(vlm, cases, [PICTURE], candidates=3, draws=500).examine()
    results = Results(rows)
    assert figures(details, results).keys() == {"localise_parts"}
    assert [len(frame) for frame in tables(details, results)] == [len(claims_of(results))]
    return details, results


def row_of(results: Results, part: str, quantity: str = "part_slope", rule: str = "") -> Row:
    return results.get(part, quantity, subset=PICTURE, rule=rule)


def claims_of(results: Results) -> dict[str, str]:
    return {row.arm: row.claim for row in results.select(quantity="part_slope")}


def answers(result: tuple[dict[str, Any], Results]) -> list[str]:
    return lines("localise", part="answers", details=result[0], results=result[1])


@pytest.mark.long
def test_one_planted_carrier_is_confirmed() -> None:
    result = localised(Plan(carriers=((1, 0, 1.0),), idle=((0, 1), (2, 0))))
    claims = claims_of(result[1])
    assert claims.pop("L1H0") == "higher"
    assert set(claims.values()) == {"inconclusive"}
    first, *_, last = answers(result)
    assert first == "What carries the picture? L1H0 1.00 [1.00, 1.00] (10 of 10 splits)."
    assert last == (
        "Ranked: 12 parts on 10 groups of sentences. Measured: 3 candidates for each question on 10 other groups "
        "(20 pairs). A claim holds in at least 8 of 10 random splits."
    )


@pytest.mark.long
def test_what_scales_the_final_norm_alone_carries_nothing() -> None:
    """L0H0 writes the picture onto the ballast, which the head does not read; L3H1 always says −1."""

    def plant(layers: Any) -> None:
        _copy(layers[0].self_attn, 0, asker="asks", source="image", value="picture", to="ballast", weight=-200)
        _copy(layers[3].self_attn, 1, asker="asks", source="word", value="word", to="verdict", weight=-1)

    result = localised(Plan(carriers=((0, 0, 0.0),)), vlm=by_hand(plant))
    row = row_of(result[1], "L0H0")
    assert row_of(result[1], "L0H0", "part_splits_held").n == 10
    assert row.value > 0.9
    assert row.claim == "not tested"
    assert row_of(result[1], "L0H0", "part_direct").value == pytest.approx(0, abs=1e-3)
    assert any("L0H0" in line and "is not counted" in line for line in answers(result))
    needed = localised(Plan(carriers=((1, 0, 1.0),)))
    assert row_of(needed[1], "L1H0").claim == "higher"
    straight, direct = (row_of(needed[1], "L1H0", f"part_{name}").value for name in ("straight", "direct"))
    assert direct == pytest.approx(straight, abs=0.02)


def members(cases: Cases, half: str) -> list[Sample]:
    one = getattr(cases, half)
    return [*one.unsafe, *one.safe]


def units(half: Half) -> int:
    return len(set(half.unit.tolist()))


def test_halves_share_no_template_and_no_cluster_and_references_are_of_neither() -> None:
    cases = split(ICONS, questions=QUESTIONS, pairs=48, seed=3)
    templates = [{one.tags["template"] for one in members(cases, half)} for half in ("discover", "confirm")]
    clusters = [{one.cluster for one in members(cases, half)} for half in ("discover", "confirm")]
    assert not templates[0] & templates[1]
    assert not clusters[0] & clusters[1]
    assert len(templates[1]) == units(cases.confirm) == 12
    assert len(templates[0]) == 9
    references = {one.tags["template"] for one in cases.references}
    assert len(references) == 3
    assert not references & (templates[0] | templates[1])
    assert len(cases.discover.unsafe) + len(cases.confirm.unsafe) <= 48
    assert split(ICONS, questions=[PICTURE], pairs=None, seed=3).references == ()
    assert split(ICONS, questions=QUESTIONS, pairs=48, seed=4).confirm.safe != cases.confirm.safe


def test_pairs_that_share_a_cluster_are_one_unit_and_too_few_units_are_refused() -> None:
    pairs = coloured_pairs(units=24)
    joined = [replace(one, cluster="one" if int(one.id.split("-")[0]) < 4 else one.cluster) for one in pairs]
    cases = split(joined, questions=[PICTURE], pairs=None, seed=0)
    assert units(cases.discover) + units(cases.confirm) == 21
    joined = [replace(one, cluster="one" if int(one.id.split("-")[0]) < 6 else one.cluster) for one in pairs]
    with pytest.raises(UserError, match=r"of 19 sentences are too few: .* there are 20"):
        split(joined, questions=[PICTURE], pairs=None, seed=0)
    with pytest.raises(UserError, match=r"of 12 sentences are too few: .* task\.pairs"):
        split(pairs, questions=[PICTURE], pairs=12, seed=0)
    with pytest.raises(UserError, match="0 pairs of pictures"):
        split([one for one in ICONS if one.pair is None], questions=[PICTURE], pairs=None, seed=0)
    with pytest.raises(UserError, match="of 1 sentences"):
        split([replace(one, cluster="one") for one in pairs], questions=[PICTURE], pairs=None, seed=0)


def test_each_run_differs_in_what_it_is_asked_of_alone() -> None:
    cases = split(ICONS, questions=QUESTIONS, pairs=48, seed=0)
    runs = cases.confirm.runs(cases.references)
    own, sentence, reference = (runs[name] for name in (CASES, SENTENCE, REFERENCE))
    texts = {sample.prompt for sample in cases.references}
    for i, (clean, other) in enumerate(zip(*own, strict=True)):
        assert clean.text == other.text
        assert clean.image != other.image
        assert reference.clean[i].text == reference.other[i].text in texts
        assert (reference.clean[i].image, reference.other[i].image) == (clean.image, other.image)
        assert sentence.clean[i].image == sentence.other[i].image
        assert sentence.clean[i].text == clean.text
        assert sentence.other[i].text in texts
    pictured = {one.key for one in sentence.clean}
    assert any(key.endswith("-safe") for key in pictured)
    assert any(key.endswith("-unsafe") for key in pictured)


@pytest.mark.long
def test_a_study_leaves_numbers_figures_and_a_section(tmp_path: Path) -> None:
    small = ("benchmark.pairs=1", "task.questions=[picture]", "draws=50")
    folder = ran(run_of("+exp=localise", *small, f"output_root={tmp_path}"))
    assert json.loads((folder / "localise.json").read_text())["references"] == []
    quantities = {row.quantity for row in read_results(folder)}
    assert {"part_slope", "part_straight", "margin_gap", "auroc"} <= quantities
    assert "What carries the picture" in (folder / "report.html").read_text()
    drawn = {file.name for file in (folder / "figures").iterdir()}
    assert "localise_parts.svg" in drawn
