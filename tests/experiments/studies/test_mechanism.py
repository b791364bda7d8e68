"""The mechanism's analyses on arrays whose answer is known, and its sentences whichever way the numbers layer."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.metrics.estimates import Resamples, first_lasting
from experiments.metrics.findings import Answer, side, statement
from experiments.report.sentences.mechanism import notes, sentences
from experiments.report.table import terminal
from experiments.studies.mechanism import figure, tables
from experiments.studies.mechanism.cases import (
    AnsweredCases,
    Selection,
    answered_cases,
    other_questions,
    select,
    twin_indices,
)
from experiments.studies.mechanism.controls import ONE_TRUTH, control_rows, holds, holds_from, of_claim
from experiments.studies.mechanism.directions import alarm_effect
from experiments.studies.mechanism.examination import ablated_margins, spaced_layers
from experiments.studies.mechanism.findings import findings
from experiments.studies.mechanism.interventions import (
    AS_IT_IS,
    PRIOR,
    arrives_at,
    effect_at,
    knockout_rows,
    other_words,
    patching_rows,
    pointing,
    prior_shares,
    reversal_rows,
    shifted_margins,
    twin_gaps,
)
from experiments.studies.mechanism.probes import lens_rows, probe_rows
from experiments.studies.mechanism.study import Mechanism
from experiments.types import Sample
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.segments import segment
from interp.tools.patching import PatchEffects
from interp.vlm import VLM, Prompt
from tests.planted import coloured
from tests.tiny import picture


class Plain:
    """A picture of one colour."""

    def render(self) -> Any:
        return coloured(0.5)


def sample(number: int, *, safe: bool, text: str = "s", pair: str | None = None, **tags: str) -> Sample:
    subset: Any = "over_safety" if safe else "typical"
    gold: Any = "yes" if safe else "no"
    return Sample(f"c{number}", subset, "x", gold, text, text, Plain(), f"k{number // 2}", pair, tags)


def paired(count: int, sentence: Any = lambda pair: "s") -> tuple[Sample, ...]:
    """``count`` pairs: a safe case, then its unsafe twin."""
    return tuple(
        sample(2 * i + unsafe, safe=not unsafe, text=sentence(i), pair=f"p{i}")
        for i in range(count)
        for unsafe in (0, 1)
    )


def recorded(samples: tuple[Sample, ...], verdicts: list[str]) -> list[dict[str, Any]]:
    return [{"case": s.id, "arm": "baseline", "verdict": v, "status": "answered"}
            for s, v in zip(samples, verdicts, strict=True)]  # fmt: skip


def test_entries_are_what_a_slow_bootstrap_gives() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(12), 2)
    values, score, positive = rng.normal(size=24), rng.normal(size=24), np.arange(24) % 2 == 0
    some = Resamples.of_names(clusters, draws=400, seed=1)
    times = some.bootstrap.multiplicity[:, clusters].astype(float)
    slow = times @ values / times.sum(1)
    found = some.mean(values)
    assert found["value"] == pytest.approx(values.mean())
    reach = student_t.ppf(0.975, 11) * np.std(slow) * np.sqrt(12 / 11)
    assert (found["value"] - found["low"], found["high"] - found["value"]) == pytest.approx((reach, reach))
    assert (found["n"], found["clusters"]) == (24, 12)
    ones = positive * times
    gaps = (ones @ values) / ones.sum(1) - ((times - ones) @ values) / (times - ones).sum(1)
    found = some.gap(values, positive, ~positive)
    reach = student_t.ppf(0.975, 11) * gaps.std() * np.sqrt(12 / 11)
    assert (found["value"] - found["low"], found["high"] - found["value"]) == pytest.approx((reach, reach))
    change = some.auroc_change(score, 2 * score, positive)
    assert (change["value"], change["low"], change["high"]) == (0, 0, 0)
    assert change["statement"] == "no change"
    two = Resamples.of({"cluster": clusters, "template": clusters % 11, "concept": clusters}, draws=400, seed=1)
    wide = two.gap(values, positive, ~positive)
    assert wide["high"] - wide["low"] >= found["high"] - found["low"]


def test_what_is_missing_is_left_out_and_one_cluster_gives_no_interval() -> None:
    some = Resamples.of_names(["a", "a", "b", "b"], draws=50, seed=0)
    few = some.gap(np.array([1.0, 1, 5, 5]), np.arange(4) < 2, np.arange(4) >= 2)
    assert (few["value"], few["low"], few["clusters"], few["statement"]) == (-4, None, 1, "too few")
    found = some.mean(np.array([1.0, np.nan, 3.0, np.nan]))
    assert (found["value"], found["n"], found["clusters"]) == (2, 2, 2)
    assert some.mean(np.array([1.0, 3.0, np.nan, np.nan]))["low"] is None
    assert some.mean(np.full(4, np.nan))["value"] is None
    assert some.auroc(np.arange(4.0), np.ones(4, dtype=bool))["value"] is None


def test_sides_and_from_where_on() -> None:
    assert [side({"low": a, "high": b}) for a, b in ((0.1, 1), (-1, -0.1), (-1, 1), (None, None))] == [1, -1, 0, 0]
    assert first_lasting([1, 0, 1, 1], 1) == 2
    assert first_lasting([1, 1, 0], 1) is None
    assert spaced_layers(4, 9) == [0, 1, 2, 3, 4]
    assert spaced_layers(32, 9) == [0, 4, 8, 12, 16, 20, 24, 28, 32]


def test_failures_are_looked_at_with_matched_successes_and_twins() -> None:
    samples = paired(5)
    verdicts = ["no", "no", "no", "no", "yes", "no", "yes", "yes", "no", "no"]  # safe: 0, 2, 8 fail; unsafe: 7 fails
    records = recorded(samples, verdicts)
    cases = answered_cases(samples, records)
    looked = select(cases, records, limit=2, seed=0)
    assert looked is not None
    assert looked.subset == "over_safety"
    assert set(looked.failures.tolist()) <= {0, 2, 8}
    assert (len(looked.failures), looked.failures_in_run, looked.successes_in_run) == (2, 3, 2)
    assert set(looked.successes.tolist()) == {4, 6}
    assert (looked.twin == looked.members + 1).all()
    assert twin_indices(cases, seed=0).tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]
    right = recorded(samples, ["yes", "no"] * 5)
    assert select(answered_cases(samples, right), right, limit=2, seed=0) is None
    with pytest.raises(UserError, match="nothing to look into"):
        answered_cases(samples, [])


def test_other_sentences_are_of_one_length_and_answered_otherwise() -> None:
    samples = [sample(i, safe=True, text=text) for i, text in enumerate(["a b", "c d", "e f", "g h i", "j k"])]
    said = {"c0": "no", "c1": "yes", "c2": "no", "c3": "yes", "c4": "yes"}
    found = other_questions(samples, said, samples[:1], tokens=lambda text: len(text.split()), seed=0)
    assert sorted(found[0]) == ["c d", "j k"]
    again = other_questions(samples[::-1], said, samples[:1], tokens=lambda text: len(text.split()), seed=0)
    assert again == found


@pytest.mark.long
def test_probes_find_what_is_planted_where_it_is_planted() -> None:
    samples = tuple(
        sample(i, safe=i % 2 == 0, template=f"t{i % 4 // 2}", concept=f"thing{i // 2 % 3}") for i in range(96)
    )
    cases = AnsweredCases(samples, tuple("yes" if i % 5 else "no" for i in range(96)))
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, 2, 96, 6))
    states[1, 1, :, 0] += 6 * cases.safe  # truth at the verdict, layer 1 alone
    for thing in range(3):  # concept at the picture, both layers
        states[0, :, :, thing] += 8 * (np.arange(96) // 2 % 3 == thing)
    read = Residuals(torch.from_numpy(states).float(), ("image", "verdict"), (0, 1))
    rows = probe_rows(read, cases, np.zeros(96), Resamples.of_names(cases.clusters, draws=100, seed=0), seed=0)
    read_at = {
        (row["quantity"], row["place"], row["layer"]) for row in rows
        if row["quantity"] != "verdict" and row["low"] > max(row["control"], 1 / row["classes"]) + 0.1
    }  # fmt: skip
    assert read_at == {("concept", "image", 0), ("concept", "image", 1), ("truth", "verdict", 1)}
    found = next(r for r in rows if (r["quantity"], r["place"], r["layer"]) == ("truth", "verdict", 1))
    assert found["beyond"]["value"] == pytest.approx(found["value"] - 0.5)
    untold = AnsweredCases(tuple(sample(i, safe=i % 2 == 0) for i in range(96)), cases.verdicts)
    rows = probe_rows(read, untold, np.zeros(96), Resamples.of_names(cases.clusters, draws=10, seed=0), seed=0)
    assert {row["reason"] for row in rows if row["quantity"] == "concept"} == {
        "the benchmark says of no picture what it shows; a table says it in a column “shows”"
    }


def designed(kinds: int, sentences: int, *, each: int = 4) -> AnsweredCases:
    """Every kind of picture with every sentence, whose truth needs both; ``each`` cases a cell."""
    cells = [(k, s) for k in range(kinds) for s in range(sentences) for _ in range(each)]
    samples = tuple(
        replace(sample(i, safe=(k + s) % 2 == 0, text=f"s{s}", template=f"t{s}", concept=f"x{k}"), cluster=f"{k} × {s}")
        for i, (k, s) in enumerate(cells)
    )
    return AnsweredCases(samples, ("no",) * len(samples))


def claimed(
    cases: AnsweredCases, states: np.ndarray, *random: np.ndarray, margins: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """``control_rows`` of states [place (image, verdict), layer, case, width] and those of untrained models."""
    trained, *others = (
        Residuals(torch.from_numpy(one).float(), ("image", "verdict"), (0, 1)) for one in (states, *random)
    )
    given = cases.samples
    some = Resamples.of_cases(
        cases.clusters, [one.text for one in given], [one.tags for one in given], draws=200, seed=0
    )
    return control_rows(
        trained, others, cases, np.zeros(len(cases.samples)) if margins is None else margins, some, seed=0
    )


def noise(cases: AnsweredCases, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 2, len(cases.samples), 8))


@pytest.mark.long
def test_a_truth_that_is_there_for_every_kind_and_sentence_is_claimed() -> None:
    cases = designed(12, 12, each=2)
    states, margins = noise(cases), noise(cases, 3)[0, 0, :, 0]
    states[1, 1, :, 0] += 4 * cases.safe
    rows = claimed(cases, states, noise(cases, 2), margins=margins)
    assert holds(of_claim(rows, "truth", "verdict", 1)) is Answer.YES
    assert holds(of_claim(rows, "truth", "verdict", 0)) is Answer.NOT_SHOWN
    assert holds_from(rows, "truth", "verdict", [0, 1]) == 1
    (within,) = [row["within"] for row in of_claim(rows, "truth", "verdict", 1) if row["within"]]
    assert within["beyond"]["statement"] == "rose"
    assert within["probe"]["pairs"] == len(cases.within_sentences) == 12 * 12 * 12
    order = margins[cases.within_sentences]
    assert within["margin"]["value"] == pytest.approx((order[:, 0] > order[:, 1]).mean())


@pytest.mark.long
def test_what_random_weights_hold_as_well_is_not_claimed_nor_anything_without_them() -> None:
    cases = designed(12, 12, each=2)
    states = noise(cases)
    states[1, 1, :, 0] += 4 * cases.safe
    for random in ((states,), (noise(cases, 2), states), ()):
        assert holds(of_claim(claimed(cases, states, *random), "truth", "verdict", 1)) is Answer.NOT_SHOWN


@pytest.mark.long
def test_a_probe_of_the_kind_of_picture_is_no_probe_of_the_truth() -> None:
    """Each kind leans to one truth: told apart on other cases, and not on other kinds."""
    cases = designed(12, 12, each=2)
    kind = np.unique(cases.kinds, return_inverse=True)[1]
    leaning = np.where((kind % 2 == 0) == cases.safe, True, np.random.default_rng(0).random(len(kind)) < 0.25)
    kept = AnsweredCases(
        tuple(s for s, keep in zip(cases.samples, leaning, strict=True) if keep), ("no",) * leaning.sum()
    )
    states = noise(kept)
    width = np.zeros((len(kept.samples), 12))
    width[np.arange(len(width)), kind[leaning]] = 5.0
    states = np.concatenate([states, np.broadcast_to(width, (2, 2, *width.shape))], axis=-1)
    curve = probe_rows(
        Residuals(torch.from_numpy(states).float(), ("verdict",) * 2, (0, 1)), AnsweredCases(
            tuple(replace(s, tags={}, shows=s.tags["concept"]) for s in kept.samples), kept.verdicts
        ), np.zeros(len(kept.samples)), Resamples.of_names(kept.clusters, draws=50, seed=0), seed=0
    )  # fmt: skip
    assert max(row["value"] for row in curve if row["quantity"] == "truth") > 0.7
    assert holds(of_claim(claimed(kept, states, noise(kept, 2)), "truth", "verdict", 1)) is Answer.NOT_SHOWN


@pytest.mark.long
def test_where_each_kind_or_each_sentence_has_one_truth_nothing_is_claimed_of_it() -> None:
    cases = designed(12, 12, each=2)
    for name, tag in (("kind", "concept"), ("sentence", "template")):
        samples = tuple(replace(s, tags={**s.tags, tag: f"{s.tags[tag]} {s.gold}"}) for s in cases.samples)
        one = AnsweredCases(samples, cases.verdicts)
        states = noise(one)
        states[:, :, :, 0] += 9 * one.safe
        rows = of_claim(claimed(one, states, noise(one, 2)), "truth", "verdict", 1)
        assert holds(rows) is Answer.CANNOT_TELL
        assert {row["reason"] for row in rows} == {ONE_TRUTH[name]}
    few = designed(4, 12)
    assert "there are 4 kinds of picture to hold out, and it takes 5" in {
        row["reason"] for row in claimed(few, noise(few), noise(few, 2))
    }
    untagged = AnsweredCases(tuple(replace(s, tags={}, picture=f"{s.id}") for s in cases.samples), cases.verdicts)
    assert holds(of_claim(claimed(untagged, noise(untagged)), "truth", "verdict", 1)) is Answer.CANNOT_TELL


def test_words_alone_do_not_read_the_truth_worse_than_chance() -> None:
    cells = [(t, c) for t in range(6) for c in range(6) for _ in range(3)]
    samples = tuple(
        replace(sample(i, safe=(t + c) % 2 == 0, template=f"t{t}", concept=f"x{c}"), cluster=f"{t}{c}")
        for i, (t, c) in enumerate(cells)
    )
    cases = AnsweredCases(samples, ("no",) * len(samples))
    words = torch.eye(6)[torch.tensor([t for t, _ in cells])] + 0.01 * torch.randn(
        len(cells), 6, generator=torch.Generator().manual_seed(0)
    )
    read = Residuals(words[None, None], ("verdict",), (0,))
    rows = probe_rows(read, cases, np.zeros(len(cells)), Resamples.of_names(cases.clusters, draws=20, seed=0), seed=0)
    (truth,) = [row["value"] for row in rows if row["quantity"] == "truth"]
    assert truth > 0.35  # a template whose one cell is held out leans the other way: .1 and less if fitted as it stands


def test_patching_weighs_by_the_gap_and_arrival_is_where_it_stays() -> None:
    moved = torch.tensor([[[0.0, 0.0, 9.0], [1.0, -1.0, 9.0], [2.0, -4.0, 9.0]]])
    effects = PatchEffects(
        moved, torch.zeros(3), torch.tensor([2.0, -4.0, 0.05]), ("verdict",), (0, 1, 2), (("",) * 3,)
    )
    rows = patching_rows(
        effects, np.array([0, 2, 3]), Resamples.of_names(["a", "a", "b", "c"], draws=50, seed=0), other="x"
    )
    assert [effect_at(rows, "verdict", layer)["value"] for layer in (0, 1, 2)] == pytest.approx([0, 2 / 6, 1])
    assert effect_at(rows, "verdict", 0)["n"] == 2  # a pair whose margins are all but equal says nothing
    assert arrives_at(rows, "verdict", [0, 1, 2]) == 2
    assert arrives_at(rows, "verdict", [0, 1, 2], share=0.3) == 1
    assert arrives_at(rows, "verdict", [0, 1]) is None


def test_a_place_that_no_pair_has_is_left_out() -> None:
    one, none = torch.full((1, 2), 0.5), torch.full((1, 2), torch.nan)
    places = ("verdict", pointing, other_words)
    effects = PatchEffects(torch.stack([one, one, none]), torch.zeros(2), torch.ones(2), places, (0,), (("",) * 2,) * 3)
    rows = patching_rows(effects, np.arange(2), Resamples.of_names(["a", "b"], draws=20, seed=0), other="picture")
    assert [(row["place"], row["effect"]["value"]) for row in rows] == [("verdict", 0.5), ("pointing", 0.5)]


def test_the_question_is_parted_at_what_points(vlm: VLM) -> None:
    prompts = [Prompt("How do I kill this?", picture(1)), Prompt("the cake", picture(2))]
    pointed, plain = segment(vlm, prompts, vlm.encode(prompts)).rows
    assert [vlm.tokenizer.decode([pointed.input_ids[at]]).strip() for at in pointing(pointed)] == ["this"]
    assert sorted([*pointing(pointed), *other_words(pointed)]) == pointed.columns("user")
    assert pointing(plain) == other_words(plain) == []


def test_knockouts_count_towards_the_truth() -> None:
    samples = paired(3)
    cases = AnsweredCases(samples, ("no", "no", "no", "no", "yes", "no"))
    margins = np.array([-1.0, -2, -1, -2, 1, -2])
    looked = Selection("over_safety", np.array([0, 2]), np.array([4]), np.array([1, 3, 5]), 2, 1)
    cut = np.array([[[0.5, -2, 0, -2, 0.5, -2.0]]])
    (row,) = knockout_rows(cut, margins, cases, looked, Resamples.of_names(cases.clusters, draws=50, seed=0),
                       edges=[("image", "verdict")], windows=["all"])  # fmt: skip
    assert row["failures"]["value"] == pytest.approx(1.25)
    assert row["successes"]["value"] == pytest.approx(-0.5)
    assert row["difference"]["value"] == pytest.approx(1.75)
    assert row["right"]["value"] == pytest.approx(0.5)
    assert row["change"]["value"] == pytest.approx(0.0)
    looked = Selection("typical", np.array([1]), np.array([3]), np.array([0, 2]), 1, 1)
    cut = np.array([[[-1.0, -2.5, -1, -2]]])
    (row,) = knockout_rows(cut, margins, cases, looked, Resamples.of_names(cases.clusters, draws=50, seed=0),
                       edges=[("image", "verdict")], windows=["all"])  # fmt: skip
    assert row["failures"]["value"] == pytest.approx(0.5)  # towards No, which is the truth there


def test_twins_and_sentences_are_told_apart() -> None:
    samples = paired(4, lambda pair: f"s{pair % 2}")
    cases = AnsweredCases(samples, ("no",) * 8)
    margins = np.array([4.2, 4.0, -3.8, -4.0, 4.2, 4.0, -3.8, -4.0])
    found = twin_gaps(margins, cases, twin_indices(cases, seed=0), Resamples.of_names(cases.clusters, draws=50, seed=0))
    assert found["gap"]["value"] == pytest.approx(0.2)
    assert found["ranked"]["value"] == 1
    assert found["spread"]["value"] == pytest.approx(8, abs=0.01)


def test_the_lens_has_a_curve_for_the_failures_and_the_successes_of_each_subset() -> None:
    samples = paired(24)
    failed = np.arange(48) % 4 == 0  # every second safe case
    cases = AnsweredCases(samples, tuple("no" if fails or i % 2 else "yes" for i, fails in enumerate(failed)))
    lens = np.stack([np.zeros(48), np.where(failed, -2.0, 1.0), np.where(cases.safe, 1.0, -1.0)])
    found = lens_rows(lens, cases, Resamples.of_names(cases.clusters, draws=50, seed=0))
    curves = {(row["subset"], row["failed"]): [entry["value"] for entry in row["margin"]] for row in found["curves"]}
    assert curves == {
        ("over_safety", True): [0, -2, 1],
        ("over_safety", False): [0, 1, 1],
        ("typical", False): [0, 1, -1],
    }
    assert [row["value"] for row in found["auroc"]] == [0.5, 0.25, 1]


def test_taking_the_prior_away_brings_back_what_it_hid_and_a_constant_does_not() -> None:
    rng = np.random.default_rng(0)
    safe, prior = np.arange(80) % 2 == 0, rng.normal(size=80) * 5
    margins = prior + 0.5 * np.where(safe, 1, -1) + 0.1 * rng.normal(size=80)
    some = Resamples.of_names(np.arange(80) // 2, draws=200, seed=0)
    share = prior_shares(margins, prior, np.arange(80).astype(str), some)
    assert 0.9 < share["r2"]["low"] <= share["r2"]["value"] <= share["r2"]["high"] <= 1
    rows = reversal_rows(margins, {PRIOR: margins - share["weight"] * prior, "shifted": margins + 3}, safe, some)
    plain, without, moved = rows
    assert (plain["arm"], plain["fixed"], plain["broken"]) == (AS_IT_IS, 0, 0)
    assert without["auroc"]["value"] > 0.95
    assert side(without["change"]) == 1
    assert without["fixed"] > without["shift"]["fixed"]
    assert moved["change"]["value"] == 0
    assert moved["shift"]["fixed"] == moved["fixed"]
    assert [int((shifted_margins(margins, yes) > 0).sum()) for yes in (0, 1, 37, 80)] == [0, 1, 37, 80]


def test_alarm_resamples_sentences() -> None:
    samples = tuple(
        sample(i, safe=True, template=f"t{i % 4}", words="alarming" if i % 2 else "harmless") for i in range(16)
    )
    found = alarm_effect(AnsweredCases(samples, tuple("no" if i % 2 else "yes" for i in range(16))), draws=50, seed=0)
    assert found is not None
    assert (found["value"], found["clusters"], found["statement"]) == (1, 2, "too few")
    assert alarm_effect(AnsweredCases(paired(2), ("no",) * 4), draws=50, seed=0) is None


def entry(value: float | None, width: float = 0.05, n: int = 19) -> dict[str, Any]:
    ends = (None, None) if value is None or n < 10 else (value - width, value + width)
    found = {"value": value, "low": ends[0], "high": ends[1], "n": n, "clusters": n}
    return found | {"statement": statement(found).value}


def told() -> dict[str, Any]:
    """A result in which the sentence overrules the picture before it arrives, and the prior's removal mends it."""
    measure = {"concept": "balanced accuracy", "truth": "AUROC", "verdict": "AUROC"}
    high = {("concept", "image"): (0.9, 0.9, 0.9), ("concept", "verdict"): (0.1, 0.1, 0.8),
            ("truth", "verdict"): (0.5, 0.5, 0.8), ("verdict", "verdict"): (0.5, 0.95, 0.95)}  # fmt: skip
    probes = [
        {"quantity": q, "place": p, "layer": layer, "measure": measure[q], "control": 0.1, "classes": 9,
         "reason": None, "beyond": entry(value - 0.6) if q == "truth" else None, **entry(value)}
        for (q, p), values in high.items() for layer, value in enumerate(values)
    ]  # fmt: skip
    pairs = {"pairs": 40}
    within = {"probe": entry(0.8) | pairs, "margin": entry(0.6) | pairs, "beyond": entry(0.2) | pairs}
    rests_on = [("truth", "verdict", out, layer) for out in ("kind", "sentence") for layer in (0, 1, 2)]
    rests_on += [("concept", place, "sentence", 2) for place in ("image", "verdict")]
    controls = [
        {"quantity": q, "place": p, "held_out": out, "layer": layer, "measure": measure[q], "classes": 9,
         "shuffled": 0.1, "untrained": [{"value": 0.3, "gain": entry(high[q, p][layer] - 0.3)}], "reason": None,
         "within": within if (q, out) == ("truth", "sentence") else None, **entry(high[q, p][layer])}
        for q, p, out, layer in rests_on
    ]  # fmt: skip
    effects = {"picture": (0.0, 0.0, 1.0), "sentence": (0.0, 1.0, 1.0)}
    flips = {
        "fixed": 5,
        "wrong": 9,
        "broken": 1,
        "right": 20,
        "fixed_interval": None,
        "broken_interval": None,
        "p": 0.1,
    }
    knocked = {key: entry(-0.1) for key in ("failures", "successes", "difference", "right", "auroc", "change")}
    return {
        "controls": controls,
        "no_untrained": None,
        "cases": {"n": 29, "protocol": "score", "failures": 9, "clusters": 9, "subset": "over_safety",
                  "failures_in_subset": 9,
                  "successes_in_subset": 5, "failures_looked_at": 9, "successes_looked_at": 5, "looked_at": 28},
        "layers": [0, 1, 2],
        "windows": ["all", "0", "1"],
        "probes": probes,
        "twins": {"gap": entry(0.3), "apart": entry(0.3), "ranked": entry(0.8), "spread": entry(2.0),
                  "difference": entry(1.7)},
        "knockout": [{"edge": "image → verdict", "layers": "all", **knocked}],
        "patching": [{"other": other, "place": "verdict", "layer": layer, "effect": entry(value)}
                     for other, values in effects.items() for layer, value in enumerate(values)],
        "gaps": {"picture": entry(0.3), "sentence": entry(2.0)},
        "least_gap": 0.25,
        "refused": {"picture": 0, "sentence": 2},
        "lens": {"curves": [{"subset": "over_safety", "failed": True, "margin": [entry(-1.0)] * 3}], "auroc": []},
        "directions": [{"name": "will refuse", "kind": "logistic", "layer": 1, "auroc": 0.9, "accuracy": 0.8, "n": 29,
                        "groups": 9, "gap": entry(1.0)}],
        "cosines": [{"layer": 1, "one": "a", "other": "b", "cosine": 0.5}],
        "missing": {"unsafe picture": "too few"},
        "alarm": entry(0.02),
        "prior": {"weight": 0.9, "prior": "blank", "r2": entry(0.9)},
        "undo": [{"arm": AS_IT_IS, "auroc": entry(0.6), "change": None, "yes": 0.1, **flips, "shift": flips},
                 {"arm": PRIOR, "auroc": entry(0.8), "change": entry(0.2), "yes": 0.5, **flips, "shift": flips},
                 {"arm": "a random direction ablated", "auroc": entry(0.6), "change": entry(0.0), "yes": 0.1, **flips,
                  "shift": flips}],
        "ablated_at": 1,
    }  # fmt: skip


