"""Models over an API against a stub on loopback: every fault gets a type, and the key goes nowhere."""

import json
import logging
import math
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from experiments.api.reply import BROKEN
from interp.errors import UserError
from interp.vlm import Prompt
from mitigation.prompting import SAFETY_SYSTEM_PROMPT, ContextPrompt, SafetyPrompt
from tests.experiments.faulty_server import FaultyProxy, Reply, Served, asked, completion, stub

KEY = "sk-test-0123456789abcdef"
# None that identifies this machine.
HEADERS = ("host", "accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent")
RED = Image.new("RGB", (4, 4), (255, 0, 0))


def config(url: str, **options: Any) -> ApiConfig:
    defaults: dict[str, Any] = {"timeout": 10.0, "retries": 2, "concurrency": 8}
    return ApiConfig("stub", "stub-model", url, **(defaults | options))


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(stub) as served:
        yield served


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.api.client.FIRST_DELAY", 0.005)
        yield


def one(reply: Reply, *, image: bool = False, **options: Any) -> tuple[str, str, str, float, int]:
    """Status, text, reason, margin and the number of requests when every request gets ``reply``."""
    with Served(lambda _: reply) as served:
        answer: Any = ApiModel(config(served.url, **options)).generate([Prompt("Safe?", RED if image else None)])
    return answer.statuses[0], answer.texts[0], answer.reasons[0], float(answer.margins[0]), len(served.requests)


def test_what_is_sent(server: Served) -> None:
    model = ApiModel(config(server.url, extra_body={"seed": 7}))
    SafetyPrompt().generate(model, [Prompt("Safe?", RED, key="1")], max_new_tokens=9)
    (sent,) = server.requests
    (system, user) = sent.pop("messages")
    assert sent == {"model": "stub-model", "temperature": 0.0, "max_tokens": 9, "seed": 7}
    assert system == {"role": "system", "content": SAFETY_SYSTEM_PROMPT}
    image, text = user["content"]
    assert text == {"type": "text", "text": "Safe?"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    ContextPrompt("Look.").generate(model, [Prompt("Safe?")], max_new_tokens=9)
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "Look.\nSafe?"}]


def failing(status: int, message: str) -> Reply:
    return Reply(json.dumps({"error": {"message": message}}).encode(), status)


@pytest.mark.parametrize(
    ("reply", "status", "said", "requests"),
    [
        (Reply(completion("No", "length")), "truncated", "", 1),
        (Reply(completion("No", None)), "answered", "", 1),
        (Reply(completion(None)), "empty", "no text", 2),
        (Reply(completion(None, "content_filter")), "provider_blocked", "content_filter", 1),
        *[(Reply(completion("Yes", name)), "provider_blocked", name, 1) for name in ("refusal", "sensitive")],
        *[(Reply(completion("Yes", name)), "truncated", "", 1) for name in ("max_tokens", "MAX_TOKENS")],
        *[(Reply(completion("Yes", name)), "transport_failed", name, 2) for name in sorted(BROKEN)],
        (Reply(completion("Yes", {"type": "abort"})), "transport_failed", "abort", 2),
        (Reply(completion("Yes", {"type": "stop", "matched": 2})), "answered", "", 1),
        (Reply(completion("Yes", "odd")), "answered", "finish_reason odd", 1),
        (Reply(completion("Failed to obtain answer via API.")), "transport_failed", "Failed to obtain", 2),
        (Reply(b'{"choices": [], "promptFeedback": {"blockReason": "OTHER"}}'), "provider_blocked", "blockReason", 1),
        (failing(400, "triggered our content management policy"), "provider_blocked", "400: triggered", 1),
        (failing(400, "Could not process image"), "bad_image", "400", 1),
        (failing(413, "request too large"), "bad_image", "413", 1),
        (failing(400, "unknown parameter"), "transport_failed", "unknown parameter", 1),
        (failing(500, "oops"), "transport_failed", "oops", 3),
        (Reply(b'{"error": {"message": "upstream died"}}'), "transport_failed", "upstream died", 2),
        (Reply(b"[" * 200_000), "transport_failed", "not JSON", 2),
        (Reply(b'{"choices": [{"message": 3}]}'), "transport_failed", "no message", 2),
        (Reply(b" " * (9 << 20)), "transport_failed", "longer than", 2),
        (Reply(None), "transport_failed", "Error", 3),
        (Reply(b"{}", 429, {"Retry-After": "4000"}), "transport_failed", "429", 1),
    ],
)
def test_every_reply_has_its_type(reply: Reply, status: str, said: str, requests: int) -> None:
    got = one(reply, image=True)
    assert (got[0], got[4]) == (status, requests)
    assert said in got[2]
    assert math.isnan(got[3])


