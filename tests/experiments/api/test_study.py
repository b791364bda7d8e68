"""Whole studies over an API: behind a proxy with every fault, with keys that must not leak, and on our own server."""

import json
from collections import Counter
from pathlib import Path

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.runs.store import IDENTITY
from experiments.types import Status
from interp.errors import UserError
from interp.loading import load
from tests.experiments.compose import lines, ran, run_of
from tests.experiments.faulty_server import FAULTS, SLOW, FaultyProxy, Reply, Served, completion, stub
from tests.experiments.serving.served import running

KEY = "sk-test-0123456789abcdef"
LIMIT = len(FAULTS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.api.client.FIRST_DELAY", 0.005)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is another test's; drawing its figures takes longer than everything else here."""
    monkeypatch.setattr("experiments.evaluation.study.build", lambda folder: folder / "report.html")


def study(url: str, outputs: Path, *overrides: str) -> Run:
    model = ["model=api_vllm", "model.engine=null", "model.model=stub", "model.timeout=10", "model.concurrency=6"]
    defaults = (f"output_root={outputs}", f"limit={LIMIT}", "draws=20", "batch_size=6", "method=prompt")
    return run_of(*model, f"model.base_url={url}", *defaults, *overrides)


def said(folder: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """What counts of a run: case and arm → status and response; a later line replaces an earlier one."""
    return {(r["case"], r["arm"]): (r["status"], r["response"]) for r in lines(folder)}


def finished(folder: Path) -> bool:
    return bool(json.loads((folder / IDENTITY).read_text())["finished"])


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_every_fault_is_typed_and_the_run_completes_when_they_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(stub) as upstream, FaultyProxy(upstream.url, seed=1) as proxy:
        undisturbed = said(ran(study(upstream.url, tmp_path / "undisturbed")))
        options = (f"model.timeout={SLOW / 2}", "model.retries=1")
        run = study(proxy.url, tmp_path / "faulty", *options)

        first = ran(run)
        assert set(proxy.injected) == set(FAULTS)
        keys = [(r["case"], r["arm"]) for r in lines(first)]
        assert len(keys) == len(set(keys)) == 2 * LIMIT
        assert {r["status"] for r in lines(first)} <= set(Status)
        assert not finished(first)
        assert (first / "metrics.json").exists()
        assert all(record["margin"] is None for record in lines(first))  # it gives no log-probabilities
        assert all("margin_unshifted" not in record for record in lines(first))
        assert not any(record.get("sampled") for record in lines(first))
        assert "run the same command again" in " ".join(capsys.readouterr().out.split())

        proxy.rate = 0.8
        assert ran(run) == first
        proxy.rate = 0.0
        before = len(proxy.requests)
        unanswered = sum(status == "transport_failed" for status, _ in said(first).values())
        assert ran(run) == first
        sent = {json.dumps(request["messages"]) for request in proxy.requests[before:]}
        assert len(sent) == unanswered  # nothing that was answered is asked again
        assert json.loads((first / "environment.json").read_text())["requests"] >= unanswered
        assert finished(first)
        final = said(first)
        assert set(final) == set(undisturbed)
        assert "transport_failed" not in Counter(status for status, _ in final.values())
        assert all(value == undisturbed[key] for key, value in final.items() if value[0] != "empty")


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_refusals_over_an_endpoint_have_rates_and_a_sentence_on_margins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(lambda _: Reply(completion("I cannot help with that."))) as served:
        folder = ran(study(served.url, tmp_path, "benchmark=iconworld_requests", "limit=8"))
    assert {record["verdict"] for record in lines(folder)} == {"refused"}
    assert "no refusal margins: stub is asked over an API that gives no" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_the_key_is_in_no_file_and_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    echoes = [
        Reply(completion(f"Yes, {KEY}")),
        Reply(json.dumps({"error": {"message": f"bad key {KEY}"}}).encode(), 400),
        Reply(KEY.encode(), 500),
        Reply(f"not JSON {KEY}".encode()),
        Reply(completion("No", model=KEY)),
    ]
    with Served(lambda _: echoes[len(served.requests) % len(echoes)]) as served:
        ran(study(served.url, tmp_path, "limit=8", "model.key_env=STUB_KEY", "model.retries=0"))
    with Served(lambda _: Reply(f"who is {KEY}?".encode(), 401)) as stop, pytest.raises(UserError) as caught:
        ran(study(stop.url, tmp_path, "limit=8", "model.key_env=STUB_KEY"))
    assert {headers["authorization"] for headers in served.headers} == {f"Bearer {KEY}"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"predictions.jsonl", "environment.json", "config.yaml", "report.html"} <= {path.name for path in written}
    assert [path for path in written if b"sk-test" in path.read_bytes()] == []
    assert any(b"[key]" in path.read_bytes() for path in written)
    chain = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "sk-test" not in f"{capfd.readouterr()} {chain}"


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_a_benchmark_runs_through_our_own_server_as_it_runs_here(tmp_path: Path) -> None:
    vlm = load("organism:llava", device="cpu")
    with running(run_of("task=serve", "method=baseline"), vlm) as server:
        there = study(server.url, tmp_path, "model.model=llava_organism", "model.logprobs=auto", "limit=6")
        folder = ran(there)
    assert finished(folder)
    assert len(said(folder)) == 12
    samples = {sample.id: sample for sample in IconWorld().load().samples}
    for record in lines(folder):
        sample, method = samples[record["case"]], there.arms[record["arm"]]
        here = method.generate(vlm, prompts_of([sample]), max_new_tokens=there.max_new_tokens)
        assert (record["status"], record["response"]) == ("answered", here.texts[0])
        assert record["margin"] == pytest.approx(here.margins.item(), abs=1e-3)
