"""What fits is asked before weights are read; a spread-out model answers as one in one place."""

import json
from pathlib import Path

import accelerate
import pytest
import torch
from transformers import AutoConfig

from interp.attention.record import record_attention
from interp.checkpoints import load as loading
from interp.checkpoints import memory
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.memory import (
    GIB,
    check_room,
    device_map,
    free_memory,
    stored_numbers,
)
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill this?", picture(1)), Prompt("Is it safe?", picture(2))]
SEVEN = {"BF16": 7 * 10**9}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_headers_say_how_many_numbers_there_are(saved: Path, vlm: VLM) -> None:
    assert stored_numbers(saved) == {"F32": sum(weight.numel() for weight in vlm.model.parameters())}


@pytest.mark.parametrize(
    ("free", "dtype", "device", "said"),
    [
        (
            20,
            "float32",
            CPU,
            r"weights of big need 26.1 GiB in float32 and cpu has 20.0 GiB free; .*dtype=bfloat16 \(13",
        ),
        (10, "float32", CPU, "^(?!.*dtype=).*choose a smaller model or use a machine with a GPU"),
        (10, "bfloat16", CUDA, "big need 13.0 GiB in bfloat16 and cuda has 10.0 .*smaller model or .*device_map=auto"),
    ],
)
def test_too_little_memory_names_the_model_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, free: int, dtype: str, device: torch.device, said: str
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: free * GIB)
    with pytest.raises(UserError, match=said):
        check_room(ModelConfig("big", "a/b"), SEVEN, dtype, device)


def test_what_fits_or_is_not_known_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 14 * GIB)
    check_room(ModelConfig("big", "a/b"), SEVEN, "bfloat16", CPU)
    check_room(ModelConfig("unknown", "a/b"), None, "float32", CPU)
    with pytest.raises(UserError, match=r"stated need 32.0 GiB in float32"):
        check_room(ModelConfig("stated", "a/b", memory_gib=16.0), None, "float32", CPU)
    monkeypatch.setattr(memory, "free_memory", lambda _: None)
    check_room(ModelConfig("big", "a/b"), SEVEN, "float32", torch.device("mps"))


@pytest.mark.usefixtures("no_weights")
def test_loading_asks_before_it_reads(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 1000)
    with pytest.raises(UserError, match=r"weights of tiny-saved need 0.0 GiB in float32 and cpu has 0.0 GiB free"):
        load(str(saved), device="cpu")


def test_free_memory_stays_within_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < (free_memory(CPU) or 0) < 2**50
    for name, text in {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 5\ninactive_file 300",
    }.items():
        (tmp_path / name).write_text(text)
    assert memory._container(tmp_path) == [400]
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container(tmp_path) == []
    monkeypatch.setattr(memory, "_container", lambda: [7])
    assert free_memory(CPU) == 7


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("kind", ["auto", "sequential"])
def test_a_map_that_would_need_the_disk_is_refused(saved: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (accelerate.utils, accelerate.utils.modeling):
        monkeypatch.setattr(module, "get_max_memory", lambda given=None: {"cpu": 20_000})
    config = ModelConfig("spread", str(saved), device_map=kind)
    with pytest.raises(UserError, match=r"weights of spread need 0.0 GiB and do not fit here \(.*cpu: .*smaller model"):
        load(config)


def test_cards_are_filled_before_this_machine(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards that are not there; the map is made, and nothing is loaded by it."""
    room = {0: 70_000, 1: 25_000, "cpu": 10**9}
    monkeypatch.setattr(accelerate.utils, "get_max_memory", lambda given=None: given or room)
    found = AutoConfig.from_pretrained(saved)
    config = ModelConfig("spread", str(saved), device_map="sequential")
    places = device_map(config, found, torch.float32)
    assert places is not None
    assert set(places.values()) == {0, 1, "cpu"}
    apart = list(places.values()).count("cpu")
    assert str(memory.offloaded(places)).startswith(f"{apart} of {len(places)} parts of the model stay in this machine")
    assert memory.offloaded({"": "cpu"}) is memory.offloaded({"a": 0, "b": 1}) is None


def test_weights_that_are_kept_elsewhere_answer_alike(vlm: VLM) -> None:
    """accelerate's hooks bring each layer's weights to where it is computed: here from the CPU to the CPU."""
    with record_attention(vlm) as plain:
        expected = vlm.generate(PROMPTS)
    accelerate.cpu_offload(vlm.model, execution_device=CPU)
    assert vlm.model.device == torch.device("meta")
    assert vlm.device == CPU
    with record_attention(vlm) as record:
        answers = vlm.generate(PROMPTS)
    assert answers.token_ids == expected.token_ids
    torch.testing.assert_close(answers.margins, expected.margins)
    assert record.masses.equals(plain.masses)


def test_a_lost_part_is_named_before_weights_are_read(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    (tmp_path / "model-1.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"lacks 1 of its weight files \(model-2.safetensors"):
        loading.check_format(loading.Source(str(tmp_path)))
    index.write_text("[]")
    with pytest.raises(UserError, match="names the files of the weights"):
        loading.check_format(loading.Source(str(tmp_path)))