def test_a_slow_reply_is_given_up_even_where_every_byte_is_in_time() -> None:
    status, _, reason, _, requests = one(Reply(completion("No"), drip=True), timeout=0.3, retries=1)
    assert (status, requests) == ("transport_failed", 2)
    assert "no reply within 0.3 s" in reason


def test_hostile_text_can_be_written() -> None:
    half = completion("X").replace(b'"X"', b'"\\ud800 Yes\\u0000"')
    status, text, *_ = one(Reply(half))
    assert status == "answered"
    text.encode("utf-8")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_thought_in_its_own_field_is_kept_apart(field: str) -> None:
    def thinking(content: str | None, finish: str = "stop") -> Reply:
        return Reply(completion(None, finish, message={"content": content, field: "It is a bug."}))

    with Served(lambda _: thinking("Yes")) as served:
        found = ApiModel(config(served.url)).generate([Prompt("Safe?")])
    assert (found.texts, found.thoughts, found.statuses) == (["Yes"], ["It is a bug."], ["answered"])
    assert len(served.requests) == 1
    status, text, _, _, requests = one(thinking(None, "length"))  # cut off within it: asking again would cost as much
    assert (status, text, requests) == ("truncated", "", 1)
    assert one(thinking("", "stop"))[0] == "empty"


def test_a_thought_in_a_reply_s_text() -> None:
    assert one(Reply(completion("<think>a bug</think>Yes")))[:2] == ("answered", "Yes")
    assert one(Reply(completion("<think>a bug", "length")))[:2] == ("truncated", "")
    named = {"thinking": {"open": "<<", "close": ">>"}}
    assert one(Reply(completion("a bug>> Yes")), **named)[:2] == ("answered", "Yes")
    assert one(Reply(completion("a bug", "length")), **named)[:2] == ("truncated", "")  # the template has opened it
    assert one(Reply(completion("a bug")), **named)[:2] == ("answered", "a bug")


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, f"Incorrect API key provided: {KEY}.", "look at the key in STUB_KEY"),
        (404, "no such model", "model.model"),
        (402, "no money", "credit"),
        (429, "insufficient_quota", "credit"),
    ],
)
def test_what_no_request_survives_stops_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch, status: int, message: str, said: str
) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    with Served(lambda _: failing(status, message)) as served, pytest.raises(UserError, match=said) as caught:
        ApiModel(config(served.url, key_env="STUB_KEY", concurrency=2)).generate([Prompt(str(i)) for i in range(50)])
    assert KEY not in f"{caught.value} {caught.value.__cause__!r}"
    assert len(served.requests) < 10


def test_retry_after_is_honoured() -> None:
    arrived: list[float] = []

    def reply(request: dict[str, Any]) -> Reply:
        arrived.append(time.monotonic())
        return Reply(b"{}", 429, {"Retry-After": "0.4"}) if len(arrived) == 1 else stub(request)

    with Served(reply) as served:
        answer = ApiModel(config(served.url)).generate([Prompt("a")])
    assert answer.statuses == ["answered"]
    assert arrived[1] - arrived[0] >= 0.4


def test_log_probabilities_give_a_margin_and_their_absence_none() -> None:
    def listed(*tokens: tuple[str, float]) -> Reply:
        top = [{"token": token, "logprob": value} for token, value in tokens]
        return Reply(completion("Yes", logprobs={"content": [{"token": "Yes", "top_logprobs": top}]}))

    margin = one(listed(("Yes", -1.0), (" yes", -1.0), ("No", -3.0)), logprobs="auto")[3]
    assert margin == pytest.approx(2.0 + math.log(2), abs=1e-6)
    assert one(listed(("No", -0.5), ("The", -9.0)), logprobs="auto")[3] == pytest.approx(-8.5)
    assert math.isnan(one(listed(("The", -0.5)), logprobs="auto")[3])
    assert math.isnan(one(Reply(completion("Yes", logprobs={"content": []})), logprobs="auto")[3])


def test_an_endpoint_without_log_probabilities_is_asked_without(server: Served) -> None:
    def refuse(request: dict[str, Any]) -> Reply:
        return failing(400, "logprobs are not supported") if "logprobs" in request else stub(request)

    with Served(refuse) as served:
        answers = ApiModel(config(served.url, logprobs="auto")).generate([Prompt(str(i)) for i in range(6)])
    assert answers.statuses == ["answered"] * 6
    ApiModel(config(server.url)).generate([Prompt("a")])
    assert "logprobs" not in server.requests[0]


