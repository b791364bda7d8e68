"""The endpoints with the organism behind them, asked by openai's client and as curl asks."""

import json
import math
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor
from transformers import LogitsProcessor

from experiments.benchmarks.images import pixel_digest
from experiments.evaluation.attention_log import prompts_of
from experiments.types import Sample
from interp.generation import Generation
from interp.vlm import VLM, Prompt
from mitigation.wrappers import Sampled
from tests.experiments.compose import run_of
from tests.experiments.serving.served import Served, question, running, turns

NAMES = ["llava_organism+vcd", "llava_organism+prior", "llava_organism"]


def tokens_of(vlm: VLM, generation: Generation, row: int) -> list[str]:
    return [vlm.tokenizer.decode([token]) for token in generation.token_ids[row]]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_the_methods_own_token_for_token(
    server: Served, organism: VLM, cases: list[Sample], name: str
) -> None:
    few = cases[:6]
    method = server.server.served[name]
    expected = method.generate(organism, prompts_of(few), max_new_tokens=16)

    def ask(case: Sample) -> Any:
        return server.client().chat.completions.create(**question(case, model=name, logprobs=True))

    with ThreadPoolExecutor(6) as pool:
        for row, reply in enumerate(pool.map(ask, few)):
            (choice,) = reply.choices
            assert choice.message.content == expected.texts[row]
            assert [token.token for token in choice.logprobs.content] == tokens_of(organism, expected, row)
            assert choice.finish_reason == "stop"
            assert reply.model == name
            assert reply.usage.completion_tokens == len(expected.token_ids[row])
            assert reply.usage.prompt_tokens == int(organism.encode([prompts_of(few)[row]])["attention_mask"].sum())


@pytest.mark.long
def test_logprobs_are_those_of_the_scores_that_the_answer_was_drawn_from(
    server: Served, organism: VLM, cases: list[Sample]
) -> None:
    """Where the cutoff leaves both answers, log P(Yes) − log P(No) is the study's margin."""
    yes, no = (organism.tokenizer.decode([ids[0]]) for ids in organism.answer_ids)
    both = 0
    for name in NAMES:
        margins = server.server.served[name].generate(organism, prompts_of(cases), max_new_tokens=1).margins
        for case, margin in zip(cases, margins.tolist(), strict=True):
            _, reply = server.send(question(case, model=name, max_tokens=1, logprobs=True, top_logprobs=20))
            (token,) = reply["choices"][0]["logprobs"]["content"]
            listed = {one["token"]: one["logprob"] for one in token["top_logprobs"]}
            assert token["logprob"] == max(listed.values()) == listed[token["token"]]
            assert sum(map(math.exp, listed.values())) <= 1 + 1e-5
            if yes in listed and no in listed:
                both += 1
                assert listed[yes] - listed[no] == pytest.approx(margin, abs=1e-4)
    assert both > 20


def test_a_key_decides_about_the_noise_and_without_one_the_picture_does(
    server: Served, organism: VLM, cases: list[Sample]
) -> None:
    method = server.server.served[NAMES[0]]
    case = cases[0]
    picture = case.image.render()  # type: ignore[union-attr]

    def chosen(**fields: Any) -> float:
        _, reply = server.send(question(case, max_tokens=1, logprobs=True) | fields)
        return float(reply["choices"][0]["logprobs"]["content"][0]["logprob"])

    def margin(key: str) -> float:
        return float(method.generate(organism, [Prompt(case.prompt, picture, key=key)], max_new_tokens=1).margins[0])

    assert margin(case.id) != pytest.approx(margin("another"), abs=1e-3)
    assert chosen() != pytest.approx(chosen(metadata={"key": "another"}), abs=1e-4)
    assert chosen(metadata=None) == pytest.approx(chosen(metadata={"key": pixel_digest(picture)}), abs=1e-6)


