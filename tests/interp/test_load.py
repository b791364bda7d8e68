"""Loading: what comes back, and one sentence for what is wrong, said before weights are read."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import set_bounds
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import picture

PROMPT = [Prompt("How do I kill this?", picture(1))]


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


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


def test_keywords_of_the_template_change_prompt_and_identity(saved: Path) -> None:
    asked = "<image>How do I kill this?"
    switched = "<image>{{ messages[0].content[-1].text }}{% if not think %}<no>{% endif %}"
    on, off = (load(saved, chat_template=switched, template={"think": think}) for think in (True, False))
    assert [one.render(PROMPT[0]) for one in (on, off)] == [asked, f"{asked}<no>"]
    assert on.identity != off.identity


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_devices(device: str) -> None:
    assert ModelConfig("tiny", "a/b", device=device).device == device


@pytest.mark.usefixtures("no_weights")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_asked_for_but_absent(saved: Path) -> None:
    with pytest.raises(
        UserError, match=r"device cuda .* torch .* sees 0 CUDA devices; for tiny-saved set model.device=cpu"
    ):
        load(str(saved), device="cuda")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **changes)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def own_code(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="foo", auto_map={"AutoConfig": "code.Config"})
    (folder / "code.py").write_text("raise SystemExit('the checkpoint ran its code')")


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            r"no safetensors weights at .* \(found: pytorch_model.bin\)",
        ),
        (config(model_type="llama"), "'llama' checkpoint, not an image-text-to-text model"),
        (
            config(model_type="instructblip", text_config={"model_type": "t5"}),
            "'instructblip' with an encoder-decoder language model; only decoder-only",
        ),
        (config(model_type="foo"), "cannot read the configuration of .*`foo`"),
        (without("config.json"), "cannot read the configuration of "),
        (
            lambda folder: (folder / "config.json").write_text("{"),
            "cannot read the configuration of .*not a valid JSON",
        ),
        (without("tokenizer.json"), "cannot read the processor of "),
        (without("processor_config.json"), "processor (of|at) .*checkpoint"),
        (without("chat_template.jinja"), "no chat template"),
        (own_code, "brings its own code, which is never run"),
    ],
)
def test_a_damaged_checkpoint_is_refused_before_its_weights(
    checkpoint: Path, damage: Callable[[Path], object], named: str
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


@pytest.mark.usefixtures("no_weights")
def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot read the configuration of {tmp_path}"):
        load(str(tmp_path))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_bound_changes_how_many_tokens_a_picture_has(family: str) -> None:
    vlm = VLM(*FAMILIES[family]())

    def tokens(**bounds: int) -> int:
        set_bounds(vlm.processor.image_processor, ModelConfig(family, "a/b", **bounds))  # type: ignore[arg-type]
        encoded = vlm.encode([Prompt("Is this safe?", picture(1, (160, 96)))])
        return int((encoded["input_ids"] == vlm.module_map.image_token_id(vlm.model.config)).sum())

    assert tokens() > tokens(max_pixels=32 * 32)
    assert tokens(min_pixels=96 * 96, max_pixels=128 * 128) > tokens(min_pixels=1, max_pixels=32 * 32)
    with pytest.raises(UserError, match="at least 9 and at most 4 pixels"):
        tokens(min_pixels=9, max_pixels=4)
