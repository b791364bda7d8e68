"""What a client may ask, and what is refused in one sentence."""

import json
from typing import Any

import pytest

from experiments.serving.errors import BadRequest
from experiments.serving.requests import Decoding, Question, read_question


def read(**fields: Any) -> Question:
    body = {"model": "m", "messages": [{"role": "user", "content": "Is it safe?"}]} | fields
    return read_question(json.dumps(body).encode(), default_tokens=16, most_tokens=64)


def parts(*urls: str) -> list[dict[str, Any]]:
    pictures = [{"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}]


def said_with(part: Any) -> dict[str, Any]:
    """The fields of a request whose user turn has this part before its words."""
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Safe?"}]}]}


def test_what_is_left_out_is_greedy_and_of_the_runs_length() -> None:
    words = [{"role": "user", "content": [{"type": "text", "text": "Is it safe?"}]}]
    assert read()[1:] == (Decoding(16), words)
    asked = read().body
    assert (asked.model, asked.n, asked.seed, asked.metadata, asked.stream) == ("m", 1, None, {}, False)


def test_everything_that_is_understood() -> None:
    system = {"role": "developer", "content": [{"type": "text", "text": "Be careful."}]}
    found = read(
        messages=[system, *parts("data:x")], max_completion_tokens=5, temperature=0.5, top_p=0.9, seed=7, n=1,
        stop=["\n", "."], logprobs=True, top_logprobs=4, stream=True, stream_options={"include_usage": True},
        metadata={"key": "case 1", "else": "x"}, user="me", tools=[], frequency_penalty=0, response_format=None,
    )  # fmt: skip
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be careful."}]},
        {"role": "user", "content": [{"type": "image", "image": "data:x"}, {"type": "text", "text": "A\nB"}]},
    ]
    assert found[1:] == (Decoding(5, 0.5, 0.9, ("\n", "."), 4), messages)
    asked = found.body
    assert (asked.model, asked.n, asked.seed, asked.metadata["key"]) == ("m", 1, 7, "case 1")
    assert asked.stream
    assert asked.stream_options.include_usage


def test_null_is_as_good_as_left_out() -> None:
    names = ("max_tokens", "temperature", "top_p", "n", "stop", "logprobs", "stream", "stream_options", "metadata", "x")
    assert read(**dict.fromkeys(names)) == read()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": parts(*["data:a"] * 17)}, "17 pictures; a request here has 16 at most"),
        ({"messages": [*parts(), {"role": "assistant", "content": "x"}]}, "the last turn is by 'assistant'"),
        ({"messages": [{"role": "tool", "content": "x"}, *parts()]}, "messages.0 is a turn of role 'tool'"),
        (
            {"messages": [{"role": "assistant", "content": parts("data:a")[0]["content"]}, *parts()]},
            "a picture in the assistant turn; put it into the user's",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "the user turn has no words"),
        (
            said_with({"type": "input_audio"}),
            "messages.0.content.0: Input tag 'input_audio' found using 'type' does not match any of the expected",
        ),
        (
            said_with({"type": "image_url", "image_url": "data:x"}),
            "messages.0.content.0.image_url.image_url: Input should be",
        ),
        (
            said_with({"type": "input_image", "image_url": "data:x"}),
            'content is words, or a list of parts: {"type": "text", "text": "…"} or {"type": "image_url", ',
        ),
        (
            said_with({"type": "image_url", "image_url": {}}),
            "messages.0.content.0.image_url.image_url.url: Field required",
        ),
        (said_with({"type": "text", "text": 3}), "messages.0.content.0.text.text: Input should be a valid string"),
        (said_with({"type": "text", "text": "x", "image": "y"}), "messages.0.content.0.text.image: Extra inputs"),
        (said_with({"text": "x"}), "messages.0.content.0: Unable to extract tag using discriminator 'type'"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages.0.content: Input should be a valid string; content is words, or a list",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]},
            "messages.0.images: Extra inputs are not permitted; content is words, or a list",
        ),
        ({"max_tokens": 65}, "max_tokens=65: this server gives at most 64"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens and max_completion_tokens differ"),
        ({"temperature": "0.5"}, "temperature: "),
        ({"temperature": float("nan")}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"n": 2}, "n: Input should be 1"),
        ({"seed": 2**64}, "seed: "),
        ({"stop": [""]}, "stop.0: String should have at least 1 character"),
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: "),
        ({"metadata": {"key": 3}}, "metadata.key: "),
        ({"tools": [{}]}, "unknown parameter 'tools'; leave it out"),
        ({"repetition_penalty": 1.1}, "unknown parameter 'repetition_penalty'"),
        ({"model": None}, "model: "),
    ],
)
def test_a_refusal_is_one_sentence_that_names_the_parameter(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(**fields)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.status_code == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000, b"1e999"],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_question(body, default_tokens=16, most_tokens=64)


def test_a_conversation_keeps_its_turns_and_pictures() -> None:
    first, answer = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Yes."}
    asked = parts("data:a", "data:b")
    found = read(messages=[first, answer, *asked]).messages
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert [part.get("image", part.get("text")) for part in found[2]["content"]] == ["data:a", "data:b", "A", "B"]