@pytest.mark.long
def test_sampling_is_the_projects_own_and_seeds_differ(server: Served, organism: VLM, cases: list[Sample]) -> None:
    few = cases[:8]
    warm = {"temperature": 1.5, "seed": 5, "max_tokens": 8}
    method = Sampled(server.server.served[NAMES[2]], temperature=1.5, seed=5)
    expected = method.generate(organism, prompts_of(few), max_new_tokens=8)
    texts = set()
    for case, text in zip(few, expected.texts, strict=True):
        assert said(server.send(question(case, model=NAMES[2], **warm))) == text
        texts |= {text, said(server.send(question(case, model=NAMES[2], **warm | {"seed": 6})))}
    assert len(texts) > 1


def said(reply: tuple[int, Any], choice: int = 0) -> str:
    return str(reply[1]["choices"][choice]["message"]["content"])


def streamed(server: Served, body: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """By choice: text, pieces, finish_reason and logprobs of a stream."""
    found: dict[int, dict[str, Any]] = {}
    for part in server.client().chat.completions.create(**body, stream=True, stream_options={"include_usage": True}):
        assert part.model == body["model"]
        if not part.choices:
            found[-1] = {"usage": part.usage}
        for choice in part.choices:
            one = found.setdefault(choice.index, {"pieces": [], "finish": None, "logprobs": []})
            one["pieces"] += [choice.delta.content] if choice.delta.content else []
            one["logprobs"] += choice.logprobs.content if choice.logprobs else []
            one["finish"] = choice.finish_reason or one["finish"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 1}, {"stop": ["e", "t p"]}])
def test_a_stream_says_what_the_whole_reply_says(talker: Served, cases: list[Sample], fields: dict[str, Any]) -> None:
    for name in NAMES[::2]:
        body = question(cases[1], model=name, max_tokens=24, logprobs=True, **fields)
        _, whole = talker.send(body)
        parts = streamed(talker, body)
        assert parts.pop(-1)["usage"].total_tokens == whole["usage"]["total_tokens"]
        for choice in whole["choices"]:
            part = parts.pop(choice["index"])
            assert "".join(part["pieces"]) == choice["message"]["content"]
            assert part["finish"] == choice["finish_reason"]
            assert [token.token for token in part["logprobs"]] == [t["token"] for t in choice["logprobs"]["content"]]
        assert parts == {}


@pytest.mark.long
def test_a_stop_string_ends_the_answer_before_it(talker: Served, cases: list[Sample]) -> None:
    for name in NAMES[::2]:
        body = question(cases[1], model=name, temperature=1.0, seed=1, max_tokens=24)
        whole = talker.send(body)
        stop = said(whole).split()[3]
        cut = talker.send(body | {"stop": ["never", stop]})
        assert said(cut) == said(whole)[: said(whole).find(stop)].strip()
        assert cut[1]["choices"][0]["finish_reason"] == "stop"
        assert cut[1]["usage"]["completion_tokens"] < whole[1]["usage"]["completion_tokens"]
        words = said(whole).split()
        over = " ".join(words[2:6])  # nothing of a stop string is streamed, over however many words it goes
        parts = streamed(talker, body | {"stop": over})
        assert "".join(parts[0]["pieces"]) == said(whole)[: said(whole).find(over)].strip()


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"messages": turns("Is it safe?", None)}, 400, "VCD contrasts two pictures"),
        ({"messages": turns("<image> Is it safe?", None), "model": NAMES[2]}, 400, "placeholder"),
        ({"messages": turns("safe " * 600, None), "model": NAMES[2]}, 400, "more than the 512"),
        ({"max_tokens": 500}, 400, "more than the 512"),
        ({"max_tokens": 5000}, 400, "at most 1024 tokens"),
        ({"model": "gpt-4o"}, 404, "there are llava_organism+vcd, llava_organism+prior, llava_organism"),
        ({"temperature": "hot"}, 400, "temperature"),
    ],
)
def test_an_error_is_one_sentence_in_openais_form(
    server: Served, cases: list[Sample], change: dict[str, Any], status: int, said: str
) -> None:
    for stream in (False, True):
        found, reply = server.send(question(cases[0]) | change | {"stream": stream})
        assert found == status
        assert set(reply) == {"error"}
        assert set(reply["error"]) == {"message", "type", "param", "code"}
        assert said in reply["error"]["message"]
        assert "\n" not in reply["error"]["message"]