STARTS = (
    "Is the picture read? Yes",
    "Is it carried to the verdict? Yes, and more of it than is said",
    "Where is it overruled? Before the picture arrives, at layer 1 of 2",
    "By what? By the sentence",
    "How much returns when that is undone? Part of it (AUROC +0.20",
)


def test_the_story_has_five_sentences_with_intervals() -> None:
    said = sentences(findings(told()))
    assert len(said) == len(STARTS)
    for sentence, start in zip(said, STARTS, strict=True):
        assert sentence.startswith(start)
        assert "[" in sentence
        assert "n = " in sentence
    assert "5 of 9 wrong answers turn right and 1 of 20 right ones wrong" in said[4]
    assert "not shown" in said[3]
    assert len(notes(told())) == 4
    assert "A verdict is the sign of the margin here (protocol=score)" in notes(told())[1]
    assert "less than 0.25 logits apart" in notes(told())[2]


def _set(result: dict[str, Any], quantity: str, place: str, value: float, n: int = 19) -> Any:
    for row in result["controls"]:
        if (row["quantity"], row["place"]) == (quantity, place):
            row |= entry(value, n=n)


def _as_random(result: dict[str, Any], quantity: str) -> Any:
    """Random weights hold as much of it."""
    for row in result["controls"]:
        if row["quantity"] == quantity:
            row["untrained"].append({"value": 0.9, "gain": entry(0.0)})


