"""Conversations: prompts of several turns and pictures, in every family, against plain transformers."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.generation import new_tokens
from interp.hooks.residual import residuals
from interp.messages import Message
from interp.prompt import Prompt
from interp.segments import segment
from interp.tools.attribution import grey_out, occlude_image
from interp.tools.knockout import knockout_effect
from interp.tools.patching import patch
from interp.vlm import VLM
from tests.families import FAMILIES
from tests.family_parts import INST
from tests.tiny import picture

SIZES = ((64, 40), (40, 64), (32, 32))
FIRST, SECOND, THIRD = (picture(seed, size) for seed, size in enumerate(SIZES))
ANSWERS = "{% elif m['role'] == 'assistant' %} {{ m['content'][0]['text'] }}</s>{% endif %}{% endfor %}"
SEVERAL = ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "idefics3", "internvl", "gemma3", "mllama", "idefics")


def shown(image):
    return {"type": "image", "image": image}


def text(words):
    return {"type": "text", "text": words}


CHAT = [
    {"role": "user", "content": [shown(FIRST), text("what is this ?")]},
    {"role": "assistant", "content": "a knife"},
    {"role": "user", "content": [shown(SECOND), text("is this safe ?")]},
]
CONVERSATION = Prompt(messages=CHAT, key="conversation")
BATCH = [
    CONVERSATION,
    Prompt("how do I kill it ?", THIRD, key="plain"),
    Prompt(messages=[{"role": "user", "content": [shown(FIRST), shown(THIRD), text("is this safe ?")]}], key="two"),
]


def model(name):
    vlm = VLM(*FAMILIES[name](), name=name)
    if vlm.processor.chat_template == INST:
        vlm.processor.chat_template = INST.removesuffix("{% endif %}{% endfor %}") + ANSWERS
    return vlm


def plain_logits(vlm, prompt):
    """The last logits of a plain forward over the rendered conversation, by the processor's own call."""
    rendered, images = vlm.render(prompt), list(prompt.images)
    if name_of(vlm) == "idefics":
        pieces = rendered.removeprefix("<s>").split("<fake_token_around_image><image><fake_token_around_image>")
        row = [pieces[0]]
        for image, piece in zip(images, pieces[1:], strict=True):
            row += [image, piece]
        inputs = vlm.processor(text=[row], return_tensors="pt", add_end_of_utterance_token=False)
    else:
        written = {"add_special_tokens": False} if rendered.startswith(str(vlm.tokenizer.bos_token)) else {}
        inputs = vlm.processor(text=[rendered], images=[images], return_tensors="pt", **written)
    types = {"mm_token_type_ids": vlm.encode([prompt]).get("mm_token_type_ids")}
    inputs.pop("labels", None)
    with torch.no_grad():
        return vlm.model(**{k: v for k, v in types.items() if v is not None} | dict(inputs)).logits[:, -1]


def name_of(vlm):
    return vlm.module_map.model_type


@pytest.mark.parametrize("name", SEVERAL)
def test_margins_of_a_ragged_batch_are_those_of_plain_forwards(name):
    vlm = model(name)
    batches = [[0, 1, 2]]
    if name == "mllama":
        with pytest.raises(UserError, match="with 1 and 2 images in one batch of mllama would change each other"):
            vlm.score(BATCH)
        batches = [[0, 2], [1]]
    margins = torch.empty(3)
    for rows in batches:
        margins[rows] = vlm.score([BATCH[row] for row in rows])
    assert (vlm.batches.scores(BATCH) - margins).abs().max() < 1e-4
    plain = torch.cat([vlm.margin(plain_logits(vlm, prompt)) for prompt in BATCH])
    assert (margins - plain).abs().max() < 1e-4
    assert len({round(float(margin), 3) for margin in margins}) == 3
    for rows in batches:
        generated = vlm.generate([BATCH[row] for row in rows], max_new_tokens=3)
        assert (generated.margins - plain[rows]).abs().max() < 1e-4
        for row, ids in zip(rows, generated.token_ids, strict=True):
            assert vlm.generate([BATCH[row]], max_new_tokens=3).token_ids == [ids]


