"""The failure analysis: matching, statistics, tables, causal numbers; on a tiny random LLaVA and on the organism."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.metrics.findings import statement
from safetensors.torch import load_file
from scipy.stats import t as student_t

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.matching import answered, image_donor, match_failures, sample_with_id, unlikeness
from experiments.judges.yes_no import anchored
from experiments.report.sentences.attention import sentences
from experiments.studies.attention.analysis import analyse_failures, self_test
from experiments.studies.attention.summary import EFFECTS, contrasts, findings
from experiments.studies.attention.tables import sentence_words
from experiments.types import Sample
from interp.errors import UserError
from interp.loading import load
from interp.tools.knockout import knockout_effect
from interp.vlm import VLM
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


def test_the_sum_of_differences_within_pairs_is_least() -> None:
    few = [sample for sample in SAMPLES if sample.subset == "attack"][:40]
    wrong = {sample.id for sample in few[::2]}
    some = match_failures(few, answers(few, wrong), arm="baseline", limit=None, seed=0)["attack"]
    by_id = {sample.id: sample for sample in few}
    cost = {case.sample.id: unlikeness(case.sample, by_id[str(case.match)]) for case in some.cases if case.failed}
    for a in cost:  # no exchange of partners is better
        for b in cost:
            match = {case.sample.id: str(case.match) for case in some.cases}
            other = unlikeness(by_id[a], by_id[match[b]]) + unlikeness(by_id[b], by_id[match[a]])
            assert cost[a] + cost[b] <= other


def test_the_choice_depends_on_the_seed_and_not_on_the_order() -> None:
    records = answers(SAMPLES, half(SAMPLES))

    def ids(samples: list[Sample], seed: int) -> list[str]:
        chosen = match_failures(samples, records[::-1], arm="baseline", limit=5, seed=seed)
        return [case.sample.id for some in chosen.values() for case in some.cases]

    assert ids(SAMPLES, 0) == ids(SAMPLES[::-1], 0)
    assert ids(SAMPLES, 0) != ids(SAMPLES, 1)
    assert len(ids(SAMPLES, 0)) == 3 * 2 * 5


def test_without_successes_failures_stay_alone_and_without_failures_nothing_is_chosen() -> None:
    everything = {sample.id for sample in SAMPLES}
    alone = match_failures(SAMPLES, answers(SAMPLES, everything), arm="baseline", limit=4, seed=0)["typical"]
    assert [(case.failed, case.match) for case in alone.cases] == [(True, None)] * 4
    assert all(
        not some.cases
        for some in match_failures(SAMPLES, answers(SAMPLES, set()), arm="baseline", limit=4, seed=0).values()
    )


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
        assert twin is not None
        assert (twin.pair, twin.gold != sample.gold) == (sample.pair, True)
    single = [replace(sample, pair=None) for sample in SAMPLES]
    for sample in single[:6]:
        other = image_donor(single, sample, seed=0)
        assert other is not None
        assert other.gold != sample.gold
        assert other.cluster != sample.cluster
        assert other == image_donor(single[::-1], sample, seed=0)
    assert image_donor(single[:1], single[0], seed=0) is None
    same_image = [replace(sample, pair=None, cluster=str(sample.pair)) for sample in SAMPLES[:4]]
    for seed in range(5):
        for sample in same_image:
            other = image_donor(same_image, sample, seed=seed)
            assert other is not None
            assert other.cluster != sample.cluster


def test_an_unknown_case_or_arm_is_named_with_known_ones() -> None:
    with pytest.raises(UserError, match=f"no case 'nonsense'.*{SAMPLES[0].id}.*and {len(SAMPLES) - 5} more"):
        sample_with_id(SAMPLES, "nonsense")
    with pytest.raises(UserError, match=r"'vcd'.*known: baseline"):
        match_failures(SAMPLES, answers(SAMPLES, set()), arm="vcd", limit=None, seed=0)


# Statistics


def compared_cases(failed: np.ndarray, cluster: np.ndarray, template: Any = None, concept: Any = None) -> pd.DataFrame:
    outcome = np.where(failed, "failure", "success")
    return pd.DataFrame({"outcome": outcome, "cluster": cluster, "template": template, "concept": concept})


@pytest.mark.long
def test_contrasts_equal_a_slow_bootstrap() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 2)) + np.arange(30)[:, None] % 2
    failed = np.arange(30) % 2 == 0
    cluster = np.array([f"c{i // 3}" for i in range(30)])
    found = contrasts(compared_cases(failed, cluster), values, seed=1, draws=4000, small=None)
    for column, contrast in enumerate(found):
        own = values[:, column]
        assert contrast["failures"]["value"] == pytest.approx(own[failed].mean())
        assert contrast["difference"]["value"] == pytest.approx(own[failed].mean() - own[~failed].mean())
        assert contrast["failures"]["n"] == contrast["successes"]["n"] == 15
        slow = []
        for _ in range(4000):
            drawn = np.concatenate([np.flatnonzero(cluster == f"c{c}") for c in rng.integers(10, size=10)])
            slow.append(own[drawn][failed[drawn]].mean() - own[drawn][~failed[drawn]].mean())
        reach = student_t.ppf(0.975, 9) * np.std(slow) * np.sqrt(10 / 9)
        difference = contrast["difference"]
        assert difference["high"] - difference["value"] == pytest.approx(reach, rel=0.05)
        assert difference["value"] - difference["low"] == pytest.approx(reach, rel=0.05)
    assert "decides" not in found[0]["difference"]
    assert found[1]["difference"]["decides"]["of"] == 1


def test_of_clusters_and_templates_the_wider_decides() -> None:
    rng = np.random.default_rng(2)
    template, concept = np.arange(400) % 20, np.arange(400) // 20
    failed = rng.random(400) < 0.5
    own = rng.normal(size=20)[template]  # what a template's cases share
    values = (0.3 * failed + own * (0.3 + failed) + 0.01 * rng.normal(size=400))[:, None]
    cases = np.array([f"c{at}" for at in range(400)])
    (alone,) = contrasts(compared_cases(failed, cases), values, seed=0, draws=2000, small=None)
    made = compared_cases(failed, cases, template, concept)
    (found,) = contrasts(made, values, seed=0, draws=2000, small=None)
    difference = found["difference"]
    assert difference["value"] == alone["difference"]["value"]
    assert difference["clusters"] == 20
    assert difference["low"] < alone["difference"]["low"]
    assert difference["statement"] == statement(difference, small=None)


def test_a_group_without_cases_has_no_value() -> None:
    failed, cluster = np.ones(4, dtype=bool), np.array(list("abcd"))
    contrast = contrasts(compared_cases(failed, cluster), np.ones((4, 1)), seed=0, draws=50, small=None)[0]
    assert contrast["failures"]["value"] == 1
    assert (contrast["successes"]["value"], contrast["successes"]["n"]) == (None, 0)
    assert contrast["difference"] is None


def estimate(value: float, low: float | None, high: float | None, clusters: int = 40) -> dict[str, Any]:
    entry = {"value": value, "low": low, "high": high, "n": 80, "clusters": clusters, "needed": None}
    return entry | {"statement": statement(entry).value}


def said_of(one: dict[str, Any]) -> list[str]:
    """The two sentences where every number of the analysis is ``one``, all layers alike."""
    contrast = dict.fromkeys(("failures", "successes", "difference"), one)
    layer = {"difference": one | ({} if one["low"] is None else {"decides": one})}
    block = {
        "pairs": 40,
        "failures_in_run": 40,
        "twins": 80,
        "image_share": {"all_layers": contrast, "by_layer": {"0": layer, "1": layer}},
        "effects": dict.fromkeys(EFFECTS, contrast),
    }
    return sentences(findings({"subsets": {"typical": block}, "pooled": block}))


@pytest.mark.parametrize(
    ("sign", "share", "causal"),
    [
        (-1, ": failures look less at the image (", "in failures the image pulls away from the right answer"),
        (0, ": a difference is not shown (", "which way the image pulls in failures is not shown"),
        (1, ": failures look more at the image, not less (", "but not far enough"),
    ],
)
def test_the_two_sentences_say_whichever_way_it_points(sign: int, share: str, causal: str) -> None:
    attention, effect = said_of(estimate(0.1 * sign, 0.1 * sign - 0.05, 0.1 * sign + 0.05))
    assert share in attention
    assert causal in effect
    for one in (attention, effect):
        assert "typical" in one
        assert "95% interval" in one
        assert one.endswith(".")
    assert ("a difference is shown in none" in attention) == (sign == 0)
    assert ("in layers 0, 1" in attention) == (sign != 0)
    for absence in ("not found", "no pull", "no difference"):  # an interval that contains 0 shows no absence
        assert absence not in attention + effect


def test_a_small_difference_is_said_to_be_small() -> None:
    assert ": failures look less at the image by less than 2 points (" in said_of(estimate(-0.01, -0.015, -0.005))[0]
    assert ": no difference of more than 2 points (" in said_of(estimate(-0.001, -0.015, 0.01))[0]


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


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "attention" / f"{name}.parquet")


@pytest.mark.long
def test_masses_sum_to_one_and_stand_beside_their_normalised_forms(analysed: Path) -> None:
    masses = table(analysed, "masses")
    keys = ["case", "step", "layer", "head"]
    assert masses.groupby(keys)["mass"].sum().to_numpy() == pytest.approx(1, abs=1e-5)
    assert set(masses["step"]) == {0, 1}
    some = masses[masses["segment"] == "image_0"].iloc[7]
    sink = masses[(masses[keys] == some[keys]).all(axis=1) & (masses["segment"] == "sink")]["mass"].item()
    assert some["mass_without_sink"] == pytest.approx(some["mass"] / (1 - sink))
    assert some["mass_per_token"] == pytest.approx(some["mass"] / some["tokens"])


def test_shares_maps_and_masses_agree(analysed: Path) -> None:
    masses, shares, tokens = (table(analysed, name) for name in ("masses", "shares", "tokens"))
    assert (masses[masses["segment"] == "padding"]["tokens"] > 0).any()
    assert "padding" not in set(tokens["segment"])
    for subset in ("typical", "attack", "over_safety"):
        for case, weights in load_file(analysed / "attention" / f"maps_{subset}.safetensors").items():
            own = tokens[tokens["case"] == case].sort_values("place")
            assert weights.shape[2] == len(own)
            assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)
            image = torch.tensor((own["segment"] == "image_0").to_numpy())
            verdict = masses[(masses["case"] == case) & (masses["step"] == 0) & (masses["segment"] == "image_0")]
            assert weights[..., image].sum(-1).flatten().numpy() == pytest.approx(verdict["mass"].to_numpy(), abs=1e-5)
            with_sink = shares[shares["case"] == case].sort_values("layer")["share_with_sink"]
            assert weights[..., image].sum(-1).mean(1).numpy() == pytest.approx(with_sink.to_numpy(), abs=1e-5)
            places = own.dropna(subset=["patch_row"])
            assert sorted(zip(places["patch_row"], places["patch_column"], strict=True)) == [
                (y, x) for y in range(3) for x in range(3)
            ]


def test_the_contrast_of_shares_is_that_of_the_matched_cases(analysed: Path) -> None:
    cases, shares = table(analysed, "cases"), table(analysed, "shares")
    means = shares.groupby("case")["share"].mean()
    for subset, block in result(analysed)["subsets"].items():
        own = cases[(cases["subset"] == subset) & cases["match"].notna()]
        wrong, right = (means[own["case"][own["outcome"] == name]].mean() for name in ("failure", "success"))
        contrast = block["image_share"]["all_layers"]
        assert contrast["failures"]["value"] == pytest.approx(wrong)
        assert contrast["difference"]["value"] == pytest.approx(wrong - right)
        assert contrast["difference"]["clusters"] < 10
        assert (contrast["difference"]["low"], contrast["difference"]["statement"]) == (None, "too few")
        assert set(block["image_share"]["by_layer"]) == {"0", "1"}
    attack = result(analysed)["subsets"]["attack"]
    assert (attack["failures_logged"], attack["pairs"]) == (3, 2)
    assert result(analysed)["pooled"]["image_share"]["all_layers"]["failures"]["n"] == 8


@pytest.mark.long
def test_causal_numbers_are_those_of_the_interventions(analysed: Path, tiny: VLM) -> None:
    cases = table(analysed, "cases")
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


def test_words_are_those_of_the_question_and_know_the_sentence(analysed: Path) -> None:
    words = table(analysed, "words")
    by_id = {sample.id: sample for sample in FEW}
    for case, own in words.groupby("case"):
        sentence = " ".join(own[own["in_sentence"]].sort_values("place")["word"])
        plain = "".join(letter for letter in by_id[str(case)].text if letter.isalnum() or letter == " ")
        assert sentence.replace("'", "") == " ".join(plain.split())
    assert sentence_words("Is this safe?", "not in it", 3) == (0, 3)
    listed = result(analysed)["words"]
    assert {entry["in_sentence"] for entry in listed} == {True, False}
    assert [entry["mass"] for entry in listed if entry["in_sentence"]] == sorted(
        (entry["mass"] for entry in listed if entry["in_sentence"]), reverse=True
    )


@pytest.mark.long
def test_the_record_is_complete_and_the_same_again(analysed: Path, tiny: VLM, tmp_path: Path) -> None:
    again = analyse(tiny, tmp_path)
    assert again == result(analysed) == result(tmp_path)
    assert len(again["sentences"]) == 2
    assert again["selftest"]["passed"]
    assert again["selftest"] == json.loads((analysed / "attention" / "selftest.json").read_text())
    assert again["figures"]
    for name in again["figures"]:
        assert (analysed / name).stat().st_size > 1000
    for name in ("cases", "masses", "words"):
        pd.testing.assert_frame_equal(table(analysed, name), table(tmp_path, name))


@pytest.mark.long
@pytest.mark.parametrize("failures", [1, 3])
def test_under_ten_pairs_there_is_no_interval_and_nothing_is_concluded(
    tiny: VLM, tmp_path: Path, failures: int
) -> None:
    wrong = [sample.id for sample in FEW if sample.subset == "attack"][:failures]
    settings: dict[str, Any] = {"seed": 0, "draws": 60, "max_new_tokens": 1, "figures": 0}
    found = analyse_failures(tiny, FEW, answers(FEW, set(wrong)), tmp_path, **settings)
    for sentence in found["sentences"]:
        assert "95% interval" not in sentence
        assert "nothing is concluded" in sentence
        assert f"({failures} independent group" in sentence
        for conclusion in ("failures look", "pulls", "layer"):
            assert conclusion not in sentence
    assert f"; {failures} pair" in found["sentences"][0]


@pytest.mark.long
def test_layers_and_segments_can_be_chosen(tiny: VLM, tmp_path: Path) -> None:
    analyse(tiny, tmp_path, layers=[1], segments=["image_0"], figures=0)
    masses = table(tmp_path, "masses")
    assert set(masses["layer"]) == {1}
    assert set(masses["segment"]) == {"image_0"}


@pytest.mark.parametrize(
    ("option", "value", "known"), [("layers", [7], "0 to 1"), ("segments", ["picture"], "image_0")]
)
def test_unknown_layers_and_segments_are_named_before_any_work(
    tiny: VLM, tmp_path: Path, option: str, value: list[Any], known: str
) -> None:
    with pytest.raises(UserError, match=f"{value[0]}.*known.*{known}"):
        analyse(tiny, tmp_path, **{option: value})
    assert not (tmp_path / "attention").exists()


def test_a_run_without_failures_says_so(tiny: VLM, tmp_path: Path) -> None:
    found = analyse_failures(tiny, FEW, answers(FEW, set()), tmp_path, seed=0, draws=20)
    assert "no failure" in found["sentences"][0]
    assert len(found["sentences"]) == 2


@pytest.mark.long
def test_failures_without_successes_are_still_described(tiny: VLM, tmp_path: Path) -> None:
    records = answers(FEW, {sample.id for sample in FEW})
    found = analyse_failures(tiny, FEW, records, tmp_path, seed=0, draws=20, limit=2, max_new_tokens=1, figures=0)
    assert found["pooled"] is None
    assert "cannot be told" in found["sentences"][0]
    share = found["subsets"]["typical"]["image_share"]["all_layers"]
    assert share["failures"]["n"] == 2
    assert share["difference"] is None


def test_the_self_test_leaves_its_numbers_and_its_failure_stops_the_analysis(
    tiny: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "selftest.json"
    first = self_test(tiny, path)
    assert first["kernel_error"] < 1e-5
    assert json.loads(path.read_text()) == first

    def fail(vlm: VLM) -> None:
        raise UserError("the attention self-test of tiny failed (kernel_error 0.3)")

    monkeypatch.setattr("interp.attention.check.check_recorder", fail)
    with pytest.raises(UserError, match=r"0\.3"):
        analyse(tiny, tmp_path / "run")


# On the organism


@pytest.mark.long
def test_on_the_organism_pairs_are_twins_and_answers_are_those_recorded(tmp_path: Path) -> None:
    vlm = load("organism:llava")
    some = limited([sample for sample in SAMPLES if sample.subset != "control"], 36)
    texts = vlm.generate(prompts_of(some)).texts
    records = [
        {"case": s.id, "arm": "baseline", "status": "answered", "verdict": anchored(text).value}
        for s, text in zip(some, texts, strict=True)
    ]
    found = analyse_failures(vlm, some, records, tmp_path, seed=0, draws=200, limit=4, figures=0)
    block = found["subsets"]["over_safety"]
    assert block["failures_logged"] == min(4, block["failures_in_run"]) > 0
    assert all(one["answered_differently_now"] == 0 for one in found["subsets"].values())
    assert found["layers"] == [0, 1, 2, 3]
    assert found["selftest"]["kernel_error"] < 1e-5
    shares = table(tmp_path, "shares")["share"]
    assert shares.between(0, 1).all()
    cases = table(tmp_path, "cases")
    assert all(math.isfinite(margin) for margin in cases["margin_without_edge"])
    known = {sample.id: sample.pair for sample in some}
    assert all(known[row.swapped_with] == known[row.case] for row in cases.itertuples() if row.twin)
