"""Contrasts over replies: on a real vLLM's, played back, beside the same methods here; and on lesser servers."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from experiments.api.contrast import margin_of_words
from experiments.api.engine_model import write_engine_model
from experiments.evaluation.refusal_margins import FILE
from experiments.metrics.outcomes import align
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.controls import TextOnly
from mitigation.forced import log_probabilities
from tests.experiments.api import recorded_engine
from tests.experiments.api.fake_engine import FakeEngine
from tests.experiments.compose import lines, ran, run_of
from tests.experiments.faulty_server import Reply, Served
from tests.experiments.refusing import refusing_run
from tests.planted import Plan, planted

ORGANISM = ModelConfig("llava_organism", "organism:llava", dtype="float32")


@pytest.fixture(scope="module")
def here() -> VLM:
    return load(ORGANISM)


@pytest.mark.long
def test_margins_and_answers_on_a_real_engine_are_those_here(here: VLM) -> None:
    with Served(recorded_engine.played()) as served:
        there = recorded_engine.asked(recorded_engine.model(served.url))
    for name, own in recorded_engine.asked(here).items():
        found = there[name]
        assert found.statuses is not None, name
        assert set(found.statuses) <= {"answered", "truncated"}, (name, found.reasons)
        torch.testing.assert_close(found.margins, own.margins, atol=4e-4, rtol=0, msg=name)
        assert all(low == high for low, high in found.bounds or []), name
        if "answers" in name:
            assert found.token_ids == own.token_ids, name
            assert not any(found.reasons or []), name
        if own.branch_margins is not None:
            assert [set(row) for row in found.branch_margins or []] == [set(row) for row in own.branch_margins]


@pytest.mark.long
def test_no_list_is_asked_for_that_another_clients_request_would_disturb(here: VLM) -> None:
    """vLLM 0.32 shortens lists of the likeliest tokens while somebody names tokens; those of a prompt stay whole."""
    asked: list[dict[str, Any]] = []

    def disturbed(request: dict[str, Any]) -> Reply:
        asked.append(request)
        reply = recorded_engine.played()(request)
        body = json.loads(reply.body)
        for step in ((body.get("choices") or [{}])[0].get("logprobs") or {}).get("content") or []:
            if "logprob_token_ids" not in request:
                del step["top_logprobs"][1:]
        return Reply(json.dumps(body).encode(), reply.status)

    prompts, tokens = recorded_engine.prompts(), recorded_engine.TOKENS
    with Served(disturbed) as served:
        for name, method in recorded_engine.WHOLE.items():
            found = method.generate(recorded_engine.model(served.url), prompts, max_new_tokens=tokens)
            assert found.token_ids == method.generate(here, prompts, max_new_tokens=tokens).token_ids, name
            assert not any(found.reasons or []), name
    assert not [one for one in asked if one.get("top_logprobs")]
    assert any("prompt_logprobs" in one for one in asked)


def test_a_margin_is_a_bound_where_a_word_is_not_listed() -> None:
    exact = margin_of_words({"Yes": -0.1, "x": -3.0, " no": -2.5})
    assert exact.low == exact.high == exact.value == pytest.approx(2.4)
    least = margin_of_words({"Yes": -0.5, "x": -2.0})
    assert (least.low, least.high, least.value) == (pytest.approx(1.5), math.inf, pytest.approx(1.5))
    most = margin_of_words({"No": -0.5, "x": -2.0})
    assert (most.low, most.high, most.value) == (-math.inf, pytest.approx(-1.5), pytest.approx(-1.5))
    assert math.isnan(margin_of_words({"x": -2.0}).value)


def frame(rows: list[tuple[str, float | None, float | None]]) -> Any:
    import pandas as pd

    common = {"arm": "a", "status": "answered", "scenario": "s", "text": "t", "cluster": "c", "pair": None, "tags": {}}
    return pd.DataFrame(
        [
            common
            | {"case": str(at), "gold": gold, "subset": "typical" if gold == "no" else "over_safety", "verdict": "yes"}
            | {"margin": low, "margin_is": "exact" if low == high else "bound", "margin_low": low, "margin_high": high}
            for at, (gold, low, high) in enumerate(rows)
        ]
    )


def test_an_order_is_read_where_bounds_do_not_cross() -> None:
    apart = [("no", -2.0, -2.0), ("yes", 1.0, None), ("no", 0.5, 0.5)]
    _, answers = align(frame(apart), "yes_no")
    assert answers["a"].bounded == (1, 0)
    assert not math.isnan(answers["a"].score[0])
    crossing = [*apart, ("no", 3.0, 3.0)]
    _, answers = align(frame(crossing), "yes_no")
    assert answers["a"].bounded == (1, 1)
    assert all(math.isnan(value) for value in answers["a"].score)


def test_what_a_contrast_needs_of_its_server_is_said() -> None:
    prompts = [Prompt("Safe?", Image.new("RGB", (8, 8)), key="a")]
    lacking = {
        None: "need model.engine=vllm, model.logprobs=auto",
        "vllm": "/tokenize answers 404: .*set model.engine=null",
    }
    for engine, said in lacking.items():
        with Served(lambda request: Reply(b"{}", 404)) as served, pytest.raises(UserError, match=said):
            TextOnly(alpha=1.0).generate(recorded_engine.model(served.url, engine=engine), prompts, max_new_tokens=1)


def test_a_server_that_lists_too_few_or_other_tokens_is_named(here: VLM) -> None:
    def few(request: dict[str, Any]) -> Reply:
        if "messages" in request and "max_tokens" in request:
            return Reply(json.dumps({"error": {"message": "logprobs must be at most 5"}}).encode(), 400)
        return FakeEngine(here)(request)

    def others(request: dict[str, Any]) -> Reply:
        return FakeEngine(here)({name: value for name, value in request.items() if name != "logprob_token_ids"})

    for reply, said in ((few, "start vLLM with --max-logprobs 20"), (others, "does not name tokens by id")):
        with Served(reply) as served, pytest.raises(UserError, match=said):
            recorded_engine.model(served.url).generate([Prompt("Safe?")], max_new_tokens=4)


@pytest.mark.long
def test_a_folder_for_an_engine_has_published_names_and_is_read_here(tmp_path: Path, here: VLM) -> None:
    command = write_engine_model(ORGANISM, tmp_path / "served")
    assert command.startswith(f"vllm serve {tmp_path / 'served'}")
    with safe_open(tmp_path / "served" / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
    assert any("vision_tower.vision_model.encoder." in name for name in names)
    assert not any("vision_tower.encoder." in name for name in names)
    again = load(tmp_path / "served", dtype="float32")
    assert again.end_ids == here.end_ids
    torch.testing.assert_close(again.score(recorded_engine.prompts()), here.score(recorded_engine.prompts()))
    with pytest.raises(UserError, match="is in use"):
        write_engine_model(ORGANISM, tmp_path / "served")


@pytest.mark.long
def test_refusal_margins_over_an_engine_are_those_of_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arms = ("method=baseline", "batch_size=12")
    here = refusing_run(monkeypatch, tmp_path / "here", *arms)
    folders = [ran(here)]
    monkeypatch.undo()
    with Served(FakeEngine(planted(Plan(heeds=1, in_words=True)))) as served:
        there = run_of(
            "model=api_vllm", f"model.base_url={served.url}", "model.model=m", "model.concurrency=2", "draws=60",
            "max_new_tokens=3", f"output_root={tmp_path / 'there'}", *arms,
        )  # fmt: skip
        folders.append(ran(replace(there, benchmark=here.benchmark, judge=here.judge)))
    chances = [
        {
            (each["case"], opening): value
            for each in map(json.loads, (folder / FILE).open())
            for opening, value in each["openings"].items()
        }
        for folder in folders
    ]
    assert chances[0] == pytest.approx(chances[1], abs=1e-5)
    assert len(chances[0]) == 3 * 2 * 72  # two openings and a first token, in the cases of both splits
    margins = [[r["safety_margin"] for r in lines(folder) if r["arm"] == "baseline"] for folder in folders]
    assert margins[0] == pytest.approx(margins[1], abs=5e-3)  # P(refuse) is within float32's rounding of 1


def test_openings_that_an_engine_cannot_read_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    vlm = planted(Plan(heeds=1, in_words=True))
    with Served(lambda request: Reply(b"{}", 500) if "max_tokens" in request else FakeEngine(vlm)(request)) as served:
        there = recorded_engine.model(served.url)
        assert there.read_openings([Prompt("the gun")], [(5, 6), (5,)]).isnan().all()
    assert "1 of 1 requests have no refusal margin" in capsys.readouterr().err
    with pytest.raises(UserError, match="no scores of forced tokens over an API"):
        log_probabilities(TextOnly(alpha=1.0), there, [Prompt("the gun")], [(5,)])  # type: ignore[arg-type]