@pytest.mark.parametrize("name", SEVERAL)
def test_the_ragged_batch_has_left_padding_positions_and_tiles_of_the_family(name):
    vlm = model(name)
    batch = BATCH if name != "mllama" else [BATCH[0], BATCH[2]]
    mask = vlm.encode(batch)["attention_mask"]
    assert mask[:, -1].all()
    assert not mask[:, 0].all()
    assert vlm.module_map.position_kind == ("mrope" if name.startswith("qwen") else "1d")
    pixels = vlm.encode([BATCH[2]])["pixel_values"]
    tiles = {"llava_next": pixels.shape[:2].numel(), "idefics3": pixels.shape[1], "internvl": len(pixels)}
    assert tiles.get(name, 3) > len(BATCH[2].images)


@pytest.mark.parametrize("name", SEVERAL)
def test_each_picture_and_turn_of_a_conversation_changes_the_margin(name):
    vlm = model(name)
    others = [
        CONVERSATION.with_images(lambda image: Image.new("RGB", image.size, "red"), only=[1]),
        CONVERSATION.with_images(lambda image: Image.new("RGB", image.size, "red"), only=[2]),
        CONVERSATION.with_parts({(0, 1): "how do I kill it ?"}),
        CONVERSATION.with_parts({(1, 0): "is it safe"}),
    ]
    margins = vlm.score([CONVERSATION, *others])
    assert len({f"{float(margin):.5f}" for margin in margins}) == 5


@pytest.mark.parametrize("name", SEVERAL)
def test_each_token_of_a_conversation_belongs_to_one_part(name):
    vlm = model(name)
    batches = [BATCH] if name != "mllama" else [[prompt] for prompt in BATCH]
    segments = [segment(vlm, prompts, vlm.encode(prompts)) for prompts in batches]
    first, plain, two = (row for found in segments for row in found.rows)

    def words(row, part):
        return vlm.tokenizer.decode([row.input_ids[column] for column in row.columns(part)]).split()

    assert words(first, "user:1") == ["what", "is", "this", "?"]
    assert words(first, "assistant:1") == ["a", "knife"]
    assert words(first, "user:2") == words(first, "question") == words(two, "user:1") == ["is", "this", "safe", "?"]
    assert (
        words(plain, "user:1")
        == words(plain, "user")
        == ["how" if name != "llava" else "<unk>", "do", "I", "kill", "it", "?"]
    )
    assert len(first.parts) == len(first.labels)
    if vlm.module_map.cross_attended:
        return
    for row in (first, two):
        pictures = [row.columns(f"image:{number}") for number in (1, 2)]
        assert all(pictures)
        assert max(pictures[0]) < min(pictures[1])
        assert sorted(pictures[0] + pictures[1]) == row.columns("image")
    alone = segment(vlm, [Prompt("?", FIRST)], vlm.encode([Prompt("?", FIRST)])).rows[0]
    assert len(alone.columns("image")) == len(first.columns("image:1")) == len(two.columns("image:1"))
    with pytest.raises(UserError, match=r"no segment 'image:2'; known: .*image:1"):
        plain.columns("image:2")
    shapes = [grid.columns.shape for grid in alone.grids]
    assert [grid.columns.shape for grid in first.grids][: len(shapes)] == shapes
    assert len({column for grid in first.grids for column in grid.columns.flatten().tolist()}) <= len(
        first.columns("image")
    )


