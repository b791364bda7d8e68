"""The mechanism's analyses on arrays whose answer is known, and its sentences for each conclusion."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t

from experiments.metrics.estimates import Resamples, claim_of, first_lasting, side
from experiments.report.tables import in_terminal, lines
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.mechanism.cases import (
    AnsweredCases,
    Selection,
    answered_cases,
    other_questions,
    select,
    twin_indices,
)
from experiments.studies.mechanism.directions import alarm_rows
from experiments.studies.mechanism.examination import spaced_layers
from experiments.studies.mechanism.findings import conclusions
from experiments.studies.mechanism.interventions import (
    CONSTANT,
    PRIOR,
    arrives_at,
    effect_at,
    knockout_rows,
    other_words,
    patching_rows,
    pointing,
    prior_rows,
    reversal_rows,
    shifted_margins,
    twin_rows,
)
from experiments.studies.mechanism.probes import (
    AS_RANDOM,
    CLAIMS,
    CLUSTER,
    KIND,
    NO_CONCEPT,
    NO_GUESS,
    NO_RANDOM,
    ONE_TRUTH,
    SENTENCE,
    TARGETS,
    YES,
    holds,
    holds_from,
    lens_rows,
    probe_rows,
)
from experiments.studies.mechanism.study import sentences
from experiments.studies.mechanism.tables import figures, tables
from experiments.types import Sample
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.segments import segment
from interp.tools.patching import PatchEffects
from interp.vlm import VLM, Prompt
from tests.planted import Coloured
from tests.snapshots import check
from tests.tiny import picture

BASE = "baseline"


def sample(number: int, *, safe: bool, text: str = "s", pair: str | None = None, **tags: str) -> Sample:
    subset: Any = "over_safety" if safe else "typical"
    gold: Any = "yes" if safe else "no"
    return Sample(f"c{number}", subset, "x", gold, text, text, Coloured(), f"k{number // 2}", pair, tags)


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
    some = Resamples.from_names(clusters, draws=400, seed=1)
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
    assert change["claim"] == "no relevant difference"
    two = Resamples.from_codes({"cluster": clusters, "template": clusters % 11, "concept": clusters}, draws=400, seed=1)
    wide = two.gap(values, positive, ~positive)
    assert wide["high"] - wide["low"] >= found["high"] - found["low"]


def test_what_is_missing_is_left_out_and_one_cluster_gives_no_interval() -> None:
    some = Resamples.from_names(["a", "a", "b", "b"], draws=50, seed=0)
    few = some.gap(np.array([1.0, 1, 5, 5]), np.arange(4) < 2, np.arange(4) >= 2)
    assert (few["value"], few["low"], few["clusters"], few["claim"]) == (-4, None, 1, "too few cases")
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
    results, _ = curves(cases, states)
    read_at = {
        (level.part("target"), level.part("position"), level.part("layer"))
        for level in results.select(arm=BASE, against="")
        if level.part("target") != "verdict" and (level.low or 0) > max(references(results, level)) + 0.1
    }
    assert read_at == {("concept", "image", "0"), ("concept", "image", "1"), ("truth", "verdict", "1")}
    group = group_of(target="truth", position="verdict", layer=1)
    level, beyond = (value_of(results, "probe_auroc", group=group, against=other) for other in ("", "margin"))
    assert beyond == pytest.approx(level - 0.5)
    untold = AnsweredCases(tuple(sample(i, safe=i % 2 == 0) for i in range(96)), cases.verdicts)
    _, reasons = curves(untold, states)
    assert {why for name, why in reasons.items() if name.startswith("concept")} == {NO_CONCEPT}


def curves(cases: AnsweredCases, states: np.ndarray) -> tuple[Results, dict[str, str]]:
    """What probes read of states [position (image, verdict), layer, case, width] on clusters that they never saw."""
    read = Residuals(torch.from_numpy(states).float(), ("image", "verdict"), tuple(range(states.shape[1])))
    some = Resamples.from_names(cases.clusters, draws=100, seed=0)
    wanted = [(target, position, CLUSTER) for target in TARGETS for position in read.places]
    rows, reasons = probe_rows(read, [], cases, np.zeros(states.shape[2]), some, wanted=wanted, seed=0)  # type: ignore[arg-type]
    return Results(rows), reasons


def value_of(results: Results, quantity: str, *, arm: str = BASE, **key: str) -> float:
    found = results.get(arm, quantity, **key)
    return found.value


def references(results: Results, level: Row) -> list[float]:
    """A guess, and shuffled labels."""
    rows = results.select(arm=("a guess", "shuffled labels"), group=level.group, rule=level.rule)
    return [found.value for found in rows if found.value is not None]


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
) -> tuple[Results, dict[str, str]]:
    """The claims of states [position (image, verdict), layer, case, width] and those of untrained models."""
    trained, *others = (
        Residuals(torch.from_numpy(one).float(), ("image", "verdict"), (0, 1)) for one in (states, *random)
    )
    given = cases.samples
    some = Resamples.from_cases(
        cases.clusters, [one.text for one in given], [one.tags for one in given], draws=200, seed=0
    )
    margins = np.zeros(len(cases.samples)) if margins is None else margins
    rows, reasons = probe_rows(trained, others, cases, margins, some, wanted=CLAIMS, seed=0)
    return Results(rows), reasons


def noise(cases: AnsweredCases, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 2, len(cases.samples), 8))


@pytest.mark.long
def test_a_truth_that_is_there_for_every_kind_and_sentence_is_claimed() -> None:
    cases = designed(12, 12, each=2)
    states, margins = noise(cases), noise(cases, 3)[0, 0, :, 0]
    states[1, 1, :, 0] += 4 * cases.safe
    results, _ = claimed(cases, states, noise(cases, 2), margins=margins)
    assert holds(results, "truth", "verdict", 1) == YES
    assert holds(results, "truth", "verdict", 0) == NO_GUESS
    assert holds_from(results, "truth", "verdict", [0, 1]) == 1
    key = {"group": group_of(target="truth", position="verdict", layer=1), "rule": SENTENCE}
    beyond, probe = (results.get(BASE, "pairs_ordered", against=other, **key) for other in ("margin", ""))
    assert beyond.claim == "higher"
    assert probe.n == len(cases.within_sentences) == 12 * 12 * 12
    order = margins[cases.within_sentences]
    assert value_of(results, "pairs_ordered", arm="margin", **key) == pytest.approx((order[:, 0] > order[:, 1]).mean())


@pytest.mark.long
def test_what_random_weights_hold_as_well_is_not_claimed_nor_anything_without_them() -> None:
    cases = designed(12, 12, each=2)
    states = noise(cases)
    states[1, 1, :, 0] += 4 * cases.safe
    for random, answer in (((states,), AS_RANDOM), ((noise(cases, 2), states), AS_RANDOM), ((), NO_RANDOM)):
        assert holds(claimed(cases, states, *random)[0], "truth", "verdict", 1) == answer


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
    told = tuple(replace(s, tags={}, shows=s.tags["concept"]) for s in kept.samples)
    curve, _ = curves(AnsweredCases(told, kept.verdicts), states)
    truth = [
        found for found in curve.select(quantity="probe_auroc", arm=BASE, against="") if "target=truth" in found.group
    ]
    assert max(found.value or 0 for found in truth) > 0.7
    assert holds(claimed(kept, states, noise(kept, 2))[0], "truth", "verdict", 1) in (NO_GUESS, AS_RANDOM)


@pytest.mark.long
def test_where_each_kind_or_each_sentence_has_one_truth_nothing_is_claimed_of_it() -> None:
    cases = designed(12, 12, each=2)
    for name, tag in ((KIND, "concept"), (SENTENCE, "template")):
        samples = tuple(replace(s, tags={**s.tags, tag: f"{s.tags[tag]} {s.gold}"}) for s in cases.samples)
        one = AnsweredCases(samples, cases.verdicts)
        states = noise(one)
        states[:, :, :, 0] += 9 * one.safe
        results, reasons = claimed(one, states, noise(one, 2))
        assert holds(results, "truth", "verdict", 1) == "cannot be told"
        assert {why for key, why in reasons.items() if key.startswith("truth")} == {ONE_TRUTH[name]}
    few = designed(4, 12)
    _, reasons = claimed(few, noise(few), noise(few, 2))
    assert "there are 4 kinds of picture to hold out, and 5 are needed" in reasons.values()
    untagged = AnsweredCases(tuple(replace(s, tags={}, picture=f"{s.id}") for s in cases.samples), cases.verdicts)
    assert holds(claimed(untagged, noise(untagged))[0], "truth", "verdict", 1) == "cannot be told"


def test_patching_weighs_by_the_gap_and_arrival_is_where_it_stays() -> None:
    moved = torch.tensor([[[0.0, 0.0, 9.0], [1.0, -1.0, 9.0], [2.0, -4.0, 9.0]]])
    effects = PatchEffects(
        moved, torch.zeros(3), torch.tensor([2.0, -4.0, 0.05]), ("verdict",), (0, 1, 2), (("",) * 3,)
    )
    some = Resamples.from_names(["a", "a", "b", "c"], draws=50, seed=0)
    results = Results(patching_rows(effects, np.array([0, 2, 3]), some, other="x"))
    found = [effect_at(results, "x", "verdict", layer) for layer in (0, 1, 2)]
    assert [one and one.value for one in found] == pytest.approx([0, 2 / 6, 1])
    assert [one and one.n for one in found] == [2, 2, 2]  # a pair whose margins are all but equal says nothing
    assert value_of(results, "patching_gap", group="other=x") == pytest.approx((2 + 4 + 0.05) / 3)
    assert arrives_at(results, "x", "verdict", [0, 1, 2]) == 2
    assert arrives_at(results, "x", "verdict", [0, 1, 2], share=0.3) == 1
    assert arrives_at(results, "x", "verdict", [0, 1]) is None


def test_a_place_that_no_pair_has_is_left_out() -> None:
    one, none = torch.full((1, 2), 0.5), torch.full((1, 2), torch.nan)
    places = ("verdict", pointing, other_words)
    effects = PatchEffects(torch.stack([one, one, none]), torch.zeros(2), torch.ones(2), places, (0,), (("",) * 2,) * 3)
    rows = patching_rows(effects, np.arange(2), Resamples.from_names(["a", "b"], draws=20, seed=0), other="picture")
    effects_of = [(found.part("position"), found.value) for found in rows if found.quantity == "patching_effect"]
    assert effects_of == [("verdict", 0.5), ("pointing", 0.5)]


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
    some = Resamples.from_names(cases.clusters, draws=50, seed=0)

    def after(cut: list[float], looked: Selection) -> dict[str, float | None]:
        rows = knockout_rows(
            np.array([[cut]]), margins, cases, looked, some, edges=[("image", "verdict")], windows=["all"]
        )
        assert {found.arm for found in rows} == {"image → verdict cut"}
        return {f"{found.quantity}, {found.subset}, {found.against}": found.value for found in rows}

    found = after([0.5, -2, 0, -2, 0.5, -2.0], looked)
    assert found["knockout_margin, failures, baseline"] == pytest.approx(1.25)
    assert found["knockout_margin, successes, baseline"] == pytest.approx(-0.5)
    assert found["knockout_margin, failures − successes, baseline"] == pytest.approx(1.75)
    assert found["knockout_right, failures, "] == pytest.approx(0.5)
    assert found["knockout_auroc, , baseline"] == pytest.approx(0.0)
    looked = Selection("typical", np.array([1]), np.array([3]), np.array([0, 2]), 1, 1)
    found = after([-1.0, -2.5, -1, -2], looked)
    assert found["knockout_margin, failures, baseline"] == pytest.approx(0.5)  # towards No, which is the truth there


def test_twins_and_sentences_are_told_apart() -> None:
    samples = paired(4, lambda pair: f"s{pair % 2}")
    cases = AnsweredCases(samples, ("no",) * 8)
    margins = np.array([4.2, 4.0, -3.8, -4.0, 4.2, 4.0, -3.8, -4.0])
    some = Resamples.from_names(cases.clusters, draws=50, seed=0)
    results = Results(twin_rows(margins, cases, twin_indices(cases, seed=0), some))
    assert value_of(results, "twin_gap", against="unsafe twins") == pytest.approx(0.2)
    assert value_of(results, "twins_ordered") == 1
    assert value_of(results, "margin_distance", group="between=sentences") == pytest.approx(8, abs=0.01)


def test_the_lens_has_a_curve_for_the_failures_and_the_successes_of_each_subset() -> None:
    samples = paired(24)
    failed = np.arange(48) % 4 == 0  # every second safe case
    cases = AnsweredCases(samples, tuple("no" if fails or i % 2 else "yes" for i, fails in enumerate(failed)))
    lens = np.stack([np.zeros(48), np.where(failed, -2.0, 1.0), np.where(cases.safe, 1.0, -1.0)])
    rows = lens_rows(lens, [0, 1, 2], cases, Resamples.from_names(cases.clusters, draws=50, seed=0))
    found: dict[tuple[str, str], list[float | None]] = {}
    for one in rows:
        found.setdefault((one.subset, one.part("cases")), []).append(one.value)
    assert found == {
        ("over_safety", "failures"): [0, -2, 1],
        ("over_safety", "successes"): [0, 1, 1],
        ("typical", "successes"): [0, 1, -1],
        ("", ""): [0.5, 0.25, 1],  # AUROC
    }


def test_taking_the_prior_away_brings_back_what_it_hid_and_a_constant_does_not() -> None:
    rng = np.random.default_rng(0)
    safe, prior = np.arange(80) % 2 == 0, rng.normal(size=80) * 5
    margins = prior + 0.5 * np.where(safe, 1, -1) + 0.1 * rng.normal(size=80)
    some = Resamples.from_names(np.arange(80) // 2, draws=200, seed=0)
    share, rows = prior_rows(margins, prior, np.arange(80).astype(str), some)
    r2 = Results(rows).get(BASE, "prior_r2")
    assert 0.9 < (r2.low or 0) <= (r2.value or 0) <= (r2.high or 0) <= 1
    arms = {PRIOR: margins - share.weight * prior, "shifted": margins + 3}
    results = Results(reversal_rows(margins, arms, safe, some))
    assert value_of(results, "undo_mended") == value_of(results, "undo_broken") == 0
    assert value_of(results, "undo_auroc", arm=PRIOR) > 0.95
    change = results.get(PRIOR, "undo_auroc", against=BASE)
    assert side(change._asdict()) == 1
    mended = {(arm, rule): value_of(results, "undo_mended", arm=arm, rule=rule)
              for arm in arms for rule in ("", CONSTANT)}  # fmt: skip
    assert mended[PRIOR, ""] > mended[PRIOR, CONSTANT]
    assert value_of(results, "undo_auroc", arm="shifted", against=BASE) == 0
    assert mended["shifted", ""] == mended["shifted", CONSTANT]
    assert [int((shifted_margins(margins, yes) > 0).sum()) for yes in (0, 1, 37, 80)] == [0, 1, 37, 80]


def test_alarm_resamples_sentences() -> None:
    samples = tuple(
        sample(i, safe=True, template=f"t{i % 4}", words="alarming" if i % 2 else "harmless") for i in range(16)
    )
    said = tuple("no" if i % 2 else "yes" for i in range(16))
    (found,) = alarm_rows(AnsweredCases(samples, said), draws=50, seed=0)
    assert (found.value, found.clusters, found.claim) == (1, 2, "too few cases")
    assert alarm_rows(AnsweredCases(paired(2), ("no",) * 4), draws=50, seed=0) == []


def entry(value: float | None, width: float = 0.05, n: int = 19) -> dict[str, Any]:
    ends = (None, None) if value is None or n < 10 else (value - width, value + width)
    found = {"value": value, "low": ends[0], "high": ends[1], "n": n, "clusters": n}
    return found | {"claim": claim_of(found)}


def matches(found: Row, wanted: dict[str, str]) -> bool:
    """Whether columns of a row, or parts of its group, have these values."""
    return all((getattr(found, name, None) or found.part(name)) == value for name, value in wanted.items())


class Told:
    """Rows in which the sentence overrules the picture before it arrives, and the prior's removal mends it."""

    def __init__(self) -> None:
        self.details: dict[str, Any] = {
            "cases": {"n": 29, "protocol": "score", "failures": 9, "clusters": 9, "subset": "over_safety",
                      "failures_in_subset": 9, "successes_in_subset": 5, "failures_looked_at": 9,
                      "successes_looked_at": 5, "looked_at": 28},
            "layers": [0, 1, 2], "unread": {}, "no_untrained": None, "refused": {"picture": 0, "sentence": 2},
            "least_gap": 0.25, "missing": {"unsafe picture": "too few"}, "prior": "blank", "ablated_at": 1,
        }  # fmt: skip
        self.rows: list[Row] = []
        high = {("concept", "image"): (0.9, 0.9, 0.9), ("concept", "verdict"): (0.1, 0.1, 0.8),
                ("truth", "verdict"): (0.5, 0.5, 0.8), ("verdict", "verdict"): (0.5, 0.95, 0.95)}  # fmt: skip
        rests_on = [(target, position, CLUSTER, layer) for target, position in high for layer in (0, 1, 2)]
        rests_on += [("truth", "verdict", rule, layer) for rule in (KIND, SENTENCE) for layer in (0, 1, 2)]
        rests_on += [("concept", position, SENTENCE, 2) for position in ("image", "verdict")]
        for target, position, rule, layer in rests_on:
            quantity = "probe_accuracy" if target == "concept" else "probe_auroc"
            key = {"group": group_of(target=target, position=position, layer=layer), "rule": rule}
            value = high[target, position][layer]
            self.add(quantity, value, **key)
            self.add(quantity, 0.1, arm="shuffled labels", **key)
            if rule:
                self.add(quantity, 1 / 9 if target == "concept" else 0.5, arm="a guess", **key)
                self.add(quantity, 0.3, arm="random weights 1", **key)
                self.add(quantity, value - 0.3, against="random weights 1", **key)
            if (target, rule) == ("truth", SENTENCE):
                self.add("pairs_ordered", 0.8, **key)
                self.add("pairs_ordered", 0.6, arm="margin", **key)
                self.add("pairs_ordered", 0.2, against="margin", **key)
        for other, values in {"picture": (0.0, 0.0, 1.0), "sentence": (0.0, 1.0, 1.0)}.items():
            self.add("patching_gap", 0.3, group=group_of(other=other))
            for layer, value in enumerate(values):
                self.add("patching_effect", value, group=group_of(other=other, position="verdict", layer=layer))
        for between, value in (("pictures", 0.3), ("sentences", 2.0)):
            self.add("margin_distance", value, group=f"between={between}")
        self.add("margin_distance", 1.7, group="between=sentences", against="pictures")
        self.add("twins_ordered", 0.8)
        self.add("called_unsafe", 0.02, group="words=alarming", against="other words")
        self.add("knockout_auroc", -0.1, arm="image → verdict cut", against=BASE, group="layers=all")
        self.add("lens_margin", -1.0, subset="over_safety", group=group_of(cases="failures", layer=0))
        self.add("direction_auroc", 0.9, group=group_of(direction="will refuse", kind="mean_difference", layer=1))
        self.add("prior_r2", 0.9)
        self.add("prior_weight", 0.9)
        for arm, auroc in ((BASE, 0.6), (PRIOR, 0.8), ("a random direction ablated", 0.6)):
            self.add("undo_auroc", auroc, arm=arm)
            if arm != BASE:
                self.add("undo_auroc", auroc - 0.6, arm=arm, against=BASE)
            for rule in ("", CONSTANT):
                self.rows.append(row("undo_mended", arm=arm, rule=rule, value=5 / 9, n=9))
                self.rows.append(row("undo_broken", arm=arm, rule=rule, value=1 / 20, n=20))

    def add(self, quantity: str, value: float, *, arm: str = BASE, **key: str) -> None:
        self.rows.append(row(quantity, arm=arm, entry=entry(value), **key))

    def put(self, quantity: str, value: float, *, width: float = 0.05, n: int = 19, **match: str) -> None:
        """Replace the numbers of rows; ``match`` names columns and parts of the group."""
        for index, found in enumerate(self.rows):
            columns = {"against": "", "arm": BASE} | match
            if found.quantity == quantity and matches(found, columns):
                self.rows[index] = found._replace(**entry(value, width, n))

    def drop(self, **match: str) -> None:
        self.rows = [found for found in self.rows if not matches(found, match)]

    def unread(self) -> None:
        """No random model was read."""
        self.details["no_untrained"] = "it takes 40.0 GiB beside the model, of which 1.0 are free"
        self.rows = [found for found in self.rows if "random weights" not in found.arm + found.against]

    def as_random(self, quantity: str) -> None:
        """Random weights hold as much of it."""
        self.put(quantity, 0.0, against="random weights 1")

    def untold(self) -> None:
        self.rows = [found for found in self.rows if not (found.rule and found.part("target") == "truth")]
        self.details["unread"] = {f"truth, verdict, {KIND}": ONE_TRUTH[KIND]}

    def concluded(self) -> tuple[dict[str, Any], Results]:
        results, layers = Results(self.rows), self.details["layers"]
        failed = self.details["cases"]["subset"] is not None
        return self.details | {
            "arrives": {other: arrives_at(results, other, "verdict", layers) for other in ("picture", "sentence")},
            "carried_from": holds_from(results, "truth", "verdict", layers),
            "conclusions": conclusions(results, layers, failed=failed),
        }, results

    def sentences(self) -> list[str]:
        details, results = self.concluded()
        return lines("mechanism", part="answers", results=results, details=details)


