"""The whole examination on networks whose mechanism was planted, where nothing is there to find, and on a table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.estimates import Resamples
from experiments.report.tables import lines
from experiments.runs.results_table import Results
from experiments.runs.store import read_object
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.studies.mechanism.examination import Examination
from experiments.studies.mechanism.interventions import effect_at
from experiments.studies.mechanism.probes import CLAIMED, CLAIMS, UNTRAINED, YES, holds, of_claim, probe_rows
from experiments.types import Sample
from interp.hooks.residual import last_layer, residuals
from interp.tools.untrained import untrained
from interp.vlm import VLM
from tests.experiments.benchmarks.iconworld_table import scored, write_table
from tests.experiments.compose import ran, run_of
from tests.families import llava, paligemma, qwen2_vl
from tests.plain_model import plain_afterwards
from tests.planted import Coloured, Plan, planted
from tests.tiny import Pieces

HARMLESS, ALARMING = ("the toy", "the cake", "the dog"), ("the gun", "the knife", "the kill")


def asked(vlm: VLM, *, red_is_safe: bool = True) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Pairs of a red and a blue picture under every sentence, and what the model says of them."""
    samples = []
    for text in (*HARMLESS, *ALARMING):
        for number in range(2):
            for sign in (1, -1):
                safe = (sign > 0) == red_is_safe
                samples.append(Sample(
                    f"{text}-{number}-{sign}", "over_safety" if safe else "typical", "x", "yes" if safe else "no", text,
                    text, Coloured(sign * (0.5 + 0.2 * number)), f"{text}-{number}", f"{text}-{number}",
                    {"template": text, "words": "alarming" if text in ALARMING else "harmless",
                     "concept": "red" if sign > 0 else "blue"},
                ))  # fmt: skip
    margins = vlm.score(prompts_of(samples)).tolist()
    return samples, [{"case": s.id, "arm": "baseline", "verdict": "yes" if m > 0 else "no", "status": "answered"}
                     for s, m in zip(samples, margins, strict=True)]  # fmt: skip


def examined(vlm: VLM, **how: Any) -> tuple[dict[str, Any], Results]:
    samples, records = asked(vlm, **how)
    with plain_afterwards(vlm):
        details, rows = Examination(vlm, samples, records, failures=4, seed=0, draws=60).examine()
    return details, Results(rows)


def cut(results: Results, edge: str, layers: str) -> float:
    row = results.get(f"{edge} cut", "knockout_margin", against="baseline", subset="failures", group=f"layers={layers}")
    return row.value


def effect(results: Results, other: str, position: str, layer: int) -> float | None:
    row = effect_at(results, other, position, layer)
    return row and row.value


@pytest.mark.long
def test_a_sentence_that_overrules_is_found_where_it_was_planted() -> None:
    details, results = examined(planted(Plan(reads=0, heeds=1, writes=2, layers=3)))
    assert details["cases"]["subset"] == "over_safety"
    assert details["ablated_at"] == 2  # what layer 1 heard
    effects = [effect(results, "sentence", "verdict", layer) for layer in range(4)]
    assert effects == pytest.approx([0, 0, 1, 1], abs=1e-3)
    assert effect(results, "sentence", "user", 1) == pytest.approx(1, abs=1e-3)
    assert cut(results, "user → verdict", "1") > 5
    assert cut(results, "user → verdict", "0") == pytest.approx(0, abs=1e-3)
    assert cut(results, "image → verdict", "0") == pytest.approx(0, abs=1e-3)
    said = lines("mechanism", part="answers", results=results, details=details)
    # In a network of so few parts random weights carry the colour as well.
    assert said[0].startswith("Is the picture read? Inconclusive: the probe is not shown to read more than in random")
    assert said[1].startswith("Is it carried to the verdict? This cannot be told here: no kind of picture is shown")
    assert details["conclusions"]["overruled_at"] in ("inconclusive", "too few cases")
    assert "the sentence arrives before the picture. At layer 2 of 3" in said[2]
    assert "Alarming words: too few cases. Cases with them are called unsafe +50.0 points" in said[3]


@pytest.mark.long
def test_a_picture_that_misleads_is_not_laid_on_the_sentence() -> None:
    details, results = examined(planted(Plan(reads=0, heeds=None, writes=1, layers=2)), red_is_safe=False)
    assert details["cases"]["failures"] == details["cases"]["n"]
    effects = [effect(results, "picture", "verdict", layer) for layer in range(3)]
    assert effects == pytest.approx([0, 1, 1], abs=1e-3)
    assert cut(results, "image → verdict", "0") > 3
    assert cut(results, "user → verdict", "all") == pytest.approx(0, abs=1e-3)
    said = lines("mechanism", part="answers", results=results, details=details)
    assert said[2].startswith("Where is the verdict made? Patching cannot tell")
    (difference,) = results.select(quantity="margin_distance", against="pictures")
    assert (difference.value or 0) < 0
    assert said[3].startswith("By what? Not by the sentence")


FAMILIES = (llava, qwen2_vl, paligemma)
STUDIES = 40  # of each family
MOST = 0.05  # of studies with any claim


def claims(family: Callable[[int], Pieces], seed: int) -> list[tuple[str, str]]:
    """What is claimed of a random model on 288 cases of IconWorld: quantity and place."""
    vlm = VLM(*family(1000 + seed))
    scored = [case for case in IconWorld(seed=seed, size=24, pairs=3).load().samples if case.subset != "control"]
    cases, layers = AnsweredCases(tuple(scored), ("no",) * len(scored)), range(last_layer(vlm) + 1)
    prompts, places = prompts_of(cases.samples), ("image", "verdict")
    margins = vlm.batches.scores(prompts).double().numpy()
    states, *random = (
        residuals(one, prompts, places=places, layers=layers)
        for one in (vlm, *(untrained(vlm, seed=10 * seed + number) for number in range(UNTRAINED)))
    )
    texts, tags = [case.text for case in scored], [case.tags for case in scored]
    some = Resamples.from_cases(cases.clusters, texts, tags, draws=500, seed=seed)
    rows, _ = probe_rows(states, random, cases, margins, some, wanted=CLAIMS, seed=seed)
    results = Results(rows)
    assert all(row and row.value is not None for row in of_claim(results, "truth", "verdict", layers[-1]))
    return [claim for claim in CLAIMED if holds(results, *claim, layers[-1]) == YES]


@pytest.mark.long
@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=() if one is llava else pytest.mark.slow) for one in FAMILIES],
    ids=lambda family: family.__name__,
)
def test_of_a_random_model_nothing_is_claimed(family: Callable[[int], Pieces]) -> None:
    assert claims(family, 0) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_of_random_models_something_is_claimed_in_at_most_one_of_twenty(family: Callable[[int], Pieces]) -> None:
    assert sum(bool(claims(family, seed)) for seed in range(STUDIES)) <= MOST * STUDIES


PAIRS = 2  # of every sentence, plain and as many wrapped


def told(name: str, folder: Path, *options: str) -> dict[str, Any]:
    return read_object(ran(run_of(f"+exp={name}", f"output_root={folder}", *options)) / f"{name}.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mechanism", "localise"])
def test_what_is_answered_and_claimed_is_the_same(tmp_path: Path, name: str) -> None:
    table = write_table(tmp_path / "table", scored(PAIRS))
    ours = told(name, tmp_path / "ours", f"benchmark.pairs={PAIRS}")
    theirs = told(name, tmp_path / "theirs", "benchmark=table", f"benchmark.path={table}")
    assert ours["conclusions"] == theirs["conclusions"]