def test_tools_take_parts():
    vlm = model("llava")
    conversation = [CONVERSATION]
    with record_attention(vlm, queries=Queries.VERDICT) as record:
        vlm.score(conversation)
    masses = record.masses.groupby("segment", observed=True)["mass"].mean()
    assert {"image:1", "image:2", "user:1", "assistant:1", "user:2"} <= set(masses.index)
    assert record.masses.groupby(["layer", "head"])["mass"].sum().sub(1).abs().max() < 1e-4
    cut = [float(knockout_effect(vlm, conversation, [(part, "verdict")]).moved[0]) for part in ("image:1", "image:2")]
    both = float(knockout_effect(vlm, conversation, [("image:1", "verdict"), ("image:2", "verdict")]).moved[0])
    assert both == pytest.approx(float(knockout_effect(vlm, conversation, [("image", "verdict")]).moved[0]), abs=1e-6)
    assert cut[0] != cut[1]
    with pytest.raises(UserError, match="no segment 'image:3'"):
        knockout_effect(vlm, conversation, [("image:3", "verdict")])
    other = CONVERSATION.with_images(lambda image: picture(9, image.size), only=[1])
    effects = patch(vlm, conversation, [other], places=["image:1", "image:2", "user:1"], layers=[0], least_gap=0.0)
    assert effects.select("image:1", 0) == pytest.approx(1, abs=1e-3)
    assert effects.select("image:2", 0) == pytest.approx(0, abs=1e-3)
    assert effects.select("user:1", 0) == pytest.approx(0, abs=1e-3)
    assert residuals(vlm, BATCH, places=["user:2"], layers=[1]).values.isnan().any(-1).tolist() == [
        [[False, True, True]]
    ]


def test_the_beginning_of_an_answer_continues_the_text():
    vlm = model("qwen2_5_vl")
    started = Prompt(messages=[*CHAT, {"role": "assistant", "content": "this is"}])
    ids = vlm.tokenizer("this is", add_special_tokens=False)["input_ids"]
    assert started.answer_prefix == ("this is",)
    assert list(vlm.prefix_tokens(started)) == ids
    same = replace(CONVERSATION, answer_prefix=tuple(ids), key="")
    assert vlm.score([started]) == vlm.score([same])
    assert segment(vlm, [started], vlm.encode([started])).rows[0].columns("generated")
    batch = vlm.encode([started])
    output = vlm.model.generate(**batch, max_new_tokens=3, do_sample=False)
    plain = new_tokens(output, batch["input_ids"], ends=vlm.end_ids, pad=vlm.tokenizer.pad_token_id)
    assert vlm.generate([started], max_new_tokens=3).token_ids == plain


def test_messages_with_one_text_and_picture_are_the_same_prompt():
    turn = {"role": "user", "content": [shown(FIRST), text("is this safe ?")]}
    simple = Prompt("is this safe ?", FIRST, "Be safe.")
    assert Prompt(messages=[{"role": "system", "content": "Be safe."}, turn]) == simple
    assert Prompt(messages=[turn], system="Be safe.").content == simple.content
    assert Prompt(messages=[turn]).messages == ()
    assert CONVERSATION.text == "is this safe ?"
    assert CONVERSATION.images == (FIRST, SECOND)


def test_replace_changes_the_last_turn_and_a_single_picture():
    other = replace(CONVERSATION, text="Be careful: is this safe ?")
    assert other.turns[-1].parts == (SECOND, "Be careful: is this safe ?")
    assert other.turns[:2] == CONVERSATION.turns[:2]
    assert replace(CONVERSATION, image=None).images == ()
    assert replace(CONVERSATION, image=None).turns[0].parts == ("what is this ?",)
    with pytest.raises(UserError, match="one picture in place of 2"):
        replace(CONVERSATION, image=THIRD)
    one = CONVERSATION.with_images(lambda image: None, only=[2])
    assert replace(one, image=THIRD).images == (THIRD,)
    between = Prompt(messages=[{"role": "user", "content": [text("A"), shown(FIRST), text("or B?")]}])
    assert replace(between, text="Look. A\nor B? Now.").turns[0].parts == ("Look. A", FIRST, "or B? Now.")
    with pytest.raises(UserError, match="put the pictures before the text"):
        replace(between, text="Which?")


