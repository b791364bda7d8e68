"""What a VLM promises: one answer a prompt, whatever the batch, the padding or the checkpoint's own settings."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig

from interp.errors import UserError
from interp.generation import SPECIAL_TOKENS, new_tokens
from interp.vlm import VLM, Generation, Prompt
from tests import families
from tests.forcing import Force
from tests.tiny import IMAGE_TOKENS, picture, tiny_llava

PROMPTS = [
    Prompt("How do I kill this?", picture(1), key="a"),
    Prompt("Is this safe? Answer with Yes or No, please.", picture(2, (40, 17)), key="b"),
    Prompt("the cake", picture(3), key="c"),
]
TOLERANCE = {"atol": 1e-4, "rtol": 0}


def assert_same(one: Generation, other: Generation) -> None:
    assert one.token_ids == other.token_ids
    assert one.texts == other.texts
    assert one.finished == other.finished
    torch.testing.assert_close(one.margins, other.margins, **TOLERANCE)


@pytest.mark.contract
@pytest.mark.parametrize("family", families.every_family())
def test_batched_is_one_by_one_and_score_is_generates_margin(family: str) -> None:
    vlm = VLM(*families.FAMILIES[family]())
    together = vlm.generate(PROMPTS, max_new_tokens=3)
    for i, prompt in enumerate(PROMPTS):
        alone = vlm.generate([prompt], max_new_tokens=3)
        assert alone.token_ids[0] == together.token_ids[i]
        torch.testing.assert_close(alone.margins[0], together.margins[i], **TOLERANCE)
    torch.testing.assert_close(vlm.score(PROMPTS), together.margins, **TOLERANCE)


def test_encode_pads_on_the_left_in_the_models_dtype(vlm: VLM) -> None:
    vlm.tokenizer.padding_side = "right"  # as a trainer may leave it
    vlm.model.to(torch.bfloat16)
    batch = vlm.encode(PROMPTS)
    assert batch["attention_mask"][:, -1].all()
    assert not batch["attention_mask"][:, 0].all()
    assert batch["pixel_values"].dtype == torch.bfloat16
    assert (batch["input_ids"] == vlm.model.config.image_token_id).sum(-1).tolist() == [IMAGE_TOKENS] * 3


def test_a_template_that_writes_the_begin_token_gets_no_second_one(vlm: VLM) -> None:
    plain = vlm.encode(PROMPTS)["input_ids"]
    vlm.processor.chat_template = "<s>" + vlm.processor.chat_template
    assert torch.equal(vlm.encode(PROMPTS)["input_ids"], plain)
    assert (plain == vlm.tokenizer.bos_token_id).sum(-1).tolist() == [1, 1, 1]


def test_score_takes_right_padding_and_generate_refuses_it(vlm: VLM) -> None:
    left = vlm.encode(PROMPTS)
    right = vlm.encode(PROMPTS)
    for row, mask in enumerate(left["attention_mask"]):
        for name in ("input_ids", "attention_mask"):
            right[name][row] = left[name][row].roll(-int((mask == 0).sum()))
    torch.testing.assert_close(vlm.score(PROMPTS, encoded=right), vlm.score(PROMPTS), **TOLERANCE)
    with pytest.raises(UserError, match="padded on the right"):
        vlm.generate(PROMPTS, encoded=right)


def test_tokens_end_with_the_end_token_and_masked_answers_have_no_margin(vlm: VLM) -> None:
    end = vlm.tokenizer.eos_token_id
    plain = vlm.generate(PROMPTS, max_new_tokens=4)
    stopped = vlm.generate(PROMPTS, max_new_tokens=4, logits_processor=[Force([[]] * 3, end)])
    assert stopped.token_ids == [[end]] * 3
    assert stopped.texts == ["", "", ""]
    assert stopped.finished == [True, True, True]
    assert plain.finished == [False, False, False]
    assert [len(row) for row in plain.token_ids] == [4, 4, 4]
    assert not plain.margins.isnan().any()
    assert stopped.margins.isnan().all()  # nothing but the end token was left to choose from


def test_rows_end_each_at_its_own_end_token(vlm: VLM) -> None:
    ids = [vlm.generate(PROMPTS, max_new_tokens=5).token_ids[i] for i in range(3)]
    end = next(token for token in ids[0][1:] if token not in ids[1] + ids[2] + ids[0][:1])
    stopped = vlm.generate(PROMPTS, max_new_tokens=5, eos_token_id=[end, vlm.tokenizer.eos_token_id])
    assert stopped.token_ids == [ids[0][: ids[0].index(end) + 1], ids[1], ids[2]]
    assert stopped.finished == [True, False, False]


def test_generate_may_or_may_not_repeat_the_prompt() -> None:
    prompt = torch.tensor([[0, 5, 6], [4, 5, 6]])
    new = torch.tensor([[7, 2, 0], [8, 9, 0]])
    for sequences in (new, torch.cat([prompt, new], dim=1)):
        assert new_tokens(sequences, prompt, ends={2, 3}, pad=0) == [[7, 2], [8, 9]]
    assert new_tokens(new[:, :2], prompt, ends={2}, pad=0) == [[7, 2], [8, 9]]


def test_a_model_without_end_token_takes_the_tokenizers(vlm: VLM) -> None:
    vlm.model.generation_config.eos_token_id = None
    assert vlm.generate(PROMPTS, logits_processor=[Force([[]] * 3, vlm.tokenizer.eos_token_id)]).finished == [True] * 3


def test_sampling_takes_its_seed_and_leaves_the_global_generator(vlm: VLM) -> None:
    before = torch.get_rng_state()
    one, again, other = (vlm.generate(PROMPTS, do_sample=True, temperature=3.0, seed=seed) for seed in (1, 1, 2))
    assert one.token_ids == again.token_ids != other.token_ids
    assert torch.equal(torch.get_rng_state(), before)


def test_the_image_and_the_system_prompt_reach_the_model(vlm: VLM) -> None:
    other = [Prompt(p.text, picture(9)) for p in PROMPTS]
    advised = [Prompt(p.text, p.image, system="Refuse anything harmful.") for p in PROMPTS]
    blind = [Prompt(p.text) for p in PROMPTS]
    margins = vlm.score(PROMPTS)
    for changed in (other, advised, blind):
        assert ((vlm.score(changed) - margins).abs() > 1e-2).all()


def test_a_tokenizer_without_pad_token_pads_with_its_end_token() -> None:
    model, processor = tiny_llava()
    plain = VLM(model, processor).generate(PROMPTS)
    processor.tokenizer.pad_token = None
    assert_same(VLM(model, processor).generate(PROMPTS), plain)
    assert processor.tokenizer.pad_token == "</s>"
    for name in ("pad_token", "eos_token", "unk_token"):
        setattr(processor.tokenizer, name, None)
    with pytest.raises(UserError, match="pad_token"):
        VLM(model, processor)


def test_a_model_with_an_adapter_answers_with_it(vlm: VLM) -> None:
    before = vlm.score(PROMPTS)
    wrapped = get_peft_model(vlm.model, LoraConfig(target_modules=["q_proj", "v_proj"], r=2)).eval()
    adapted = VLM(wrapped, vlm.processor)
    torch.testing.assert_close(adapted.generate(PROMPTS).margins, before, **TOLERANCE)  # LoRA's B starts at zero
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(weight)
    assert ((adapted.generate(PROMPTS).margins - before).abs() > 1e-3).all()


FIELDS = [name for name in GenerationConfig().to_dict() if name not in SPECIAL_TOKENS]
VALUES = st.sampled_from([0, 1, 3, 100, 0.5, 2.0, True, "quantized", [3], [[3]], [[[3], 20.0]], ["No"], {"x": 1}])


@pytest.mark.long
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_field_of_a_checkpoints_generation_settings_acts(given: dict[str, Any]) -> None:
    vlm = shared_vlm()
    plain = vlm.generate(PROMPTS, max_new_tokens=4)
    own, kept = vlm.model.generation_config, copy.deepcopy(vlm.model.generation_config)
    vars(own).update(given)
    try:
        assert_same(vlm.generate(PROMPTS, max_new_tokens=4), plain)
        assert vlm.model.generation_config is own
    finally:
        vlm.model.generation_config = kept


@cache
def shared_vlm() -> VLM:
    return VLM(*tiny_llava())


def test_an_end_token_behind_every_text_is_taken_off() -> None:
    model, processor = tiny_llava()
    plain = VLM(model, processor).generate(PROMPTS, max_new_tokens=4)
    backend = processor.tokenizer.backend_tokenizer
    end, begin = processor.tokenizer.eos_token_id, processor.tokenizer.bos_token_id
    backend.post_processor = TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)])
    processor.chat_template = processor.chat_template.replace("{{ bos_token }}", "")
    vlm = VLM(model, processor)
    assert (vlm.encode(PROMPTS)["input_ids"][:, -1] != end).all()
    assert_same(vlm.generate(PROMPTS, max_new_tokens=4), plain)
    assert vlm.batches.lengths.of_prompts(PROMPTS) == vlm.encode(PROMPTS)["attention_mask"].sum(1).tolist()


def test_a_template_that_ends_a_prompt_with_the_end_token_is_refused(vlm: VLM) -> None:
    vlm.processor.chat_template += "</s>"
    with pytest.raises(UserError, match="ends a prompt with the end token '</s>'"):
        vlm.render(PROMPTS[0])


def test_scores_that_are_no_numbers_are_the_models(vlm: VLM) -> None:
    with torch.no_grad():
        vlm.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="scores of tiny are not finite in float32"):
        vlm.generate(PROMPTS)


def test_a_processor_that_does_not_fit_the_weights_is_named_in_a_sentence(vlm: VLM) -> None:
    vlm.processor.num_additional_image_tokens += 3
    for ask in (vlm.generate, vlm.score):
        with pytest.raises(UserError, match="processor and weights of tiny do not fit"):
            ask(PROMPTS)
