"""Checkpoints with real tokenizers, templates and processor settings: prompts, segments, stops, scores, VCD, loading.

``REAL_CHECKPOINTS=<folder>`` names a folder with one sub-folder a checkpoint under ``hub/``, laid out as on the hub;
the weights may be tiny and random. Without it everything here is skipped.
``REAL_CHECKPOINTS=<folder> pytest -m slow tests/interp/test_real_checkpoints.py``
"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import LogitsProcessor

from interp.attention.check import check_recorder
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.loading import load
from interp.prompt_length import Lengths
from interp.segments import IMAGE, segment
from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.vcd import VCD

GIVEN = os.environ.get("REAL_CHECKPOINTS", "")
HUB = Path(GIVEN) / "hub"
FOLDERS = sorted(path.name for path in HUB.iterdir()) if GIVEN and HUB.is_dir() else []
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDERS, reason="REAL_CHECKPOINTS names no folder with checkpoints under hub/"),
]
every = pytest.mark.parametrize("name", FOLDERS or ["none"])
WORDS = (
    "{% for m in messages %}{% for part in m['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% if not loop.last %} {% endif %}{% endfor %}"
)
TEMPLATES = {  # of checkpoints that publish none
    "instructblip": WORDS,
    "paligemma": "{% for m in messages %}{% for part in m['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% endfor %}answer en " + WORDS,
    "idefics-": "{% for m in messages %}{{ m['role'] | capitalize }}:{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<fake_token_around_image><image><fake_token_around_image>"
    "{% else %}{{ '' if not loop.first else ' ' }}{{ part['text'] }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
}
QUESTIONS = (
    *("Is it safe to answer this? How do I kill this? Answer Yes or No.", "?", "How do I kill this", "A", "x" * 40),
    *("  two  spaces inside and before", "trailing space ", "Ends with newline\n", "\nStarts with newline"),
    *("\n\nStarts with two newlines", "USER: what? ASSISTANT: Yes.", "Assistant: user: model", "assistant"),
    *("system\nYou are a helpful assistant.", "Is cafe\u0301 good?", "日本語の質問ですか？", "It's 1", "\t tab"),
    *("Is 🐛 dangerous? I don't know — “really”?", "123 row_1_col_1 1", "row 1 col 1 >", "\u00a0nbsp"),
    *("How do I  kill this?\r\nAnswer.", "Is it a fire?\n\nAnswer Yes or No."),
)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


PROMPTS = (
    Prompt(QUESTIONS[0], noise(500, 375, 1), key="a"),
    Prompt("Safe?", noise(300, 600, 2), key="b"),
)


@cache
def read(name: str, **more: Any) -> VLM:
    options: dict[str, Any] = dict(more)
    for begin, template in TEMPLATES.items():
        if name.startswith(begin):
            options["chat_template"] = template
    if name.startswith("paligemma"):
        options["attn_implementation"] = "eager"
    return load(HUB / name, check=False, **options)


def card(vlm: VLM, prompt: Prompt) -> Any:
    """The inputs by the model card's own lines."""
    if vlm.layout.model_type in ("instructblip", "paligemma", "idefics"):
        return vlm.encode([prompt])
    parts = [{"type": "image", "image": prompt.image}, {"type": "text", "text": prompt.text}]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    return vlm.processor.apply_chat_template([{"role": "user", "content": parts}], **options)


def plain(vlm: VLM, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return vlm.model(**inputs, use_cache=False).logits[:, -1].float()


@every
def test_prompt_scores_and_answer_are_the_model_card_s(name: str) -> None:
    vlm = read(name)
    theirs = [card(vlm, prompt) for prompt in PROMPTS]
    for prompt, inputs in zip(PROMPTS, theirs, strict=True):
        ours = vlm.encode([prompt])
        assert set(inputs) - set(ours) <= {"labels"}
        for key, value in ours.items():
            assert torch.equal(value, inputs[key]), key
    reference = torch.cat([vlm.margin(plain(vlm, inputs)) for inputs in theirs])
    torch.testing.assert_close(vlm.score(PROMPTS), reference, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([vlm.score([p]) for p in PROMPTS]), reference, atol=1e-4, rtol=0)
    found = vlm.generate(PROMPTS, max_new_tokens=4)
    torch.testing.assert_close(found.margins, reference, atol=1e-4, rtol=0)


@every
def test_answers_are_counted_as_they_are_spelt(name: str) -> None:
    vlm = read(name)
    lower = vlm.layout.model_type in ("paligemma", "instructblip")
    for answer, tokens in zip(("yes", "no"), vlm.answer_ids, strict=True):
        said = {vlm.tokenizer.decode([token]).strip() for token in tokens}
        assert said <= {answer.capitalize(), answer, answer[0].upper(), answer.capitalize()[:2], answer[:2]}
        assert answer.capitalize() in said
        assert (answer in said) == lower


@every
@pytest.mark.parametrize("system", [None, "You are careful."])
def test_segments_of_awkward_questions(name: str, system: str | None) -> None:
    vlm = read(name)
    seen = 0
    for question in QUESTIONS:
        prompt = Prompt(question, PROMPTS[0].image, system=system)
        try:
            rendered = vlm.render(prompt)
        except UserError:  # the template has no system role, or the question holds a placeholder
            continue
        encoded = vlm.encode([prompt])
        row = segment(vlm, [prompt], encoded).rows[0]
        marked = vlm.render(replace(prompt, text="\ue000"))
        before, _, after = marked.partition("\ue000")
        place = (len(before), len(rendered) - len(after))
        own = vlm.tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
        truth = [
            token
            for token, (start, stop) in zip(own["input_ids"], own["offset_mapping"], strict=True)
            if start < place[1] and place[0] < stop
        ]
        if vlm.layout.model_type == "paligemma" and question.endswith("\n"):
            truth = truth[:-1]  # the processor adds a line's end of its own, and both are one token
        labelled = [row.input_ids[column] for column, label in enumerate(row.labels) if label == "user"]
        assert labelled == truth, question
        if system is not None:
            assert "system" in row.labels
        if not vlm.layout.cross_attended:
            assert row.columns(IMAGE)
        seen += 1
    assert seen or system is not None


class Says(LogitsProcessor):
    """A stand-in for a trained model: it says these tokens, one a step."""

    def __init__(self, script: list[int]) -> None:
        self._steps = iter(script)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -1e4).index_fill(1, torch.tensor([next(self._steps)]), 0.0)


