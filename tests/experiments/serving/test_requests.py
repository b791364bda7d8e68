"""What a client may ask, and what is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiments.benchmarks.images import data_url
from experiments.serving.requests import Decoding, Question, read_question
from experiments.serving.server import BadRequest
from interp.prompt import Prompt
from tests.snapshots import check_entry, entries

FILE = Path(__file__).parent / "snapshots" / "refused.txt"


def read(**fields: Any) -> Question:
    body = {"model": "m", "messages": [{"role": "user", "content": "Is it safe?"}]} | fields
    return read_question(json.dumps(body).encode(), default_tokens=16, most_tokens=64, most_pixels=10_000)


RED, BLUE = (data_url(Image.new("RGB", (2, 2), colour)) for colour in ("red", "blue"))


def parts(*urls: str) -> list[dict[str, Any]]:
    pictures = [{"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}]


def said_with(part: Any) -> dict[str, Any]:
    """The fields of a request whose user turn has this part before its words; the file of sentences calls it."""
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Safe?"}]}]}


def test_what_is_left_out_is_greedy_and_of_the_runs_length() -> None:
    assert read()[1:] == (Decoding(16), Prompt("Is it safe?"))
    asked = read().body
    assert (asked.model, asked.n, asked.seed, asked.metadata, asked.stream) == ("m", 1, None, {}, False)


def test_everything_that_is_understood() -> None:
    system = {"role": "developer", "content": [{"type": "text", "text": "Be careful."}]}
    found = read(
        messages=[system, *parts(RED)], max_completion_tokens=5, temperature=0.5, top_p=0.9, seed=7, n=1,
        stop=["\n", "."], logprobs=True, top_logprobs=4, stream=True, stream_options={"include_usage": True},
        metadata={"key": "case 1", "else": "x"}, user="me", tools=[], frequency_penalty=0, response_format=None,
    )  # fmt: skip
    assert found.decoding == Decoding(5, 0.5, 0.9, ("\n", "."), 4)
    assert found.prompt.content == Prompt("A\nB", Image.new("RGB", (2, 2), "red"), "Be careful.").content
    asked = found.body
    assert (asked.model, asked.n, asked.seed, asked.metadata["key"]) == ("m", 1, 7, "case 1")
    assert asked.stream
    assert asked.stream_options.include_usage


def test_null_is_as_good_as_left_out() -> None:
    names = ("max_tokens", "temperature", "top_p", "n", "stop", "logprobs", "stream", "stream_options", "metadata", "x")
    assert read(**dict.fromkeys(names)) == read()


@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_a_refusal_is_one_sentence_that_names_the_parameter(entry: tuple[str, str]) -> None:
    with pytest.raises(BadRequest) as refused:
        read(**eval(entry[0]))
    assert "\n" not in str(refused.value)
    assert refused.value.status_code == 400
    check_entry(FILE, entry, str(refused.value))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000, b"1e999"],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_question(body, default_tokens=16, most_tokens=64, most_pixels=10_000)


def test_a_conversation_keeps_its_turns_and_pictures() -> None:
    first, answer = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Yes."}
    asked = parts(RED, BLUE)
    found = read(messages=[first, answer, *asked]).prompt
    assert [turn.role for turn in found.turns] == ["user", "assistant", "user"]
    assert found.turns[2].parts == (*found.images, "A", "B")
    assert [image.getpixel((0, 0)) for image in found.images] == [(255, 0, 0), (0, 0, 255)]
