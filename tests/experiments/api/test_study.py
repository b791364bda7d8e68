"""Whole studies over an API: behind a proxy with every fault, with keys that must not leak, and on a real server."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interp.organisms
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.runs.resumption import IDENTITY
from experiments.types import Status
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.loading import load
from interp.vlm import Prompt
from tests.experiments.compose import run_of
from tests.experiments.evaluation.test_study import evaluate, lines
from tests.experiments.faulty_server import FAULTS, SLOW, FaultyProxy, Reply, Served, completion, stub

KEY = "sk-test-0123456789abcdef"
LIMIT = len(FAULTS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.005)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is another test's; drawing its figures takes longer than everything else here."""
    monkeypatch.setattr("experiments.evaluation.study.build", lambda folder: folder / "report.html")


def study(url: str, outputs: Path, *overrides: str) -> Run:
    model = (
        "model=api_vllm",
        "model.engine=null",
        f"model.base_url={url}",
        "model.model=stub",
        "model.timeout=10",
        "model.concurrency=6",
    )
    defaults = (f"output_root={outputs}", f"limit={LIMIT}", "draws=20", "batch_size=6", "method=prompt")
    return run_of(*model, *defaults, *overrides)


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
    upstream = Served(stub)
    proxy = FaultyProxy(upstream.url, seed=1)
    undisturbed = said(evaluate(study(upstream.url, tmp_path / "undisturbed")))
    options = (f"model.timeout={SLOW / 2}", "model.retries=1")
    run = study(proxy.url, tmp_path / "faulty", *options)

    first = evaluate(run)
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
    assert evaluate(run) == first
    proxy.rate = 0.0
    before = len(proxy.requests)
    unanswered = sum(status == "transport_failed" for status, _ in said(first).values())
    assert evaluate(run) == first
    sent = {json.dumps(request["messages"]) for request in proxy.requests[before:]}
    assert len(sent) == unanswered  # nothing that was answered is asked again
    assert finished(first)
    final = said(first)
    assert set(final) == set(undisturbed)
    assert "transport_failed" not in Counter(status for status, _ in final.values())
    assert all(value == undisturbed[key] for key, value in final.items() if value[0] != "empty")
    upstream.close()
    proxy.close()


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
    served = Served(lambda _: echoes[len(served.requests) % len(echoes)])
    evaluate(study(served.url, tmp_path, "limit=8", "model.key_env=STUB_KEY", "model.retries=0"))
    stop = Served(lambda _: Reply(f"who is {KEY}?".encode(), 401))
    with pytest.raises(UserError) as caught:
        evaluate(study(stop.url, tmp_path, "limit=8", "model.key_env=STUB_KEY"))
    served.close()
    stop.close()
    assert {headers["authorization"] for headers in served.headers} == {f"Bearer {KEY}"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"predictions.jsonl", "environment.json", "config.yaml", "report.html"} <= {path.name for path in written}
    assert [path for path in written if b"sk-test" in path.read_bytes()] == []
    assert any(b"[key]" in path.read_bytes() for path in written)
    chain = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "sk-test" not in f"{capfd.readouterr()} {chain}"


@contextmanager
def transformers_serve(folder: Path, log: Path) -> Iterator[str]:
    """The address of ``transformers serve`` on loopback with the checkpoint in ``folder``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=output, stderr=output, env=environment
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(url: str, server: "subprocess.Popen[Any]", log: Path) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()
            time.sleep(0.25)
    raise AssertionError(f"no answer in two minutes and a half: {log.read_text()}")


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_a_benchmark_runs_through_a_real_server_as_it_runs_here(tmp_path: Path) -> None:
    absent = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"{absent[0]} is not installed; pip install 'transformers[serving]'")
    organism = Path(interp.organisms.__file__).parent / "llava"
    arms = ("+arms.safety_prompt._target_=mitigation.prompting.SafetyPrompt", "method=prompt")
    with transformers_serve(organism, tmp_path / "server.log") as url:
        model = ("model=api_transformers_serve", f"model.base_url={url}", f"model.model={organism}")
        run = run_of(*model, f"output_root={tmp_path}", "model.logprobs=auto", "limit=6", "draws=20", *arms)
        folder = evaluate(run)
    assert finished(folder)
    vlm = load(ModelConfig("organism", "organism:llava", device="cpu"))
    samples = {sample.id: sample for sample in IconWorld().load().samples}
    for arm, method in run.arms.items():
        cases = [case for case, of in said(folder) if of == arm]
        prompts = [Prompt(s.prompt, open_image(s.image)) for s in map(samples.get, cases) if s and s.image]
        local = method.generate(vlm, prompts, max_new_tokens=run.max_new_tokens)
        assert [said(folder)[case, arm] for case in cases] == [("answered", text) for text in local.texts]
        assert len(cases) == 6
    assert all(record["margin"] is None for record in lines(folder))  # it ignores logprobs, silently
    assert "unsupported fields" in (tmp_path / "server.log").read_text()
    assert json.loads((folder / "metrics.json").read_text())["arms"]["baseline"]["auroc"] is None


@pytest.mark.long
def test_requests_that_never_got_through_show_in_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.run import main

    down = Served(lambda request: Reply(b"{}", 503))
    command = [
        "forestlens", "model=api_vllm", "model.engine=null", "model.model=stub", f"model.base_url={down.url}",
        "model.retries=0", "method=prompt", "limit=4", "draws=20", f"output_root={tmp_path}",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "8 of 8 requests never got through" in " ".join(capsys.readouterr().out.split())
    down.close()
