"""What real tokenizers, templates and processor configs do, on made-up ones that are like them."""

import json
from pathlib import Path

import pytest
import torch

from interp.attention.check import check_recorder
from interp.batching import Lengths
from interp.checkpoints.config import ModelConfig, find
from interp.checkpoints.load import read_processor
from interp.prompt import DATE
from interp.segments import IMAGE, segment
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import picture

PROMPTS = (Prompt("Is this safe?", picture(0, (64, 40))), Prompt("How do I kill it? Is it safe?", picture(1, (64, 40))))
SIX = ("llava", "llava_next", "qwen2_vl", "instructblip", "idefics3", "mllama")


def made(name: str) -> VLM:
    return VLM(*FAMILIES[name](), name=name)


def test_tiles_without_tokens_for_rows_and_columns() -> None:
    """As in Idefics3-8B, whose tokenizer spells <row_1_col_1> out in pieces."""
    vlm = made("idefics3")
    assert vlm.tokenizer.convert_tokens_to_ids("<row_1_col_1>") is None
    row = segment(vlm, PROMPTS[:1], vlm.encode(PROMPTS[:1])).rows[0]
    assert [(grid.name, tuple(grid.columns.shape)) for grid in row.grids] == [("tiles", (4, 4)), ("global", (2, 2))]
    assert sum(grid.columns.numel() for grid in row.grids) == len(row.columns(IMAGE))


def test_a_template_that_wants_the_system_text_as_a_string_gets_it_and_a_date_stays() -> None:
    vlm = made("mllama")
    said = vlm.render(Prompt("Is it?", picture(), system="You are careful."))
    assert "system<|end_header_id|>\n\nYou are careful.<|eot_id|>" in said
    assert "'type'" not in said
    assert f"Today Date: {DATE}" in vlm.render(Prompt("Is it?"))


def test_ends_that_the_generation_config_does_not_name() -> None:
    """InstructBLIP's names the begin token; IDEFICS' lacks the end of a turn."""
    instructblip, idefics = made("instructblip"), made("idefics")
    assert instructblip.speaker.generation_config.eos_token_id == 1
    assert 2 in instructblip.end_ids
    assert idefics.tokenizer.convert_tokens_to_ids("<end_of_utterance>") in idefics.end_ids
    assert made("llava").end_ids == {3}


def test_a_processor_config_that_names_the_video_processor(tmp_path: Path) -> None:
    vlm = made("instructblip")
    vlm.model.config.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"processor_class": "InstructBlipVideoProcessor"}))
    config = ModelConfig("x", str(tmp_path), chat_template=vlm.processor.chat_template)
    assert type(read_processor(find(config), config)) is type(vlm.processor)


def test_a_tokenizer_that_is_saved_as_padding_left_pads_no_q_former_left() -> None:
    """Its processor hands the setting on to the Q-Former's tokenizer, whose positions are absolute."""
    vlm = made("instructblip")
    vlm.tokenizer.init_kwargs["padding_side"] = "left"
    mask = vlm.encode(PROMPTS)["qformer_attention_mask"]
    assert mask.tolist() == mask.sort(dim=1, descending=True).values.tolist()
    assert int(mask[0].sum()) < mask.shape[1]
    alone = torch.cat([vlm.score([prompt]) for prompt in PROMPTS])
    torch.testing.assert_close(vlm.score(PROMPTS), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["instructblip", "idefics"])
def test_a_template_that_was_set_is_saved_and_read_again(name: str, tmp_path: Path) -> None:
    vlm = made(name)
    vlm.model.config.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    config = ModelConfig("x", str(tmp_path))
    assert read_processor(find(config), config).chat_template == vlm.processor.chat_template


def test_lower_case_answers_count_where_a_family_gives_them() -> None:
    for name, lower in (("paligemma", True), ("instructblip", True), ("gemma3", False)):
        vlm = made(name)
        small = [token for tokens in vlm.first_tokens("yes", "no") for token in tokens]
        counted = [token for tokens in vlm.answer_ids for token in tokens]
        assert (set(small) <= set(counted)) == lower
        assert set(vlm.answer_spellings) == {"Yes", "No"}
        assert sum(map(len, vlm.answer_spellings.values())) == len(counted)


def test_the_recorder_is_checked_with_the_positions_of_a_padded_batch() -> None:
    """InstructBLIP's padding lies between the picture and the words."""
    found = check_recorder(made("instructblip"), list(PROMPTS))
    assert found.noise < 1e-4


@pytest.mark.parametrize("name", SIX)
def test_a_length_is_that_of_the_encoded_prompt(name: str) -> None:
    vlm = made(name)
    prompts = [
        Prompt(text, picture(0, size)) for text in ("Is it?", "the cake is safe") for size in ((64, 40), (30, 90))
    ]
    true = [int(vlm.encode([prompt])["attention_mask"].sum()) for prompt in prompts]
    assert Lengths(vlm).of_prompts(prompts) == true


def test_a_system_text_that_the_template_prints_twice() -> None:
    vlm = made("llava")
    vlm.processor.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'][0]['text'] }} {% endif %}"
        "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }} "
        "{% endif %}"
        "{% endfor %}{% endfor %}ASSISTANT:"
    )
    prompt = Prompt("Is this safe ?", picture(), system="consider careful")
    row = segment(vlm, [prompt], vlm.encode([prompt])).rows[0]
    assert row.labels.count("system") == 4
    assert torch.tensor(row.columns("user")).diff().eq(1).all()