def test_a_foreign_host_and_another_content_are_refused(server: Served, cases: list[Sample]) -> None:
    assert server.send(question(cases[0]), headers={"Host": "evil.example"})[0] == 400
    assert server.send(question(cases[0]), headers={"Host": f"[::1]:{server.port}"})[0] == 200
    assert server.send(question(cases[0]), headers={"Content-Type": "text/plain"})[0] == 415


def test_a_refusal_reaches_a_client_that_sends_all_it_has_first(organism: VLM) -> None:
    closing = {"Connection": "close"}
    with running(run_of("task=serve", "method=baseline", "task.body_mib=4"), organism, key="k") as guarded:
        body, known = b" " * (12 * 2**20), {"Authorization": "Bearer k"} | closing
        for headers, status in ((known, 413), (known | {"Content-Type": "text/plain"}, 415), (closing, 401)):
            assert guarded.send(body, headers=headers)[0] == status
        assert guarded.send(body, path="/v1/completions", headers=closing)[0] == 404


@pytest.mark.long
@pytest.mark.parametrize("header", ["Expect: 100-continue", "X-Other: y"])
def test_a_body_without_an_end_is_not_read_for_ever(server: Served, header: str) -> None:
    """Neither that of a client that waits to be asked for it, nor one that goes on."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(POST + f"{header}\r\nContent-Length: {10**12}\r\n\r\n".encode())
        raw = b""
        while part := client.recv(65536):  # until it is closed
            raw += part
        assert raw.startswith(b"HTTP/1.1 413")


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEAD = POST + b"Connection: close\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Content-Length: -1\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nHost: evil.example\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
        HEAD + b"X-Large: " + b"x" * 1_000_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 500000\r\n\r\n" + b"[" * 500_000,
        HEAD + b"Content-Length: 3\r\n\r\n\xff\xfe\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/models/%00%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[-24:]),
)
def test_a_request_that_means_no_good_is_refused(server: Served, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before everything was sent
            client.sendall(raw)
        head = client.recv(65536)
    assert 400 <= int(head.split()[1]) < 500
    assert server.send(None, "/v1/models", "GET")[0] == 200


def test_a_key_is_asked_for_where_there_is_one(organism: VLM, cases: list[Sample]) -> None:
    with running(run_of("task=serve", "method=baseline"), organism, key="open sesame") as guarded:
        body = question(cases[0], model=NAMES[2])
        for header in ({}, {"Authorization": "Bearer open"}, {"Authorization": "Basic open sesame"}):
            status, reply = guarded.send(body, headers=header)
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
            assert guarded.send(None, "/v1/models", "GET", header)[0] == 401
        assert guarded.send(body, headers={"Authorization": "Bearer open sesame"})[0] == 200
        assert [model.id for model in guarded.client(api_key="open sesame").models.list()] == [NAMES[2]]


class _Slowly(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        time.sleep(0.05)
        return scores


@dataclass(frozen=True)
class Slow:
    """A twentieth of a second a token."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[_Slowly()])


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_model(talker: Served, cases: list[Sample], stream: bool) -> None:
    talker.server.served["slow"] = Slow()
    data = json.dumps(question(cases[0], model="slow", temperature=1, max_tokens=100, stream=stream)).encode()
    began = time.monotonic()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", talker.port)) as client:
            client.sendall(POST + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
            time.sleep(0.3)  # its answer has begun, and would take five seconds
    assert talker.send(question(cases[0], max_tokens=1))[0] == 200
    assert time.monotonic() - began < 4.5
    assert talker.server.worker._waiting == []
