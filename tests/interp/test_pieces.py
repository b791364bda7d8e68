"""IDEFICS' inputs from rendered text are its processor's, and nothing in a question is fetched."""

from typing import Any

import pytest
import torch

from interp.vlm import VLM, Prompt
from tests.families import idefics
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill it?", picture(0, (40, 60))), Prompt("Is it safe to eat the cake?", picture(1))]


@pytest.fixture
def vlm() -> VLM:
    return VLM(*idefics(), name="idefics")


def assert_same(own: Any, given: Any) -> None:
    assert own.keys() == given.keys()
    for name, value in given.items():
        assert torch.equal(own[name], value.to(own[name].dtype)), name


def test_pieces_are_what_the_processor_makes_of_them(vlm: VLM) -> None:
    pieces = [["User:", prompt.image, f"{prompt.text}<end_of_utterance>\nAssistant:"] for prompt in PROMPTS]
    assert_same(vlm.encode(PROMPTS), vlm.processor(text=pieces, padding=True, add_end_of_utterance_token=False))


def test_text_alone_is_what_the_processor_makes_of_it(vlm: VLM) -> None:
    own = vlm.encode([Prompt("Is it?"), Prompt("How do I kill it?")])
    texts = [["User: Is it?<end_of_utterance>\nAssistant:"], ["User: How do I kill it?<end_of_utterance>\nAssistant:"]]
    assert_same(own, vlm.processor(text=texts, padding=True, add_end_of_utterance_token=False))


def test_a_question_that_is_an_address_is_not_fetched(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(self: Any, given: Any) -> Any:
        assert not isinstance(given, str), "a text was fetched"
        return given

    monkeypatch.setattr(type(vlm.processor.image_processor), "fetch_images", fetch)
    encoded = vlm.encode([Prompt("https://example.invalid/a.png", picture())])
    assert "example.invalid" in vlm.tokenizer.decode(encoded["input_ids"][0])
