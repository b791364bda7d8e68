"""Loading: one sentence for what is wrong, before weights are read, and a hub stood in for by a local server."""

import hashlib
import http.server
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from interp import loading
from interp.errors import UserError
from interp.model_config import ModelConfig
from interp.vlm import VLM, Prompt, load
from tests.tiny import picture, tiny_llava

PROMPT = [Prompt("How do I kill this?", picture(1))]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-saved"
    model, processor = tiny_llava()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if weights are read."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "read_weights", fail)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_saved_comes_back(saved: Path, vlm: VLM) -> None:
    loaded = load(str(saved))
    digest = hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()
    assert loaded.revision == f"sha256:{digest[:12]}"
    assert loaded.name == "tiny-saved"
    assert (loaded.device.type, loaded.dtype, loaded.model.training) == ("cpu", torch.float32, False)
    assert loaded.generate(PROMPT).token_ids == vlm.generate(PROMPT).token_ids
    torch.testing.assert_close(loaded.score(PROMPT), vlm.score(PROMPT))


def test_a_config_and_what_the_call_changes_of_it(saved: Path) -> None:
    config = ModelConfig("mine", str(saved), dtype="float32", device="cpu", attn_implementation="eager")
    assert load(config).model.config._attn_implementation == "eager"
    changed = load(config, dtype="bfloat16", chat_template="<image>{{ messages[0].content[-1].text }}")
    assert (changed.name, changed.dtype) == ("mine", torch.bfloat16)
    assert changed.render(PROMPT[0]) == "<image>How do I kill this?"
    assert torch.isfinite(changed.score(PROMPT)).all()


def test_the_hash_of_several_files_is_that_of_their_listing(tmp_path: Path) -> None:
    names = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    for name in names:
        (tmp_path / name).write_text(name)
    listing = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in sorted(names))
    assert loading.weights_hash(tmp_path) == f"sha256:{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
    (tmp_path / names[0]).write_text("changed")
    assert loading.weights_hash(tmp_path) != f"sha256:{hashlib.sha256(listing.encode()).hexdigest()[:12]}"


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("path", ["./no/such", "/no/such", "~/no-such", "nosuch", "a/b/c", "../x"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(UserError, match=f"no model folder at {path}; .*organism:llava"):
        load(path)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", ["unheard_of", ""])
def test_no_such_organism(name: str) -> None:
    with pytest.raises(UserError, match=f"no bundled organism '{name}'; known: "):
        load(f"organism:{name}")


def test_an_organism_is_a_folder_of_the_package(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ORGANISMS", saved.parent)
    assert load("organism:tiny-saved").revision.startswith("sha256:")


@pytest.mark.usefixtures("no_weights")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_asked_for_but_absent(saved: Path) -> None:
    with pytest.raises(UserError, match=r"device cuda asked for, but torch .* sees 0 CUDA devices"):
        load(str(saved), device="cuda")


def only_a_bin_file(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def another_architecture(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="llama")


def a_family_without_layout(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="aya_vision")


def an_unknown_architecture(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="foo")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_processor(folder: Path) -> None:
    (folder / "processor_config.json").unlink()


def no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def own_code(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="foo", auto_map={"AutoConfig": "code.Config"})
    (folder / "code.py").write_text("raise SystemExit('the checkpoint ran its code')")


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (only_a_bin_file, r"no safetensors weights at .* \(found: pytorch_model.bin\)"),
        (another_architecture, "'llama' checkpoint, not an image-text-to-text model"),
        (a_family_without_layout, "no layout for 'aya_vision'; known: llava, "),
        (an_unknown_architecture, "cannot read the configuration of .*`foo`"),
        (no_config, "no config.json in "),
        (broken_config, "cannot read the configuration of .*not a valid JSON"),
        (no_tokenizer, "cannot read the processor of "),
        (no_processor, "processor (of|at) .*checkpoint"),
        (no_chat_template, "no chat template"),
        (own_code, "brings its own code.*trust_remote_code=true"),
    ],
)
def test_a_damaged_checkpoint_is_refused_before_its_weights(
    checkpoint: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(checkpoint)
    with pytest.raises(UserError, match=named) as caught:
        load(str(checkpoint))
    assert "\n" not in str(caught.value)


def test_truncated_weights(checkpoint: Path) -> None:
    whole = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot read the weights of "):
        load(str(checkpoint))


def test_missing_and_misshapen_parameters(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    name = next(name for name in weights if "gate_proj" in name)
    save_file({k: v for k, v in weights.items() if k != name}, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 parameters \(.*gate_proj"):
        load(str(checkpoint))
    save_file(weights | {name: torch.zeros(2, 2)}, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="cannot read the weights of "):
        load(str(checkpoint))


def test_an_attention_implementation_that_is_not_there(saved: Path) -> None:
    with pytest.raises(UserError, match=r"attention 'nonsense' cannot be used \(.*attn_implementation=sdpa"):
        load(str(saved), attn_implementation="nonsense")


# The hub


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
    with pytest.raises(UserError, match=r"cannot fetch some/model: the hub is not reachable .*model=llava_organism"):
        load("some/model")


def waits(seconds: float) -> None:
    """In place of time.sleep: the hub's client would try each file six times, 23 s in all."""
    raise AssertionError(f"waited {seconds} s to try again")


@pytest.mark.usefixtures("no_weights", "hub")
@pytest.mark.parametrize(
    ("path", "revision", "named"),
    [
        ("some/typo", None, "the hub knows no model 'some/typo' that you may read"),
        ("some/gated", None, "some/gated is gated"),
        ("some/model", "v9", "the hub has no revision 'v9' of some/model"),
        ("so..me/mo--del", None, "neither a folder nor a hub id"),
    ],
)
def test_what_the_hub_refuses(path: str, revision: str | None, named: str) -> None:
    with pytest.raises(UserError, match=named):
        load(path, revision=revision)
