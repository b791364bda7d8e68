"""Every token of a padded batch gets its segment, from the processor's real output."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import UserError
from interp.segments import IMAGE, SEGMENTS, segment
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import WORDS, picture


def said(vlm, row, name):
    """The text of one segment, without spaces."""
    ids = [row.input_ids[column] for column in row.columns(name)]
    return "".join(vlm.tokenizer.decode(ids).split())


@pytest.mark.contract
def test_each_token_has_its_segment(family, prompts):
    encoded = family.encode(prompts)
    segments = segment(family, prompts, encoded)
    for i, (row, prompt) in enumerate(zip(segments.rows, prompts, strict=True)):
        assert [label != "padding" for label in row.labels] == encoded["attention_mask"][i].bool().tolist()
        assert len(row.columns("sink")) == 1
        if family.module_map.cross_attended:
            assert_no_image(family, row)
        else:
            assert len(row.columns(IMAGE)) == row.input_ids.count(family.model.config.image_token_id) > 0
        text = prompt.text if family.module_map.model_type != "llava" else prompt.text.replace("Is", "<unk>")
        assert said(family, row, "user") == "".join(text.split())
        assert said(family, row, "system") == "".join((prompt.system or "").split())
        assert [word.text for word in row.words] == prompt.text.rstrip("?").split()
    assert segments.rows[0].columns("padding")  # the batch is padded, or nothing above means much


def assert_no_image(vlm, row):
    """The placeholder is the template's, and the image's columns are refused rather than none: with this sentence."""
    place = row.input_ids.index(vlm.processor.image_token_id)
    assert row.labels[place] == "template"
    assert not row.grids
    with pytest.raises(UserError, match=f"no image tokens in the sequence of {vlm.name}"):
        row.columns(IMAGE)


def test_image_tokens_are_where_the_model_puts_image_features(family, prompts):
    """The image columns are those of the embeddings that change with the picture."""
    encoded = family.encode(prompts)
    seen = []
    hook = family.module_map.module(family.model, "layers")[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    if family.module_map.model_type == "idefics":
        pytest.skip("idefics mixes its picture into every column before the first layer")
    with hook, torch.no_grad():
        family.model(**encoded)
        family.model(**{**encoded, "pixel_values": encoded["pixel_values"].flip(0) * 0.5})
    # (a newline embedding of LLaVA-NeXT stands at an image token and is the same for all pictures)
    changed = (seen[0] != seen[1]).any(-1)
    for row, columns in zip(segment(family, prompts, encoded).rows, changed, strict=True):
        where = set(columns.nonzero().flatten().tolist())
        if family.module_map.cross_attended:
            assert not where
            continue
        mapped = {c for grid in row.grids for c in grid.columns.flatten().tolist()} or set(row.columns(IMAGE))
        assert where == mapped <= set(row.columns(IMAGE))


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3", "instructblip"])
def test_words_stay_findable_when_the_system_text_repeats_them(name):
    vlm = VLM(*FAMILIES[name]())
    prompts = [Prompt("kill it", picture(), system="kill it")]
    row = segment(vlm, prompts, vlm.encode(prompts)).rows[0]
    assert said(vlm, row, "user") == said(vlm, row, "system") == "killit"
    assert min(row.columns("system")) < min(row.columns("user"))
    assert {c for word in row.words for c in word.columns} == set(row.columns("user"))


@pytest.fixture(scope="module", params=["llava_next", "internvl", "paligemma"])
def unchanged(request):
    """One model for all examples of a property."""
    return VLM(*FAMILIES[request.param]())


@settings(max_examples=20, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), system=st.booleans())
def test_the_users_words_are_the_users_words(unchanged, words, system):
    vlm = unchanged
    text = " ".join(words)
    prompts = [Prompt(text, picture(), system=" ".join(reversed(words)) if system else None)]
    row = segment(vlm, prompts, vlm.encode(prompts)).rows[0]
    assert said(vlm, row, "user") == "".join(words)
    assert [word.text for word in row.words] == [word for word in words if word.isalnum()]


def test_a_default_system_text_of_the_template_is_template(prompts):
    vlm = VLM(*FAMILIES["qwen2_vl"]())
    vlm.processor.chat_template = "<|im_start|>system\nconsider harm<|im_end|>\n" + vlm.processor.chat_template
    row = segment(vlm, prompts[:1], vlm.encode(prompts[:1])).rows[0]
    assert not row.columns("system")
    assert "considerharm" in said(vlm, row, "template")


def test_a_text_without_an_image_and_an_empty_question(vlm):
    prompts = [Prompt("", system="Refuse harm"), Prompt("Is it?")]
    segments = segment(vlm, prompts, vlm.encode(prompts))
    assert not segments.rows[0].columns("user")
    assert not segments.rows[0].words
    assert not any(row.columns(IMAGE) or row.grids for row in segments.rows)


def test_indicator_is_one_hot_and_what_follows_is_generated(vlm, prompts):
    segments = segment(vlm, prompts, vlm.encode(prompts))
    one_hot = segments.indicator(2, segments.width + 3)
    assert torch.equal(one_hot.sum(-1), torch.ones(2, segments.width + 1))
    codes = torch.tensor([[SEGMENTS.index(label) for label in row.labels] for row in segments.rows])
    assert torch.equal(one_hot[:, : segments.width - 2].argmax(-1), codes[:, 2:])
    assert bool((one_hot[:, segments.width - 2 :].argmax(-1) == SEGMENTS.index("generated")).all())
    late = segments.indicator(segments.width + 1, segments.width + 3)
    assert torch.equal(late[..., SEGMENTS.index("generated")], torch.ones(2, 2))