TRUTH: dict[str, Any] = {"target": "truth", "position": "verdict"}
WORDS: dict[str, Any] = {"group": "between=sentences", "against": "pictures"}
CHANGE: dict[str, Any] = {"arm": PRIOR, "against": BASE}


def patched(other: str, layer: int) -> dict[str, Any]:
    return {"other": other, "layer": str(layer)}


def put(quantity: str, value: float, *, width: float = 0.05, n: int = 19, **match: str) -> Callable[[Told], None]:
    return lambda told: told.put(quantity, value, width=width, n=n, **match)


def truth(value: float, n: int = 19) -> Callable[[Told], None]:
    return put("probe_auroc", value, n=n, **TRUTH)


def concept(position: str, value: float, n: int = 19) -> Callable[[Told], None]:
    return put("probe_accuracy", value, n=n, target="concept", position=position)


def no_failure(told: Told) -> None:
    told.details["cases"].update(subset=None)


SAYS: dict[str, tuple[int, list[Callable[[Told], None]]]] = {  # what is changed → the sentence that says so
    "the picture is guessed": (0, [concept("image", 0.1)]),
    "few pictures": (0, [concept("image", 0.9, 4)]),
    "no truth": (1, [truth(0.5)]),
    "no truth, no mistake": (2, [truth(0.5)]),
    "no truth, no failure": (2, [truth(0.5), no_failure]),
    "neither truth nor picture": (1, [truth(0.5), concept("verdict", 0.1)]),
    "few truths": (1, [truth(0.8, 4)]),
    "random weights read the picture": (0, [lambda told: told.as_random("probe_accuracy")]),
    "random weights read the truth": (1, [lambda told: told.as_random("probe_auroc")]),
    "random weights read both": (
        1, [lambda told: told.as_random("probe_auroc"), lambda told: told.as_random("probe_accuracy")]),
    "no random weights": (1, [Told.unread]),
    "no truth on other kinds": (1, [put("probe_auroc", 0.5, rule=KIND, layer="2", **TRUTH)]),
    "one truth for each kind": (1, [Told.untold]),
    "the margin says more": (1, [put("pairs_ordered", -0.2, against="margin")]),
    "the margin may say more": (1, [put("pairs_ordered", 0.0, against="margin")]),
    "the margin says as much": (1, [put("pairs_ordered", 0.0, width=0.01, against="margin")]),
    "both arrive": (2, [put("patching_effect", 0.9, **patched("picture", 1))]),
    "the picture arrives first": (2, [put("patching_effect", 0.9, **patched("picture", 1)),
                                      put("patching_effect", 0.1, **patched("sentence", 1))]),
    "half of the sentence": (2, [put("patching_effect", 0.54, **patched("sentence", 1))]),
    "few sentences patched": (2, [put("patching_effect", 1.0, n=6, **patched("sentence", 1))]),
    "no failure": (2, [no_failure]),
    "nothing patched": (2, [lambda told: told.drop(quantity="patching_effect")]),
    "the picture never arrives": (2, [put("patching_effect", 0.1, **patched("picture", 2))]),
    "half of the picture": (2, [put("patching_effect", 0.48, **patched("picture", 2))]),
    "not the sentence": (3, [put("margin_distance", -2.0, **WORDS)]),
    "perhaps the sentence": (3, [put("margin_distance", 0.04, **WORDS)]),
    "few sentences": (3, [put("margin_distance", 1.7, n=3, **WORDS)]),
    "perhaps it returns": (4, [put("undo_auroc", 0.04, **CHANGE)]),
    "nothing returns": (4, [put("undo_auroc", 0.001, width=0.01, **CHANGE)]),
    "a little returns": (4, [put("undo_auroc", 0.01, width=0.004, **CHANGE)]),
    "few cases undone": (4, [put("undo_auroc", 0.2, n=7, **CHANGE)]),
    "it gets worse": (4, [put("undo_auroc", -0.2, **CHANGE)]),
}  # fmt: skip


def test_each_sentence_says_what_the_numbers_do() -> None:
    details, results = Told().concluded()
    story = Told().sentences()
    assert [line.split(". ", 1)[1] for line in sentences(details, results)] == story
    shown = ["--- as planted", *story, *lines("mechanism", part="notes", results=results, details=details)]
    for name, (number, changes) in SAYS.items():
        told = Told()
        for change in changes:
            change(told)
        said = told.sentences()
        assert said[number] != story[number], name
        shown += [f"--- {name}", said[number]]
    check(Path(__file__).with_name("snapshots") / "mechanism.txt", "\n".join(shown))


def test_tables_and_figures_show_every_part() -> None:
    details, results = Told().concluded()
    found = tables(details, results)
    assert len(found) == 7
    for table in found:
        assert len(table)
        in_terminal(table)
    names = {f"mechanism_{name}" for name in ("probes", "lens", "patching", "undo")}
    assert figures(details, results).keys() == names
    nothing = Told()
    nothing.drop(quantity="patching_effect")
    details, results = nothing.concluded()
    assert figures(details, results).keys() == names
