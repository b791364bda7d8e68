"""What fits is asked before weights are read; a spread-out model answers as one in one place."""

from pathlib import Path

import accelerate
import pytest
import torch
import transformers

from interp.attention.record import record_attention
from interp.checkpoints import config
from interp.checkpoints.config import GIB, ModelConfig, check_room, free_memory, stored_numbers
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill this?", picture(1)), Prompt("Is it safe?", picture(2))]
SEVEN = {"BF16": 7 * 10**9}
CPU = torch.device("cpu")


def test_the_headers_say_how_many_numbers_there_are(saved: Path, vlm: VLM) -> None:
    assert stored_numbers(saved) == {"F32": sum(weight.numel() for weight in vlm.model.parameters())}


def test_too_little_memory_names_the_model_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "free_memory", lambda _: 20 * GIB)
    named = r"weights of big need 26.1 GiB in float32, .* 0.5 GiB more, and cpu has 20.0 GiB free; .*bfloat16, .*auto"
    with pytest.raises(UserError, match=named):
        check_room(ModelConfig("big", "a/b"), SEVEN, "float32", CPU, GIB // 2)


def test_what_fits_or_is_not_known_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "free_memory", lambda _: 14 * GIB)
    check_room(ModelConfig("big", "a/b"), SEVEN, "bfloat16", CPU)
    check_room(ModelConfig("unknown", "a/b"), None, "float32", CPU)
    with pytest.raises(UserError, match=r"stated need 32.0 GiB in float32"):
        check_room(ModelConfig("stated", "a/b", memory_gib=16.0), None, "float32", CPU)
    monkeypatch.setattr(config, "free_memory", lambda _: None)
    check_room(ModelConfig("big", "a/b"), SEVEN, "float32", torch.device("mps"))


@pytest.mark.usefixtures("no_weights")
def test_loading_asks_before_it_reads(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "free_memory", lambda _: 1000)
    with pytest.raises(UserError, match=r"weights of tiny-saved need 0.0 GiB in float32, .* cpu has 0.0 GiB free"):
        load(str(saved), device="cpu")


def test_free_memory_stays_within_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < (free_memory(CPU) or 0) < 2**50
    for name, text in {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 5\ninactive_file 300",
    }.items():
        (tmp_path / name).write_text(text)
    assert config._container(tmp_path) == [400]
    (tmp_path / "memory.max").write_text("max\n")
    assert config._container(tmp_path) == []
    monkeypatch.setattr(config, "_container", lambda: [7])
    assert free_memory(CPU) == 7


@pytest.mark.parametrize("kind", ["auto", "sequential"])
def test_a_map_that_would_need_the_disk_is_refused(saved: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (accelerate.utils, accelerate.utils.modeling, transformers.integrations.accelerate):
        monkeypatch.setattr(module, "get_max_memory", lambda given=None: {"cpu": 20_000})
    config = ModelConfig("spread", str(saved), device_map=kind)
    with pytest.raises(UserError, match=r"weights of spread need 0.0 GiB and do not fit into .*smaller model"):
        load(config)


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
