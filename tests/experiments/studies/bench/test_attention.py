"""The bench of attention, and the harness: what is measured, not how fast it was on this machine."""

from functools import partial

import pytest
import torch

from experiments.studies.bench import harness
from experiments.studies.bench.attention import AttentionBench, variants
from experiments.studies.bench.harness import PLAIN, rounds_of
from experiments.studies.bench.models import prompt_of
from interp.loading import load
from interp.segments import segment
from tests.experiments.compose import run_of

TOKENS, VARIANTS = 100, [PLAIN, "verdict", "all queries", "eager"]


def test_variants_see_what_their_names_say_and_masses_are_those_of_eager_attention() -> None:
    seen = {name: work() for name, work in variants("organism", TOKENS, "cpu", 0).items()}
    assert list(seen) == VARIANTS
    masses = seen["all queries"].pieces[0].mass[:, 0]  # layer head query segment
    eager = torch.stack([weights[0] for weights in seen["eager"]])
    assert seen["verdict"].pieces[0].mass.shape[3] == 1
    assert eager.shape[-2:] == (TOKENS, TOKENS)
    vlm = load("organism:llava", device="cpu")
    prompts = [prompt_of(vlm, TOKENS, seed=0)]
    indicator = segment(vlm, prompts, vlm.encode(prompts)).indicator(0, TOKENS)[0]  # key segment
    assert 0 < (masses - eager.float() @ indicator.float()).abs().max() < 1e-5


def test_rounds_alternate_and_none_is_begun_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    cost = {"a": 1.0, "b": 3.0}
    for clock in ("monotonic", "perf_counter"):  # time passes only while a variant works
        monkeypatch.setattr(harness.time, clock, lambda: sum(cost[name] for name in order))
    work = {name: partial(order.append, name) for name in cost}
    assert rounds_of(work, "cpu", 2, 100.0) == [cost] * 2
    assert order == ["a", "b", "a", "b", "b", "a"]  # the first two to warm up
    assert len(rounds_of(work, "cpu", 9, 12.0)) == 3
    assert len(rounds_of(work, "cpu", 9, 0.0)) == 1


def test_a_ratio_is_the_median_of_the_ratios_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [{PLAIN: 1.0, "mass": 1.2}, {PLAIN: 10.0, "mass": 11.0}, {PLAIN: 1.0, "mass": 1.5}]  # the second is slow
    monkeypatch.setattr(harness, "rounds_of", lambda *_: rounds)
    monkeypatch.setattr(AttentionBench, "jobs", lambda *_: [harness.Job("it", dict, {"mass": 1.25})])
    rows = AttentionBench().measure(run_of(), "cpu")["rows"]
    assert [(row["times plain"], row["at most"]) for row in rows] == [(1.0, None), (1.2, 1.25)]
