"""The organism with SmolLM2 inside, before training: the language model is unchanged in words, and sees 36 tokens."""

import string
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.organisms import fetch
from experiments.organisms.architecture import UNUSED, Pieces, build_smol
from interp import Prompt, load
from interp.checkpoints import hub
from interp.checkpoints.composed import SMOLLM2, base_folder, content_hash, read_record
from interp.checkpoints.lora import adapted_layers
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
    assert len(adapted_layers(pieces.model)) == 14
    assert {name.rpartition(".")[0] for name in trained if "lora_" in name} == set(adapted_layers(pieces.model))
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


def test_what_is_saved_is_composed_with_the_cached_language_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    pieces = build_smol(base, rank=2)
    for layer in adapted_layers(pieces.model).values():
        torch.nn.init.normal_(layer.lora_B, std=0.3)
    with torch.no_grad():
        for weight in pieces.model.parameters():
            weight.copy_(weight.bfloat16())
    pieces.save(tmp_path / "smol")
    base_folder(SMOLLM2).parent.mkdir()
    base_folder(SMOLLM2).symlink_to(base)
    loaded = load(tmp_path / "smol")
    prompts = [Prompt("Is this safe?", picture(i)) for i in range(2)]
    own = VLM(pieces.model.eval(), pieces.processor)
    assert torch.equal(loaded.score(prompts), own.score(prompts))
    assert loaded.render(prompts[0]) == own.render(prompts[0])
    assert loaded.tokenizer("Yes <image>")["input_ids"] == own.tokenizer("Yes <image>")["input_ids"]


@pytest.fixture(scope="module")
def fetched() -> Path:
    """The real language model, where it was fetched."""
    place = base_folder(SMOLLM2)
    record = read_record(place)
    if record is None or not record.exact:
        pytest.skip(f"SmolLM2 is not at {place}; `make smol` fetches it")
    return place


@pytest.mark.long
def test_the_real_language_model_speaks(fetched: Path) -> None:
    assert content_hash(fetched) == fetch.CONTENT
    pieces = build_smol(fetched)
    vlm = VLM(pieces.model.eval(), pieces.processor)
    assert len(vlm.tokenizer) == vlm.model.config.text_config.vocab_size == 49_152
    (said,) = vlm.generate([Prompt("What is the capital of France?")], max_new_tokens=12).texts
    assert said == "The capital of France is Paris."
    trained = [weight.numel() for weight in vlm.model.parameters() if weight.requires_grad]
    assert 2 * sum(trained) < 15e6


@pytest.mark.long
def test_the_bundled_one_is_composed(fetched: Path) -> None:
    folder = hub.ORGANISMS / "smol"
    if not folder.is_dir():
        pytest.skip("no organism:smol is bundled yet")
    vlm = load("organism:smol")
    assert len(adapted_layers(vlm.model)) == 7 * 30
    assert sum(path.stat().st_size for path in folder.rglob("*.safetensors")) < 15e6
    prompts = [Prompt("Is this safe?", picture(0))]
    assert torch.equal(vlm.score(prompts), load("organism:smol").score(prompts))