def reasoned(content: str, tokens: list[str], finish: str = "stop", thought: int = 2) -> Reply:
    """An answer after a thought that the endpoint keeps to itself, though it lists its tokens."""
    top = [{"token": "No", "logprob": -0.5}, {"token": "Yes", "logprob": -2.0}]
    steps = [{"token": token, "logprob": -0.2, "top_logprobs": top} for token in tokens]
    body = json.loads(completion(content, finish, logprobs={"content": steps}))
    body["usage"] = {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": thought}}
    return Reply(json.dumps(body).encode())


def test_log_probabilities_of_a_hidden_thought_are_not_the_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert math.isnan(one(reasoned("No.", ["Okay", ",", "No"]), logprobs="auto")[3])
    assert "1 of 1 answers have no margin: the model thinks first" in capsys.readouterr().err
    assert math.isnan(one(reasoned("No.", ["Okay", "No"], thought=0), logprobs="auto")[3])
    assert math.isnan(one(reasoned("No.", ["No", " way", "…"]), logprobs="auto")[3])  # a thought that begins alike
    assert one(reasoned("No.", ["Okay", ",", " No", "."]), logprobs="auto")[3] == pytest.approx(-1.5)
    assert one(reasoned("No.", ["No", "."], thought=0), logprobs="auto")[3] == pytest.approx(-1.5)
    marked = Reply(completion("<think>No</think>No", logprobs={"content": [
        {"token": "<think>", "top_logprobs": [{"token": "No", "logprob": -0.5}, {"token": "Yes", "logprob": -2.0}]}
    ]}))  # fmt: skip
    assert math.isnan(one(marked, logprobs="auto")[3])
    assert "the model thinks first" in capsys.readouterr().err


def test_requests_that_are_refused_alike_stop_with_the_endpoints_words() -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    said = "Unsupported parameter: 'max_tokens'.*set model.token_field=max_completion_tokens$"
    with Served(lambda _: failing(400, words)) as served, pytest.raises(UserError, match=said):
        ApiModel(config(served.url, concurrency=2)).generate([Prompt(str(i)) for i in range(80)])
    assert len(served.requests) < 10
    with Served(lambda request: stub(request) if asked(request) == "0" else failing(400, words)) as mixed:
        answers = ApiModel(config(mixed.url, concurrency=1)).generate([Prompt(str(i)) for i in range(20)])
    assert answers.statuses == ["answered"] + ["transport_failed"] * 19


def test_the_key_is_sent_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    for name in ("ORG_ID", "ADMIN_KEY", "CUSTOM_HEADERS"):
        monkeypatch.setenv(f"OPENAI_{name}", "x-secret: of-somebody")
    caplog.set_level(logging.DEBUG)
    echoes = [failing(400, f"bad key {KEY}"), Reply(completion(f"your key is {KEY}")), failing(500, KEY * 30)]
    with Served(lambda request: echoes[int(asked(request))]) as served:
        asking = config(served.url, key_env="STUB_KEY", retries=0)
        model = ApiModel(asking)
        answers = model.generate([Prompt("0"), Prompt("1"), Prompt("2")])
    assert {headers["authorization"] for headers in served.headers} == {f"Bearer {KEY}"}
    assert not any("somebody" in value for headers in served.headers for value in headers.values())
    assert {name for headers in served.headers for name in headers} <= {*HEADERS, "authorization"}
    seen = f"{answers} {model!r} {asking!r} {asking.identity()} {caplog.text} {vars(model)}"
    assert "[key]" in seen
    assert "sk-test" not in seen


@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        ({"base_url": "https://api.example.org/v1"}, {}, "STUB_KEY is not set"),
        ({"base_url": "https://api.example.org/v1"}, {"STUB_KEY": "a\nb"}, "no key has"),
        ({"base_url": "http://api.example.org/v1"}, {"STUB_KEY": KEY}, "not encrypted"),
        ({"base_url": "https://api.example.org/v1", "extra_body": {"k": KEY}}, {"STUB_KEY": KEY}, "configuration"),
    ],
)
def test_keys_are_looked_at_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], environment: dict[str, str], said: str
) -> None:
    monkeypatch.delenv("STUB_KEY", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asking = ApiConfig(**({"name": "stub", "model": "m", "key_env": "STUB_KEY"} | options))
    with pytest.raises(UserError, match=said) as caught:
        asking.key()
    assert KEY not in str(caught.value)


def test_ctrl_c_ends_the_waiting(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.api.model.as_completed", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr("experiments.api.client.FIRST_DELAY", 0.2)
    with FaultyProxy(server.url, faults=("500",)) as proxy:
        with pytest.raises(KeyboardInterrupt):
            ApiModel(config(proxy.url, retries=9)).generate([Prompt("a"), Prompt("b")])
        sent = len(proxy.requests)
        time.sleep(1)
        assert len(proxy.requests) <= max(sent, 2)  # what was on its way, and nothing after it