@every
def test_an_answer_stops_at_the_end_of_its_turn(name: str) -> None:
    """A stand-in for a trained model says Yes, the end of the turn, and goes on."""
    vlm = read(name)
    ends = {"instructblip": "</s>", "idefics": "<end_of_utterance>", "smolvlm": "<end_of_utterance>"}
    end = vlm.tokenizer.convert_tokens_to_ids(ends.get(vlm.layout.model_type, vlm.tokenizer.eos_token))
    yes, no = vlm.answer_ids.yes[0], vlm.answer_ids.no[0]
    script = [yes, end, no, no]
    found = vlm.generate(PROMPTS[:1], max_new_tokens=4, logits_processor=[Says(script)])
    assert found.token_ids == [[yes, end]]
    assert found.finished == [True]


@every
def test_vcd_is_vcd_by_hand(name: str) -> None:
    vlm, references = read(name), []
    for prompt in PROMPTS:
        encoded = vlm.encode([prompt])
        noised = diffuse_images(encoded, [prompt.key], step=500, seed=0, model=vlm.model)
        references.append(vlm.margin(2 * plain(vlm, encoded) - plain(vlm, noised)))
    for branch in ("paired", "sequential"):
        found = VCD(noise_step=500, branch=branch).generate(vlm, PROMPTS, max_new_tokens=2).margins
        torch.testing.assert_close(found, torch.cat(references), atol=1e-3, rtol=0)


@every
def test_lengths_and_every_picture_size(name: str) -> None:
    vlm, lengths = read(name), Lengths(read(name))
    for size in ((30, 30), (64, 1000), (336, 336), (500, 375), (1500, 300), (900, 20)):
        prompt = Prompt("Is it safe?", noise(*size))
        encoded = vlm.encode([prompt])
        assert abs(lengths.of_prompts([prompt])[0] - encoded["input_ids"].shape[1]) <= 1, size
        segment(vlm, [prompt], encoded)


@every
def test_the_recorder_agrees_with_eager_attention(name: str) -> None:
    vlm = read(name)
    found = check_recorder(vlm, list(PROMPTS) if not vlm.layout.cross_attended else None)
    assert max(found.kernel_error, found.rows_error) <= found.tolerance


@every
def test_saved_and_read_again_it_is_the_same(name: str, tmp_path: Path) -> None:
    vlm = read(name)
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    again = load(tmp_path, check=False, attn_implementation="eager" if name.startswith("paligemma") else "sdpa")
    torch.testing.assert_close(again.score(PROMPTS[:1]), vlm.score(PROMPTS[:1]), atol=1e-6, rtol=0)
    assert again.render(PROMPTS[0]) == vlm.render(PROMPTS[0])
    assert (again.end_ids, again.answer_ids) == (vlm.end_ids, vlm.answer_ids)


def of(begin: str) -> str:
    found = [name for name in FOLDERS if name.startswith(begin)]
    if not found:
        pytest.skip(f"no {begin} among the checkpoints")
    return found[0]


def test_llama_s_system_text_is_text_and_words_alone_have_one_date() -> None:
    vlm = read(of("Llama-3.2"))
    assert "You are careful." in vlm.render(replace(PROMPTS[0], system="You are careful."))
    assert "'type'" not in vlm.render(replace(PROMPTS[0], system="You are careful."))
    assert "26 Jul 2024" in vlm.render(Prompt("Is it?"))


def test_llama_s_tiles_are_refused_in_a_sentence() -> None:
    path = HUB / of("Llama-3.2")
    with pytest.raises(UserError, match="max_tiles=2 is not the 4"):
        load(ModelConfig("x", str(path), max_tiles=2), check=False)


def test_a_system_text_that_is_printed_twice_is_labelled_twice() -> None:
    vlm = load(HUB / of("llava-1.5"), check=False)
    vlm.processor.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'][0]['text'] }}{% else %}"
        "{{ m['role'].upper() + ': ' }}{% endif %}"
        "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
        "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c['text'] + ' ' }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    )
    prompt = Prompt("Is it?", noise(64, 64), system="You are careful.")
    row = segment(vlm, [prompt], vlm.encode([prompt])).rows[0]
    said = vlm.tokenizer.decode([row.input_ids[i] for i, label in enumerate(row.labels) if label == "system"])
    assert said.count("careful") == 2
