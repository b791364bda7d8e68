"""Random models of three families: nothing is claimed of what they hold, though pictures can be told apart in them."""

from collections.abc import Callable

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.estimates import Resamples
from experiments.runs.results_table import Results
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.studies.mechanism.probes import CLAIMED, CLAIMS, UNTRAINED, YES, holds, of_claim, probe_rows
from interp.hooks.residual import last_layer, residuals
from interp.tools.untrained import untrained
from interp.vlm import VLM
from tests.families import llava, paligemma, qwen2_vl
from tests.tiny import Pieces

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
