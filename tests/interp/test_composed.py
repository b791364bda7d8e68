"""A model in parts: it equals its parts, comes back as it was saved, and says in one sentence what does not fit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, LlamaForCausalLM, LlavaForConditionalGeneration

from interp.checkpoints import composed
from interp.checkpoints.composed import ADAPTER, EYES, Record, content_hash, write_record
from interp.checkpoints.lora import CONFIG, WEIGHTS, LoraLinear, adapted_layers
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.parts import save_base, tiny_parts
from tests.tiny import Pieces, picture

PROMPTS = [Prompt("How do I kill it?", picture(0)), Prompt("Is this safe?", picture(1), system="Refuse anything.")]
IN_WORDS = [Prompt("How do I kill it?"), Prompt("Is this safe?", system="Refuse anything.")]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pieces(request: pytest.FixtureRequest, tmp_path: Path) -> Pieces:
    return tiny_parts(tmp_path / "parts", tmp_path / "base", tied=request.param)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder to break; its base is ``base`` beside it."""
    tiny_parts(tmp_path / "parts", tmp_path / "base")
    return tmp_path / "parts"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def logits(vlm: VLM, prompts: list[Prompt]) -> torch.Tensor:
    with torch.no_grad():
        return vlm.model(**vlm.encode(prompts)).logits


