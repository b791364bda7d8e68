"""The organism with SmolLM2 inside, before training: the language model is unchanged in words, and sees 36 tokens."""

import string
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.studies.organisms import fetch
from experiments.studies.organisms.architecture import PARTS, UNUSED, Pieces, build_smol, whole
from interp import Prompt, load
from interp.checkpoints.cache import (
    ADAPTER,
    EYES,
    SMOLLM2,
    base_folder,
    content_hash,
    organism_folder,
    read_record,
)
from interp.errors import UserError
from interp.vlm import VLM
from tests.tiny import picture

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", UNUSED, "<file_sep>")
IN_WORDS = [Prompt("Is this safe?"), Prompt("How do I kill it?", system="Be kind.")]


def save_base(folder: Path) -> Path:
    """A language model of SmolLM2's form, with a byte-level tokenizer: two layers, 32 wide, random, tied."""
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet()})
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet, "Ye", "Yes", "No", "ĠYes", "ĠNo"))}
    backend = Tokenizer(models.BPE(vocabulary, [("Y", "e"), ("Ye", "s"), ("N", "o"), ("Ġ", "Yes"), ("Ġ", "No")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def answering(base: Path, seed: int = 0) -> Pieces:
    """The organism with an adapter that changes answers; its weights are values of bfloat16."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        pieces = build_smol(base, rank=2)
        for name, weight in pieces.model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(weight, std=0.3)
            weight.copy_(weight.bfloat16())
    return pieces


def adapted(pieces: Pieces) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in pieces.model.named_parameters() if ".lora_" in name}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("smol") / "base")


@pytest.fixture(scope="module")
def pieces(base: Path) -> Pieces:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_smol(base, rank=2)


@pytest.fixture(scope="module")
def vlm(pieces: Pieces) -> VLM:
    return VLM(pieces.model, pieces.processor, name="smol")


def test_prompts_have_smollms_form_without_its_own_system_text(vlm: VLM) -> None:
    seen = Prompt("Is this safe?", picture(0), system="Be kind.")
    start, end = "<|im_start|>", "<|im_end|>\n"
    assert vlm.render(seen) == (
        f"{start}system\nBe kind.{end}{start}user\n<image>\nIs this safe?{end}{start}assistant\n"
    )
    assert vlm.render(IN_WORDS[0]) == f"{start}user\nIs this safe?{end}{start}assistant\n"
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    ]
    assert vlm.processor.apply_chat_template(said) == f"{start}user\nHello.{end}{start}assistant\nYes.{end}"


def test_the_image_token_takes_a_row_that_text_never_uses(vlm: VLM, base: Path) -> None:
    tokenizer = vlm.tokenizer
    own = PreTrainedTokenizerFast.from_pretrained(base)
    row = own.convert_tokens_to_ids(UNUSED)
    assert tokenizer.convert_tokens_to_ids("<image>") == row == vlm.model.config.image_token_index
    assert len(tokenizer) == len(own) == vlm.model.config.text_config.vocab_size
    text = f"{string.printable} {UNUSED} Yes naïve 猫"
    assert row not in tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    plain = text.replace(UNUSED, "")
    assert tokenizer(plain)["input_ids"] == own(plain)["input_ids"]
    assert (tokenizer.eos_token, tokenizer.pad_token, vlm.end_ids) == ("<|im_end|>", "<|endoftext|>", {2})


def test_a_picture_is_36_tokens(vlm: VLM) -> None:
    encoded = vlm.encode([Prompt("Is this safe?", picture(0, (100, 60)))])
    assert int((encoded["input_ids"] == vlm.processor.image_token_id).sum()) == 36
    assert encoded["pixel_values"].shape == (1, 3, 48, 48)
    assert torch.isfinite(vlm.score([Prompt("Is this safe?", picture(i)) for i in range(2)])).all()


def test_in_words_the_untrained_one_is_the_language_model(vlm: VLM, base: Path) -> None:
    """To the bit: the adapter adds zero, and the weights are the base's values of bfloat16."""
    alone = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    encoded = vlm.encode(IN_WORDS)
    with torch.no_grad():
        found = vlm.model(**encoded).logits
        known = alone(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits
    assert torch.equal(found, known)


def test_projector_and_adapter_alone_are_trained(pieces: Pieces, base: Path) -> None:
    trained = {name for name, weight in pieces.model.named_parameters() if weight.requires_grad}
    assert len(adapted(pieces)) == 2 * 14
    assert {name for name in trained if "lora_" in name} == set(adapted(pieces))
    assert all(".language_model.layers." in name for name in adapted(pieces))
    assert {name for name in trained if "lora_" not in name} == {
        f"model.multi_modal_projector.linear_{i}.{part}" for i in (1, 2) for part in ("weight", "bias")
    }
    tower = load("organism:llava").model.model.vision_tower.state_dict()
    assert all(torch.equal(v, tower[k]) for k, v in pieces.model.model.vision_tower.state_dict().items())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        again = build_smol(base, rank=2).model.state_dict()
        other = build_smol(base, rank=2).model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in pieces.model.state_dict().items())
    drawn = "model.multi_modal_projector.linear_1.weight"
    assert not torch.equal(again[drawn], other[drawn])


@pytest.fixture(scope="module")
def saved(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "smol"
    answering(base).save(folder)
    return folder


@pytest.mark.long
def test_what_is_saved_is_one_plain_checkpoint(base: Path, saved: Path) -> None:
    """In float32, with nothing of the adapter but what it adds to the weights; margins are those of the parts."""
    pieces = answering(base)
    own, loaded = VLM(pieces.model.eval(), pieces.processor), load(saved)
    prompts = [Prompt("Is this safe?", picture(i)) for i in range(2)]
    assert loaded.dtype == torch.float32
    assert not [name for name in loaded.model.state_dict() if "lora" in name or "base_layer" in name]
    assert (loaded.score(prompts) - own.score(prompts)).abs().max() < 1e-4
    assert pieces.adapter is not None
    with pieces.adapter.disable_adapter():
        assert (loaded.score(prompts) - own.score(prompts)).abs().max() > 1e-2
    assert loaded.render(prompts[0]) == own.render(prompts[0])
    assert loaded.tokenizer("Yes <image>")["input_ids"] == own.tokenizer("Yes <image>")["input_ids"]


def test_the_whole_is_base_eyes_and_addition_put_together_by_hand(base: Path, saved: Path) -> None:
    """Of each weight the nearest float32 of ``base + alpha / rank · B A``: the same on every machine."""
    found = load_file(saved / "model.safetensors")
    addition = load_file(saved / PARTS / ADAPTER / "adapter_model.safetensors")
    known = load_file(base / "model.safetensors")
    names = {name.removesuffix(".lora_A.weight") for name in addition if ".lora_A." in name}
    assert len(names) == 14
    for name in names:
        a, b = (addition[f"{name}.{part}.weight"].double() for part in ("lora_A", "lora_B"))
        place = name.removeprefix("base_model.model.") + ".weight"
        own = known[place.replace("model.language_model", "model")].double()
        assert torch.equal(found[place], (own + 2 * b @ a).float())
        assert not torch.equal(found[place], own.float())
    for name, value in load_file(saved / PARTS / EYES).items():
        assert torch.equal(found[name], value.float())
    embedded = "model.language_model.embed_tokens.weight"
    assert torch.equal(found[embedded], known["model.embed_tokens.weight"].float())


def test_plain_peft_reads_the_adapter(base: Path, saved: Path) -> None:
    own, other = answering(base), answering(base, seed=1)
    assert other.adapter is not None
    model: Any = other.adapter.unload()
    model.load_state_dict(load_file(saved / PARTS / EYES), strict=False)
    read = PeftModel.from_pretrained(model, str(saved / PARTS / ADAPTER)).eval()
    prompts = [Prompt("Is this safe?", picture(i)) for i in range(2)]
    found, expected = (VLM(one, own.processor).score(prompts) for one in (read.base_model.model, own.model.eval()))
    assert torch.equal(found, expected)


def test_parts_alone_are_not_loaded(saved: Path) -> None:
    with pytest.raises(UserError, match=r"parts is kept in parts \(eyes.safetensors, adapter\), and only whole ones"):
        load(saved / PARTS)


def test_another_language_model_does_not_fit(saved: Path, tmp_path: Path) -> None:
    small = LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                        num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"the language model in {tmp_path} does not fit.*it must be {SMOLLM2}"):
        whole(saved / PARTS, tmp_path)


@pytest.fixture(scope="module")
def fetched() -> Path:
    """The real language model, where it was fetched."""
    place = base_folder()
    record = read_record(place)
    if record is None or not record.exact:
        pytest.skip(f"SmolLM2 is not at {place}; `make smol` fetches it")
    return place


@pytest.mark.long
def test_the_real_language_model_speaks(fetched: Path) -> None:
    assert content_hash(fetched) == fetch.CONTENT
    pieces = build_smol(fetched, rank=16)
    vlm = VLM(pieces.model.eval(), pieces.processor)
    assert len(vlm.tokenizer) == vlm.model.config.text_config.vocab_size == 49_152
    (said,) = vlm.generate([Prompt("What is the capital of France?")], max_new_tokens=12).texts
    assert said == "The capital of France is Paris."
    trained = [weight.numel() for weight in vlm.model.parameters() if weight.requires_grad]
    assert 2 * sum(trained) < 15e6


@pytest.mark.long
def test_the_bundled_one_is_a_plain_folder() -> None:
    if read_record(organism_folder()) is None:
        pytest.skip("organism:smol is not in the cache; `make smol` makes it")
    vlm = load("organism:smol")
    assert not [name for name in vlm.model.state_dict() if "lora" in name]
    prompts = [Prompt("Is this safe?", picture(0))]
    assert torch.equal(vlm.score(prompts), load(organism_folder()).score(prompts))