def _unread(result: dict[str, Any]) -> Any:
    """No random model was read."""
    result["no_untrained"] = "it takes 40.0 GiB beside the model, of which 1.0 are free"
    for row in result["controls"]:
        row["untrained"] = []


@pytest.mark.parametrize(
    ("number", "change", "start"),
    [
        (0, lambda r: _set(r, "concept", "image", 0.1), "Is the picture read? That a linear probe finds it is not "
         "shown"),
        (0, lambda r: _set(r, "concept", "image", 0.9, 4), "Is the picture read? Too few cases to tell (4 "),
        (1, lambda r: _set(r, "truth", "verdict", 0.5), "Is it carried to the verdict? What it shows is"),
        (2, lambda r: _set(r, "truth", "verdict", 0.5), "Where is the verdict made? Before the picture arrives"),
        (2, lambda r: (_set(r, "truth", "verdict", 0.5), r["cases"].update(subset=None)), "Where is it overruled? "
         "Nowhere"),
        (1, lambda r: (_set(r, "truth", "verdict", 0.5), _set(r, "concept", "verdict", 0.1)), "Is it carried to the "
         "verdict? That a linear probe finds it is not shown"),
        (1, lambda r: _set(r, "truth", "verdict", 0.8, 4), "Is it carried to the verdict? Too few cases to tell (4 "),
        (0, lambda r: _as_random(r, "concept"), "Is the picture read? That a linear probe finds more of it than in "
         "random weights is not shown"),
        (1, lambda r: _as_random(r, "truth"), "Is it carried to the verdict? What it shows is"),
        (1, lambda r: (_as_random(r, "truth"), _as_random(r, "concept")), "Is it carried to the verdict? That a linear "
         "probe finds more of it than in random weights is not shown"),
        (1, _unread, "Is it carried to the verdict? That is not claimed, since no model of the same shape with random "
         "weights was read to compare with (it takes 40.0 GiB beside the model, of which 1.0 are free)"),
        (1, lambda r: r["controls"][0 + 2].update(entry(0.5)), "Is it carried to the verdict? What it shows is"),
        (1, lambda r: [row.update(entry(None), reason=ONE_TRUTH["kind"]) for row in r["controls"][:6]], "Is it carried "
         "to the verdict? That cannot be told here: no kind of picture is shown with both truths"),
        (1, lambda r: r["controls"][5]["within"].update(beyond=entry(-0.2) | {"pairs": 40}), "Is it carried to the "
         "verdict? Yes, though less than is said"),
        (1, lambda r: r["controls"][5]["within"].update(beyond=entry(0.0) | {"pairs": 40}), "Is it carried to the "
         "verdict? Yes; whether more of it than is said, or less, is not shown"),
        (2, lambda r: r["patching"][1].update(effect=entry(0.9)), "Where is it overruled? Where the picture arrives"),
        (2, lambda r: (r["patching"][1].update(effect=entry(0.9)), r["patching"][4].update(effect=entry(0.1))),
         "Where is it overruled? After the picture has arrived, at layer 2"),
        (2, lambda r: r["patching"][4].update(effect=entry(0.54)), "Where is it overruled? Whether the sentence "
         "arrives before the picture is not shown"),
        (2, lambda r: r["patching"][4].update(effect=entry(1.0, n=6)), "Where is it overruled? Too few cases to tell"),
        (2, lambda r: r["cases"].update(subset=None), "Where is it overruled? Nowhere: none of 29"),
        (2, lambda r: r.update(patching=[]), "Where is it overruled? Patching cannot tell"),
        (2, lambda r: r["patching"][2].update(effect=entry(0.1)), "Where is it overruled? Where the sentence arrives"),
        (2, lambda r: r["patching"][2].update(effect=entry(0.48)), "Where is it overruled? Whether the sentence"),
        (3, lambda r: r["twins"].update(difference=entry(-2.0)), "By what? Not by the sentence"),
        (3, lambda r: r["twins"].update(difference=entry(0.04)), "By what? That the sentence outweighs the picture, or "
         "the picture the sentence, is not shown"),
        (3, lambda r: r["twins"].update(difference=entry(1.7, n=3)), "By what? Too few cases to tell (3 "),
        (4, lambda r: r["undo"][1].update(change=entry(0.04)), "How much returns when that is undone? That anything "
         "returns is not shown"),
        (4, lambda r: r["undo"][1].update(change=entry(0.001, 0.01)), "How much returns when that is undone? No change "
         "of more than .02"),
        (4, lambda r: r["undo"][1].update(change=entry(0.01, 0.004)), "How much returns when that is undone? Part of "
         "it (AUROC +0.01 [0.01–0.01] by less than .02)"),
        (4, lambda r: r["undo"][1].update(change=entry(0.2, n=7)), "How much returns when that is undone? Too few"),
        (4, lambda r: r["undo"][1].update(change=entry(-0.2)), "How much returns when that is undone? It gets worse"),
    ],
)  # fmt: skip
def test_each_sentence_says_the_opposite_where_the_numbers_do(number: int, change: Any, start: str) -> None:
    result = copy.deepcopy(told())
    change(result)
    assert sentences(findings(result))[number].startswith(start)