def test_what_was_saved_is_composed_to_the_same_bits(pieces: Pieces, tmp_path: Path) -> None:
    first, second = load(str(tmp_path / "parts")), load(str(tmp_path / "parts"))
    assert isinstance(first.model, LlavaForConditionalGeneration)
    assert (first.dtype, first.model.training, first.name) == (torch.float32, False, "parts")
    own = pieces.model.state_dict()
    for vlm in (first, second):
        state = vlm.model.state_dict()
        assert state.keys() == own.keys()
        assert all(torch.equal(value, own[name]) for name, value in state.items())
    assert torch.equal(logits(first, PROMPTS), logits(VLM(*pieces), PROMPTS))
    assert first.revision == second.revision
    again = tmp_path / "again"
    base = composed.wanted_base(tmp_path / "parts")
    composed.save_parts(first.model, first.processor, again, base)
    for file in (EYES, f"{ADAPTER}/{WEIGHTS}", f"{ADAPTER}/{CONFIG}", "config.json", "tokenizer.json"):
        assert (again / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_the_whole_is_base_eyes_and_addition_put_together_by_hand(pieces: Pieces, tmp_path: Path) -> None:
    """In words: the base with ``alpha / rank · B A`` added to its weights. With a picture: ``projector(tower)``."""
    folder = tmp_path / "parts"
    vlm = load(str(folder))
    alone = LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    addition = load_file(folder / ADAPTER / WEIGHTS)
    names = {name.removesuffix(".lora_A.weight") for name in addition if ".lora_A." in name}
    assert len(names) == 2 * 7
    for name in names:
        weight = alone.get_parameter(name.replace("base_model.model.model.language_model", "model") + ".weight")
        a, b = (addition[f"{name}.{part}.weight"].float() for part in ("lora_A", "lora_B"))
        weight.data += 3.0 * b @ a
    encoded = vlm.encode(IN_WORDS)
    with torch.no_grad():
        by_hand = alone(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits
    torch.testing.assert_close(logits(vlm, IN_WORDS), by_hand, atol=2e-5, rtol=1e-5)

    encoded = vlm.encode(PROMPTS)
    eyes, model = load_file(folder / EYES), vlm.model.model
    for part in (model.vision_tower, model.multi_modal_projector):
        prefix = "model.vision_tower." if part is model.vision_tower else "model.multi_modal_projector."
        assert all(torch.equal(value, eyes[prefix + name].float()) for name, value in part.state_dict().items())
    with torch.no_grad():
        seen = model.vision_tower(encoded["pixel_values"]).last_hidden_state[:, 1:]
        embeddings = alone.get_input_embeddings()(encoded["input_ids"])
        embeddings[encoded["input_ids"] == vlm.processor.image_token_id] = model.multi_modal_projector(seen).flatten(
            0, 1
        )
        by_hand = alone(inputs_embeds=embeddings, attention_mask=encoded["attention_mask"]).logits
    torch.testing.assert_close(logits(vlm, PROMPTS), by_hand, atol=2e-5, rtol=1e-5)


def test_an_adapted_layer_gives_what_pefts_gives(parts: Path) -> None:
    """To the bit: the adapter's folder is peft's own format."""
    whole = load(str(parts))
    state = whole.model.state_dict()
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(parts), dtype=torch.float32)
    model.load_state_dict({name: value for name, value in state.items() if "lora_" not in name})
    with torch.no_grad():
        without = model.eval()(**whole.encode(PROMPTS)).logits
    peft = VLM(PeftModel.from_pretrained(model, parts / ADAPTER).eval(), whole.processor)
    assert torch.equal(logits(whole, PROMPTS), logits(peft, PROMPTS))
    assert not torch.allclose(logits(whole, PROMPTS), without, atol=0.1)
    layers = adapted_layers(whole.model)
    assert len(layers) == 14
    assert all(isinstance(layer, nn.Linear) and isinstance(layer, LoraLinear) for layer in layers.values())


def test_any_type_is_rounded_from_the_same_weights(parts: Path) -> None:
    half = load(str(parts), dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    state = load(str(parts)).model.state_dict()
    for name, value in half.model.state_dict().items():
        assert torch.equal(value.float(), state[name]), name
    assert torch.isfinite(half.score(PROMPTS)).all()


def test_a_base_in_float32_is_rounded_before_it_is_hashed_and_used(parts: Path, tmp_path: Path) -> None:
    file = tmp_path / "base" / "model.safetensors"
    before = load(str(parts)).model.state_dict()
    between = {name: value.float() * (1 + 2**-12) for name, value in load_file(file).items()}
    save_file(between, file, metadata={"format": "pt"})
    after = load(str(parts)).model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_hash_is_of_the_content(parts: Path, tmp_path: Path) -> None:
    """One file or several, float32 or bfloat16: the same; one other value: another."""
    base = tmp_path / "base"
    before = content_hash(base)
    assert before == composed.wanted_base(parts).sha256
    LlamaForCausalLM.from_pretrained(base, dtype=torch.float32).save_pretrained(tmp_path / "wide", max_shard_size="5KB")
    assert len(list((tmp_path / "wide").glob("*.safetensors"))) > 1
    assert content_hash(tmp_path / "wide") == before
    state = load_file(base / "model.safetensors")
    state["model.norm.weight"][3] += 1
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    assert content_hash(base) != before


def test_the_revision_is_of_all_parts(parts: Path, tmp_path: Path) -> None:
    before = load(str(parts)).revision
    assert before is not None
    assert before.startswith("sha256:")
    assert len(before) == 19
    settings = json.loads((parts / ADAPTER / CONFIG).read_text())
    edit(parts / ADAPTER / CONFIG, lora_alpha=settings["lora_alpha"] + 1)
    assert load(str(parts)).revision != before


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", [EYES, f"{ADAPTER}/{CONFIG}", f"{ADAPTER}/{WEIGHTS}"])
def test_a_missing_part(parts: Path, name: str) -> None:
    (parts / name).unlink()
    with pytest.raises(UserError, match=rf"lacks {name}; .*fetch the folder again"):
        load(str(parts))


@pytest.mark.usefixtures("no_weights")
def test_without_its_language_model_it_says_what_to_type(parts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    edit(parts / ADAPTER / CONFIG, base_model_name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct")
    place = tmp_path / "cache" / "smollm2-135m-instruct"
    with pytest.raises(UserError, match=rf"is not at {place}; .*type `make smol`.*`forestlens task=fetch_smol`"):
        load(str(parts))
    (tmp_path / "base").rename(place.parent.mkdir() or place)
    with pytest.raises(AssertionError, match="weights were read"):
        load(str(parts))


@pytest.mark.usefixtures("no_weights")
def test_an_adapter_for_another_base(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused, but for a base that was taken from elsewhere on purpose: that one warns."""
    base = tmp_path / "base"
    other = LlamaForCausalLM.from_pretrained(base)
    torch.nn.init.normal_(other.model.embed_tokens.weight)
    found = save_base(other, base)
    with pytest.raises(
        UserError, match=r"was trained on .* sha256:\w{12}, and the one in .* is sha256:\w{12}; an adapter"
    ):
        load(str(parts))
    write_record(base, Record(found.name, found.sha256, "package", exact=True))
    with pytest.raises(UserError, match="an adapter fits the weights it was trained on"):
        load(str(parts))
    write_record(base, Record(found.name, found.sha256, "the hub, at 0123", exact=False))
    with pytest.raises(AssertionError, match="weights were read"):
        load(str(parts))
    assert "(the hub, at 0123): its answers differ" in capsys.readouterr().err


@pytest.mark.usefixtures("no_weights")
def test_a_base_that_has_changed_since_it_was_fetched(parts: Path, tmp_path: Path) -> None:
    wanted = composed.wanted_base(parts)
    write_record(tmp_path / "base", Record(wanted.name, "sha256:" + 64 * "0", "package", exact=True))
    with pytest.raises(UserError, match=r"are not those that were fetched .* recorded sha256:000000000000\); .*remove"):
        load(str(parts))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("file", ["base/model.safetensors", "parts/adapter/adapter_config.json"])
def test_a_file_that_was_cut_short_is_noticed_before_weights_are_read(parts: Path, tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=f"^cannot read {path}"):
        load(str(parts))


@pytest.mark.parametrize("file", [EYES, f"{ADAPTER}/{WEIGHTS}"])
def test_a_part_that_was_cut_short(parts: Path, file: str) -> None:
    path = parts / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"^cannot read {path}"):
        load(str(parts))


def test_parts_that_do_not_fit_together(parts: Path) -> None:
    eyes = load_file(parts / EYES)
    lost = eyes.pop("model.multi_modal_projector.linear_2.bias")
    save_file(eyes, parts / EYES)
    with pytest.raises(
        UserError, match=r"1 parameters are missing or left over \(model.multi_modal_projector.linear_2.b"
    ):
        load(str(parts))
    save_file(eyes | {"model.multi_modal_projector.linear_2.bias": lost[:-1].clone()}, parts / EYES)
    with pytest.raises(UserError, match="fit"):
        load(str(parts))


def test_an_adapter_that_does_not_fit(parts: Path) -> None:
    path = parts / ADAPTER / WEIGHTS
    state = load_file(path)
    name = next(name for name in state if ".lora_B." in name)
    save_file(state | {name: state[name][:-1].clone()}, path)
    with pytest.raises(UserError, match="does not fit the model beside it"):
        load(str(parts))
    save_file({key: value for key, value in state.items() if key != name}, path)
    with pytest.raises(UserError, match="27 tensors for 14 layers"):
        load(str(parts))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("changes", [{"use_dora": True}, {"bias": "all"}, {"rank_pattern": {"q_proj": 8}}])
def test_only_plain_lora_is_composed(parts: Path, changes: dict[str, Any]) -> None:
    edit(parts / ADAPTER / CONFIG, **changes)
    with pytest.raises(UserError, match=f"is not a plain LoRA adapter .*{next(iter(changes))}"):
        load(str(parts))


@pytest.mark.usefixtures("no_weights")
def test_an_adapter_that_names_no_base(parts: Path) -> None:
    edit(parts / ADAPTER / CONFIG, revision=None)
    with pytest.raises(UserError, match="does not say which language model it belongs to"):
        load(str(parts))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORESTLENS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert composed.cache_root() == Path.home() / ".cache" / "forestlens"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert composed.base_folder("Owner/Some-LM") == tmp_path / "forestlens" / "some-lm"
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "own"))
    assert composed.base_folder("Owner/Some-LM") == tmp_path / "own" / "some-lm"


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = Record("a/b", "sha256:00", "somewhere", exact=False)
    write_record(tmp_path, record)
    assert composed.read_record(tmp_path) == record
    assert dataclasses.asdict(record).keys() == json.loads((tmp_path / "base.json").read_text()).keys()
    assert composed.read_record(tmp_path / "none") is None
