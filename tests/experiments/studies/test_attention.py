"""The failure analysis: matching, statistics, tables, causal numbers; on a tiny random LLaVA and on the organism."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.matching import answered, image_donor, match_failures
from experiments.runs.results_table import read_results
from experiments.studies.attention.analysis import analyse_failures, self_test
from experiments.studies.attention.cases import draw_answers, draw_case, record_answers
from experiments.studies.attention.summary import contrasts
from experiments.types import Sample
from interp.attention.record import Queries, record_attention
from interp.attention.tables import image_share
from interp.errors import UserError
from interp.tools.knockout import knockout_effect
from interp.vlm import VLM
from tests.interp.test_conversations import CONVERSATION, FIRST, SECOND
from tests.interp.test_conversations import model as conversing
from tests.tiny import tiny_llava

SAMPLES = IconWorld().load().samples
FEW = limited(SAMPLES, 40)


def answers(samples: list[Sample], wrong: set[str], arm: str = "baseline") -> list[dict[str, Any]]:
    """Records of the verdicts alone: those in ``wrong`` are wrong."""
    opposite = {"yes": "no", "no": "yes"}
    return [
        {"case": s.id, "arm": arm, "status": "answered", "verdict": opposite[s.gold] if s.id in wrong else s.gold}
        for s in samples
    ]


def half(samples: list[Sample]) -> set[str]:
    return {sample.id for sample in random.Random(0).sample(samples, len(samples) // 2)}


# Which cases


def test_failures_meet_successes_of_their_own_subset_one_to_one() -> None:
    chosen = match_failures(SAMPLES, answers(SAMPLES, half(SAMPLES)), arm="baseline", limit=None, seed=0)
    assert list(chosen) == ["typical", "attack", "over_safety"]
    for subset, some in chosen.items():
        by_id = {case.sample.id: case for case in some.cases}
        assert len(by_id) == len(some.cases)
        assert {case.sample.subset for case in some.cases} == {subset}
        assert sum(case.failed for case in some.cases) == some.failures
        for case in some.cases:
            if case.match is not None:
                assert by_id[case.match].match == case.sample.id
                assert by_id[case.match].failed != case.failed
        assert some.pairs == min(some.failures, some.successes)


def test_what_was_never_answered_is_no_failure() -> None:
    records = answers(SAMPLES, half(SAMPLES))
    for record in records[:100]:
        record["status"] = "transport_failed"
    gone = {record["case"] for record in records[:100]}
    chosen = match_failures(SAMPLES, records, arm="baseline", limit=None, seed=0)
    assert not gone & {case.sample.id for some in chosen.values() for case in some.cases}
    assert not gone & {sample.id for sample in answered(SAMPLES, records, arm="baseline")}


def test_the_swapped_image_is_the_twins_or_else_of_another_truth() -> None:
    for sample in SAMPLES[:6]:
        twin = image_donor(SAMPLES, sample, seed=0)
        assert (twin.pair, twin.gold != sample.gold) == (sample.pair, True)
    single = [replace(sample, pair=None) for sample in SAMPLES]
    for sample in single[:6]:
        other = image_donor(single, sample, seed=0)
        assert other.gold != sample.gold
        assert other.cluster != sample.cluster
        assert other == image_donor(single[::-1], sample, seed=0)
    assert image_donor(single[:1], single[0], seed=0) is None
    same_image = [replace(sample, pair=None, cluster=str(sample.pair)) for sample in SAMPLES[:4]]
    for seed in range(5):
        for sample in same_image:
            other = image_donor(same_image, sample, seed=seed)
            assert other.cluster != sample.cluster


# Statistics


def compared_cases(failed: np.ndarray, cluster: np.ndarray, template: Any = None, concept: Any = None) -> pd.DataFrame:
    outcome = np.where(failed, "failure", "success")
    return pd.DataFrame({"outcome": outcome, "cluster": cluster, "template": template, "concept": concept})


def test_the_intervals_of_all_layers_hold_together_and_that_of_their_mean_stands_by_itself() -> None:
    rng = np.random.default_rng(0)
    cases = compared_cases(np.arange(60) % 2 == 0, np.arange(60))
    groups = ["", *(f"layer={at}" for at in range(8))]
    rows = contrasts(cases, rng.normal(size=(60, 9)), groups, "probe", subset="", seed=1, draws=2000)
    levels = [row.level for row in rows if row.against]
    assert levels[0] == 0.95
    assert min(levels[1:]) == max(levels[1:]) > 0.98  # type: ignore[type-var]


# On a tiny random model


@pytest.fixture(scope="module")
def tiny() -> VLM:
    return VLM(*tiny_llava(), name="tiny", revision="seed-0")


@pytest.fixture(scope="module")
def analysed(tiny: VLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    analyse(tiny, folder)
    return folder


def analyse(vlm: VLM, folder: Path, **options: Any) -> dict[str, Any]:
    attacks = [sample.id for sample in FEW if sample.subset == "attack"]
    records = answers(FEW, (half(FEW) | set(attacks)) - set(attacks[:2]))  # fewer successes than failures to log
    settings: dict[str, Any] = {"seed": 0, "draws": 60, "limit": 3, "max_new_tokens": 2, "figures": 1}
    return analyse_failures(vlm, FEW, records, folder, **settings | options)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "attention.json").read_text(encoding="utf-8"))


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "attention" / "cases.csv")


def test_shares_are_those_of_a_case_recorded_without_others(analysed: Path, tiny: VLM) -> None:
    by_id = {sample.id: sample for sample in FEW}
    for _, case in table(analysed).iloc[::3].iterrows():
        with record_attention(tiny, queries=Queries.VERDICT) as log:
            tiny.generate(prompts_of([by_id[case["case"]]]), max_new_tokens=2)
        for quantity, without_sink in (("attention_on_image", True), ("attention_on_image_with_sink", False)):
            shares = image_share(log.masses, without_sink=without_sink)["share"]
            recorded = [case[f"{quantity} layer={layer}"] for layer in (0, 1)]
            assert recorded == pytest.approx(shares.to_list(), abs=1e-5)


def test_the_contrast_of_shares_is_that_of_the_matched_cases(analysed: Path) -> None:
    cases = table(analysed)
    means = cases.set_index("case")[["attention_on_image layer=0", "attention_on_image layer=1"]].mean(axis=1)
    results, share = read_results(analysed), "attention_on_image"
    for subset in ("typical", "attack", "over_safety"):
        own = cases[(cases["subset"] == subset) & cases["match"].notna()]
        wrong, right = (means[own["case"][own["outcome"] == name]].mean() for name in ("failure", "success"))
        level = results.get("failures", share, subset=subset)
        difference = results.get("failures", share, subset=subset, against="successes")
        assert level.value == pytest.approx(wrong)
        assert difference.value == pytest.approx(wrong - right)
        assert difference.clusters < 10  # type: ignore[operator]
        assert (difference.low, difference.claim) == (None, "too few cases")
        layers = results.select(quantity=share, subset=subset, arm="failures", against="")
        assert [row.group for row in layers] == ["", "layer=0", "layer=1"]
    counts = [results.get("", f"attention_{name}", subset="attack") for name in ("failures_logged", "pairs")]
    assert [row and row.value for row in counts] == [3, 2]
    assert results.get("failures", share).n == 8  # type: ignore[union-attr]


@pytest.mark.long
def test_causal_numbers_are_those_of_the_interventions(analysed: Path, tiny: VLM) -> None:
    cases = table(analysed)
    by_id = {sample.id: sample for sample in FEW}
    some = [by_id[case] for case in cases["case"]]
    cut = knockout_effect(tiny, prompts_of(some), [("image", "verdict")]).moved[0].numpy()
    assert (cases["margin_without_edge"] - cases["margin"]).to_numpy() == pytest.approx(cut, abs=1e-4)
    assert np.abs(cut).max() > 1e-3
    for row, sample in zip(cases.itertuples(), some, strict=True):
        other = by_id[row.swapped_with]
        prompt = replace(prompts_of([sample])[0], image=prompts_of([other])[0].image)
        assert row.margin_swapped == pytest.approx(tiny.score([prompt]).item(), abs=1e-4)
        assert row.twin == (other.pair == sample.pair)
    assert (cases["margin_swapped"] - cases["margin"]).abs().max() > 1e-3


@pytest.mark.long
def test_the_record_is_complete_and_the_same_again(analysed: Path, tiny: VLM, tmp_path: Path) -> None:
    again = analyse(tiny, tmp_path)
    assert again == result(analysed) == result(tmp_path)
    assert [row[1:] for row in read_results(tmp_path)] == [row[1:] for row in read_results(analysed)]
    assert again["sentences"][0].startswith("Attention of the verdict on the image: ")
    assert again["selftest"]["passed"]
    assert again["figures"]
    for name in again["figures"]:
        assert (analysed / name).stat().st_size > 1000
    pd.testing.assert_frame_equal(table(analysed), table(tmp_path))


def test_a_failed_self_test_stops_the_analysis(tiny: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_test(tiny)["mass_error"] < 1e-5

    def fail(vlm: VLM) -> None:
        raise UserError("the attention self-test of tiny failed (mass_error 0.3)")

    monkeypatch.setattr("interp.attention.check.check_recorder", fail)
    with pytest.raises(UserError, match=r"0\.3"):
        analyse(tiny, tmp_path / "run")


# On the organism


@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_5_vl"])
def test_each_picture_of_a_conversation_is_drawn_with_its_tokens(name, monkeypatch, tmp_path):
    vlm, drawn = conversing(name), []
    turns = CONVERSATION.turns
    sample = Sample("a", "over_safety", "s", "yes", "is this safe ?", "is this safe ?", FIRST, "c", turns=turns)
    monkeypatch.setattr("experiments.studies.attention.cases.prompts_of", lambda samples: [CONVERSATION])
    (case,) = record_answers(vlm, [sample], max_new_tokens=1)

    def overlay(image, maps, *, box, title, **size):
        drawn.append((image, maps))
        return Figure()

    monkeypatch.setattr("interp.figures.attention.image_overlay", overlay)
    names = [*draw_case(tmp_path, case), *draw_answers(tmp_path, {"baseline": case})]
    ends = ("image", "image_2", "words", "heads", "answers", "answers_2")
    assert names == [f"figures/attention_a_{end}.png" for end in ends]
    assert [image for image, _ in drawn] == [FIRST, SECOND] * 2
    grids = {grid.name: grid for grid in case.row.grids}
    for number, (_, maps) in enumerate(drawn[2:], 1):
        grid = next(grid for name, grid in reversed(grids.items()) if (name.partition(":")[2] or "1") == str(number))
        assert set(grid.columns.flatten().tolist()) <= set(case.row.columns(f"image:{number}"))
        mass = float(case.map.weights[..., grid.columns.flatten()].mean((0, 1)).sum())
        assert next(iter(maps.values())).sum() == pytest.approx(mass, rel=1e-4)