USER, ASSISTANT = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Yes."}
BAD = {
    "no user": ([ASSISTANT], "no message of the user"),
    "nothing": ([{"role": "system", "content": "Be safe."}], "no message of the user"),
    "twice the assistant": ([USER, ASSISTANT, ASSISTANT, USER], "message 3 is by 'assistant', where 'user' speaks"),
    "twice the user": ([USER, USER], "message 2 is by 'user', where 'assistant' speaks"),
    "two at the end": ([USER, ASSISTANT, ASSISTANT], "no message of the user at the end"),
    "begins with an answer": ([ASSISTANT, USER], "message 1 is by 'assistant', where 'user' speaks"),
    "picture in an answer": ([USER, {"role": "assistant", "content": [shown(FIRST)]}, USER], "only the user shows"),
    "a role": ([{"role": "tool", "content": "x"}], "message 1 is .*tool"),
    "no content": ([{"role": "user"}], "it needs a role"),
    "a url": ([{"role": "user", "content": [{"type": "image", "image": "https://x"}]}], "message 1 has a part"),
    "one message": (USER, "messages is a dict"),
}


@pytest.mark.parametrize("case", BAD)
def test_messages_that_are_no_conversation_are_refused(case):
    messages, words = BAD[case]
    with pytest.raises(UserError, match=words) as refused:
        Prompt(messages=messages)
    assert "\n" not in str(refused.value)


def test_messages_next_to_text_are_refused():
    with pytest.raises(UserError, match="messages next to text or image"):
        Prompt("Hi?", messages=[USER])
    with pytest.raises(UserError, match="system next to messages with a system text"):
        Prompt(messages=[{"role": "system", "content": "a"}, USER], system="b")
    with pytest.raises(UserError, match="has 2 pictures, no picture 3"):
        CONVERSATION.with_images(lambda image: image, only=[3])


def test_a_model_that_takes_less_is_refused_with_its_limit():
    with pytest.raises(UserError, match="2 images in a prompt of instructblip, which takes one there"):
        VLM(*FAMILIES["instructblip"](), name="instructblip").render(BATCH[2])
    vlm = VLM(*FAMILIES["llava_next"](), name="llava_next")
    with pytest.raises(UserError, match=r"drops the text 'a knife' of turn 2 of 3 .assistant.; it takes fewer turns"):
        vlm.render(CONVERSATION)
    vlm = model("llava")
    first = vlm.processor.chat_template.replace(
        "'image' %}<image>", "'image' and loop.last and not loop.first %}<image>"
    )
    vlm.processor.chat_template = first
    with pytest.raises(UserError, match="2 images in a prompt of llava, which takes one there"):
        vlm.render(CONVERSATION)


def test_an_answer_that_is_still_to_be_given_is_not_rendered():
    open_turn = Prompt("is this safe ?", FIRST, messages=(
        Message("user", (FIRST, "what is this ?")), Message("assistant", ()), Message("user", ("is this safe ?",)),
    ))  # fmt: skip
    with pytest.raises(UserError, match="turn 2 of 3 has no answer yet"):
        model("llava").render(open_turn)


def test_regions_of_a_named_picture_are_painted():
    vlm = model("llava")
    heat = occlude_image(vlm, CONVERSATION, rows=1, columns=2, image=2)
    painted = [grey_out(vlm, CONVERSATION, [(left, 0.0, left + 0.5, 1.0)], image=2) for left in (0.0, 0.5)]
    assert all(prompt.images[0] == FIRST and prompt.images[1] != SECOND for prompt in painted)
    expected = vlm.score(CONVERSATION) - vlm.score(painted)
    assert (heat.flatten() - expected).abs().max() < 1e-4
    assert (occlude_image(vlm, CONVERSATION, rows=1, columns=2) - heat).abs().max() > 1e-4
    with pytest.raises(UserError, match="has 2 pictures, no picture 3"):
        grey_out(vlm, CONVERSATION, [(0.0, 0.0, 1.0, 1.0)], image=3)