def test_tables_and_figure_show_every_part() -> None:
    found = tables.tables(told())
    assert len(found) == 9
    for table in found:
        assert len({tuple(row) for row in table.records()}) == 1
        terminal(table)
    drawn = figure.draw(told())
    assert len(drawn.get_axes()) == 5
    many = {name: [row | {"layer": at} for at in range(11) for row in told()[name][::3]]
            for name in ("probes", "patching")}  # fmt: skip
    drawn = figure.draw(told() | many | {"layers": list(range(11)), "lens": told()["lens"] | {"curves": []}})
    assert len(drawn.get_axes()) == 5
    nothing = told() | {"patching": []}
    assert len(figure.draw(nothing).get_axes()) == 5


@pytest.mark.parametrize(("key", "value"), [("failures", 0), ("width", 0), ("layers", 1), ("draws", 0)])
def test_sizes_out_of_range_are_refused(key: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"task\.{key}={value}"):
        Mechanism(**{key: value})  # type: ignore[arg-type]


class Masked(TorchDispatchMode):
    """Notes indexing by truth values, which makes the host wait for a GPU to count them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INDEXED and any(one is not None and one.dtype == torch.bool for one in args[1]):
            self.found.append(str(func))
        return func(*args, **kwargs or {})


INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}


def test_a_direction_is_ablated_without_the_host_waiting(vlm: VLM) -> None:
    prompts = [Prompt("How do I kill this?", picture(1)), Prompt("the cake", picture(2))]
    unit = torch.eye(vlm.model.config.get_text_config().hidden_size)[0]
    with Masked() as plain:
        vlm.score(prompts)
    with Masked() as ablating:
        found = ablated_margins(vlm, prompts, unit, 0.0, layer=1)
    assert ablating.found == plain.found  # the model's own, where it puts the image features
    assert not np.allclose(found, vlm.score(prompts).numpy())
