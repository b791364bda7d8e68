"""Methods on conversations: several pictures are distorted, removed or put into words, all or those that are named."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from interp.errors import UserError
from interp.prompt import Prompt
from mitigation.contrastive.corruption import corrupt_inputs, donor
from mitigation.controls import TextOnly
from mitigation.ecso import ECSO
from mitigation.prior_correction import PriorCorrection
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.vcd import VCD
from mitigation.verbalise import Verbalise
from tests.interp.test_conversations import BATCH, CONVERSATION, FIRST, SECOND, model

FAMILIES = ("llava", "qwen2_5_vl", "idefics3", "internvl", "mllama")


def noised(vlm, prompts, **options):
    return corrupt_inputs(vlm, prompts, vlm.encode(prompts), **{"kind": "diffusion", "step": 500, "seed": 0} | options)


def alike(vlm, prompts):
    """Prompts of the batch that the family takes together."""
    return [prompts[0], prompts[2]] if vlm.module_map.crossing_layers else prompts


def last_logits(vlm, prompts, encoded):
    kept = []
    vlm.score(prompts, encoded=encoded, metric=lambda logits: kept.append(logits) or logits[:, 0])
    return kept[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_noise_depends_on_the_case_alone(name):
    vlm = model(name)
    batch = alike(vlm, BATCH)
    together = vlm.score(batch, encoded=noised(vlm, batch))
    alone = torch.cat([vlm.score([prompt], encoded=noised(vlm, [prompt])) for prompt in batch])
    assert (together - alone).abs().max() < 1e-4
    assert (together - vlm.score(batch)).abs().min() > 1e-4


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("branch", ["sequential", "paired"])
def test_vcd_is_its_formula_on_conversations(name, branch):
    vlm = model(name)
    batch = alike(vlm, BATCH)
    clean, worse = (last_logits(vlm, batch, inputs) for inputs in (vlm.encode(batch), noised(vlm, batch)))
    answers = VCD(alpha=1.0, beta=0.1, branch=branch).generate(vlm, batch, max_new_tokens=2)
    assert (answers.margins - vlm.margin(2 * clean - worse)).abs().max() < 1e-3


@pytest.mark.parametrize("kind", ["diffusion", "diffusion8", "blur", "black", "swapped"])
def test_only_the_named_picture_is_distorted(kind):
    vlm = model("qwen2_5_vl")
    plain, changed = vlm.encode(BATCH[:1]), noised(vlm, BATCH[:1], kind=kind, only=(2,))
    rows = plain["image_grid_thw"].prod(1).tolist()
    before, after = (inputs["pixel_values"].split(rows) for inputs in (plain, changed))
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    everything = noised(vlm, BATCH[:1], kind=kind)["pixel_values"].split(rows)
    assert torch.equal(everything[1], after[1])
    assert not torch.equal(everything[0], before[0])


def test_the_first_picture_has_the_noise_of_a_single_one():
    vlm = model("llava")
    one = Prompt("is this safe ?", FIRST, key="conversation")
    both = noised(vlm, [CONVERSATION])["pixel_values"]
    assert torch.equal(noised(vlm, [one])["pixel_values"][0], both[0])
    shown = {"type": "image", "image": FIRST}
    same = Prompt(messages=[{"role": "user", "content": [shown, shown, {"type": "text", "text": "?"}]}])
    twice = noised(vlm, [same])["pixel_values"]
    assert not torch.equal(twice[0], twice[1])


def test_a_picture_that_is_not_there_and_packed_pictures_are_refused():
    with pytest.raises(UserError, match=r"images=\[3\]: 'conversation' has 2 pictures, no picture 3"):
        VCD(images=[3]).generate(model("llava"), [CONVERSATION], max_new_tokens=1)
    with pytest.raises(UserError, match="packs the pictures of a prompt into one row; take noise=diffusion8"):
        VCD(images=[1]).generate(model("idefics3"), [CONVERSATION], max_new_tokens=1)
    VCD(images=[1], noise="blur").generate(model("idefics3"), [CONVERSATION], max_new_tokens=1)
    for wrong in (0, [0], ["a"], [True]):
        with pytest.raises(UserError, match="pictures are numbered from 1"):
            VCD(images=wrong)


def test_pictures_are_left_out_or_replaced_by_their_numbers():
    vlm = model("qwen2_5_vl")
    without = CONVERSATION.with_images(lambda _: None, only=[1])
    (left,) = TextOnly(images=[1]).branches(vlm, [CONVERSATION], {})
    assert torch.equal(left["input_ids"], vlm.encode([without])["input_ids"])
    (words,) = TextOnly().branches(vlm, [CONVERSATION], {})
    assert "pixel_values" not in words
    grey = CONVERSATION.with_images(lambda image: Image.new("RGB", image.size, (127, 127, 127)), only=[2])
    (prior,) = PriorCorrection(images=[2]).branches(vlm, [CONVERSATION], {})
    assert torch.equal(prior["pixel_values"], vlm.encode([grey])["pixel_values"])
    swapped = PriorCorrection(prior="swapped", pictures=1).branches(vlm, [CONVERSATION], {})
    pictures = iter([donor("conversation", 0), donor("conversation\npicture 2", 0)])
    expected = CONVERSATION.with_images(lambda image: next(pictures).resize(image.size))
    assert torch.equal(swapped[0]["pixel_values"], vlm.encode([expected])["pixel_values"])


@pytest.mark.parametrize("keep", [True, False])
def test_verbalise_puts_a_caption_for_each_picture(keep):
    vlm = model("llava")
    asked = []
    vlm.on_encode.append(lambda prompts, encoded: asked.extend(prompts))
    answers = Verbalise(picture=keep, description_tokens=3).generate(vlm, BATCH, max_new_tokens=1)
    descriptions = [prompt for prompt in asked if prompt.text == "What is in the image?"]
    assert [prompt.images for prompt in descriptions] == [
        *((prompt.images[0],) for prompt in BATCH),
        *((prompt.images[1],) for prompt in (BATCH[0], BATCH[2])),
    ]
    first, second = (answers.steps[0][name] for name in ("description", "description 2"))
    last = next(prompt for prompt in asked if prompt.messages and len(prompt.turns) == 3)
    parts = [part for turn in last.turns for part in turn.parts if isinstance(part, str)]
    assert [part.startswith(f"Picture {n}: ") for n, part in zip((1, 2), (parts[0], parts[3]), strict=True)] == [
        True
    ] * 2
    assert first.split()[0] in parts[0]
    assert second.split()[0] in parts[3]
    assert last.images == ((FIRST, SECOND) if keep else ())


def test_prompts_stand_before_the_last_turn_or_in_the_system_text():
    before = ContextPrompt("Look.").apply(CONVERSATION)
    assert before.turns[-1].parts == (SECOND, "Look.\nis this safe ?")
    assert before.turns[:2] == CONVERSATION.turns[:2]
    assert SafetyPrompt("Be safe.").apply(CONVERSATION) == replace(CONVERSATION, system="Be safe.")
    assert len(ECSO().answering(CONVERSATION, "a knife").images) == 0


def test_a_conversation_with_one_picture_is_verbalised_in_its_last_question():
    one = CONVERSATION.with_images(lambda _: None, only=[2])
    judged = Verbalise().last_question(one, "A knife on a table.")
    assert judged.prompt.images == ()
    assert len(judged.prompt.turns) == 3
    assert "knife" in judged.prompt.text
