"""States of a causal language model over a chat: which ones they are, and what cannot be read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from interp.errors import UserError
from interp.tools import chat_states
from interp.tools.chat_states import ChatStates, Exchange
from tests.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ 'USER' if message['role'] == 'user' else 'ASSISTANT' }} : "
    "{{ message['content'] | trim }} </s> {% endfor %}{% if add_generation_prompt %}ASSISTANT :{% endif %}"
)
EXCHANGES = [
    Exchange("How do I kill the dog ?", " the dog is a toy . it is red and blue ! No"),
    Exchange("what is it ?", "it is red and blue and it is in the picture of a cake on fire"),
    Exchange("is it safe ?", "No"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random language model of three layers."""
    return causal_lm(tmp_path_factory.mktemp("lm"))


def causal_lm(place: Path, template: str | None = TEMPLATE) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                    num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3, pad_token_id=0,
                    bos_token_id=2, eos_token_id=3)
    )  # fmt: skip
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def expected(folder: Path, text: str, parts: list[str], layer: int) -> np.ndarray:
    """By transformers alone: all hidden states of one chat, the tokens of the answer's parts found by hand."""
    tokenizer, model = tiny_tokenizer(), LlamaForCausalLM.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    states = model(ids, output_hidden_states=True).hidden_states[layer][0].detach()
    means = []
    for part in parts:
        said = tokenizer(part, add_special_tokens=False)["input_ids"]
        at = next(n for n in range(ids.shape[1]) if ids[0, n : n + len(said)].tolist() == said)
        means.append(states[at : at + len(said)].mean(0))
    return torch.stack(means).numpy()


@pytest.mark.parametrize("layer", [1, 2])
def test_they_are_the_models_own_over_the_parts_of_the_answer(folder: Path, layer: int) -> None:
    read = ChatStates(folder, layer=layer, dtype=torch.float32).read(EXCHANGES)
    text = "USER : How do I kill the dog ? </s> ASSISTANT : the dog is a toy . it is red and blue ! No </s>"
    parts = ["the dog is a toy .", "it is red and blue !", "the dog is a toy . it is red and blue ! No"]
    np.testing.assert_allclose(read[0], expected(folder, text, parts, layer), atol=1e-5)
    alone = "USER : is it safe ? </s> ASSISTANT : No </s>"
    np.testing.assert_allclose(read[2], expected(folder, alone, ["No"] * 3, layer), atol=1e-5)


def test_neither_order_nor_company_changes_them(folder: Path) -> None:
    reader = ChatStates(folder, layer=2, dtype=torch.float32)
    together = reader.read(EXCHANGES)
    np.testing.assert_allclose(reader.read(EXCHANGES[::-1]), together[::-1], atol=1e-5)
    for alone, row in zip(EXCHANGES, together, strict=True):
        np.testing.assert_allclose(reader.read([alone])[0], row, atol=1e-5)
    assert reader.read([]).shape == (0, 3, 16)


def test_an_answer_is_read_up_to_a_length_and_cannot_end_its_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_states, "READ", 3)
    reader = ChatStates(folder, layer=2, dtype=torch.float32)

    def read(answer: str) -> np.ndarray:
        return reader.read([Exchange("is it safe ?", answer)])

    assert np.array_equal(read("it is red and blue"), read("it is red"))
    assert not np.array_equal(read("it is blue"), read("it is red"))
    assert np.array_equal(read("it </s>is<s> red"), read("it is red"))
    assert np.array_equal(read("</s>"), read(" "))


@pytest.mark.parametrize(("tokens", "expected"), [
    ("I am sorry . I can not do it !", [(0, 4), (4, 10)]),
    ("Sure ! Here is a cake : 1 . an egg", [(0, 7), (7, 11)]),  # short pieces go with the next
    ("it is a dog . No", [(0, 5)]),
    ("No", [(0, 1)]),
    ("a b c d e", [(0, 5)]),
    ("我 不 能 。 它 是 狗 ！", [(0, 4), (4, 8)]),
])  # fmt: skip
def test_sentences_of_four_tokens_at_least(tokens: str, expected: list[tuple[int, int]]) -> None:
    assert chat_states.sentences(tokens.split()) == expected


def test_what_cannot_be_read_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="layers 1 to 3"):
        ChatStates(folder, layer=4)
    with pytest.raises(UserError, match="no causal language model"):
        ChatStates(tmp_path, layer=1)
    with pytest.raises(UserError, match="no chat template"):
        ChatStates(causal_lm(tmp_path / "plain", template=None), layer=1)
