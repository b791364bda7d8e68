"""Where the cache is, what it says of its folders, and how weights are hashed."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from interp.checkpoints import config as cache
from interp.checkpoints.config import Record, content_hash
from interp.errors import UserError


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORESTLENS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_root() == Path.home() / ".cache" / "forestlens"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.base_folder() == tmp_path / "forestlens" / "smollm2-135m-instruct"
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "own"))
    assert cache.organism_folder() == tmp_path / "own" / "organism-smol"


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = Record("a/b", "sha256:00", "somewhere", parts="sha256:11")
    cache.write_record(tmp_path, record)
    assert cache.read_record(tmp_path) == record
    assert cache.read_record(tmp_path / "none") is None


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    """One file or several, float32 or bfloat16: the same; one other value: another."""
    config = LlamaConfig(vocab_size=9, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path / "one")
    before = content_hash(tmp_path / "one")
    model.float().save_pretrained(tmp_path / "wide", max_shard_size="5KB")
    assert len(list((tmp_path / "wide").glob("*.safetensors"))) > 1
    assert content_hash(tmp_path / "wide") == before
    file = tmp_path / "one" / "model.safetensors"
    between = {name: value.float() * (1 + 2**-12) for name, value in load_file(file).items()}
    save_file(between, file)
    assert content_hash(tmp_path / "one") == before  # less than a bfloat16 holds
    state = load_file(file)
    state["model.norm.weight"][3] += 1
    save_file(state, file)
    assert content_hash(tmp_path / "one") != before
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=f"cannot read the weights in {tmp_path / 'one'}"):
        content_hash(tmp_path / "one")
    file.unlink()
    with pytest.raises(UserError, match="no safetensors"):
        content_hash(tmp_path / "one")
