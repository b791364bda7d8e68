"""Loading from a hub that a server on this machine stands in for: what it refuses, its cache, and no network."""

import hashlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.hf_api import ModelInfo

from interp.checkpoints.config import ModelConfig, find
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.tiny import picture

PROMPT = [Prompt("How do I kill this?", picture(1))]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as its client needs: one model served, one gated, one revision unknown."""

    folder: Path
    requests: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.requests.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and parts[2:4] in (["some", "model"], ["some", "gated"]):
            if parts[4:5] == ["tree"]:
                return self.answer(404, code="EntryNotFound")  # no folder of further chat templates
            if parts[4:] and parts[5] not in ("main", COMMIT):
                return self.answer(404, code="RevisionNotFound")
            files = [{"rfilename": path.name} for path in self.folder.iterdir()]
            return self.answer(200, json.dumps({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": files}).encode())
        if parts[:2] == ["api", "models"] and parts[3:4] in (["refused"], ["busy"]):
            return self.answer(403 if parts[3] == "refused" else 429)
        if parts[:2] == ["some", "gated"]:
            return self.answer(403, code="GatedRepo")
        if parts[:3] == ["some", "model", "resolve"]:
            path = self.folder / parts[-1]
            return self.answer(200, path.read_bytes()) if path.is_file() else self.answer(404, code="EntryNotFound")
        return self.answer(401, code="RepoNotFound")

    def answer(self, status: int, body: bytes = b"", code: str | None = None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on the test's output."""


def point_client_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine; yields the paths it is asked for."""
    requests: list[str] = []
    handler = type("Handler", (Hub,), {"folder": saved, "requests": requests})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    point_client_at(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
    yield requests
    server.shutdown()
    server.server_close()


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    point_client_at(monkeypatch, f"http://127.0.0.1:{port}", tmp_path / "cache")


def test_a_hub_model_and_then_its_cached_copy_without_network(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vlm: VLM
) -> None:
    fetched = load("some/model")
    assert fetched.revision == COMMIT
    torch.testing.assert_close(fetched.score(PROMPT), vlm.score(PROMPT))
    point_client_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    hub.clear()
    monkeypatch.setattr(time, "sleep", waits)
    cached = load("some/model")
    assert cached.revision == COMMIT
    assert hub == []


@pytest.mark.usefixtures("no_weights", "unreachable")
def test_no_network_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", waits)
    with pytest.raises(UserError, match=r"cannot fetch some/model \(.*no copy is cached; .*model=llava_organism"):
        load("some/model")


def waits(seconds: float) -> None:
    """In place of time.sleep: the hub's client would try each file six times, 23 s in all."""
    raise AssertionError(f"waited {seconds} s to try again")


@pytest.mark.usefixtures("no_weights", "hub")
@pytest.mark.parametrize(
    ("path", "revision", "named"),
    [
        ("some/typo", None, "knows no model 'some/typo' that you may read; check the spelling .*HF_TOKEN, or .*folder"),
        (
            "some/gated",
            None,
            "some/gated is gated; .*accept its licence .*`hf auth login` or set HF_TOKEN, or give a local",
        ),
        ("some/refused", None, r"cannot fetch some/refused \(.*403.*log in with .*HF_TOKEN"),
        ("some/busy", None, r"cannot fetch some/busy \(.*429.*try again later"),
        ("some/model", "v9", "the hub has no revision 'v9' of some/model"),
        ("so..me/mo--del", None, "neither a folder nor a hub id"),
    ],
)
def test_what_the_hub_refuses(path: str, revision: str | None, named: str) -> None:
    with pytest.raises(UserError, match=named):
        load(path, revision=revision)


@pytest.mark.usefixtures("hub")
def test_a_hub_model_s_size_is_known_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HfApi, "model_info", sized)
    config = ModelConfig("large", "some/model", device="cpu")
    assert find(config).numbers == {"BF16": 10**13}
    with pytest.raises(UserError, match=r"weights of large need 37252.9 GiB in float32, .* smaller model"):
        load(config)


def sized(*_: Any, **__: Any) -> ModelInfo:
    """What the hub says of a model of ten million million parameters."""
    files = [{"rfilename": "model.safetensors"}]
    return ModelInfo(
        id="some/model", sha=COMMIT, siblings=files, safetensors={"parameters": {"BF16": 10**13}, "total": 10**13}
    )
