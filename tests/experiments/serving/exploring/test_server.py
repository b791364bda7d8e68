"""The server against whoever shares the machine: token, origin, host, hostile pictures; queue and cancel."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from interp.prompt import Prompt
from interp.vlm import VLM
from tests.experiments.serving.exploring.explored import ACTIONS, CASE, CHANGES, OTHER, TEXT, Explored, exploring
from tests.experiments.serving.served import data_url
from tests.tiny import tiny_llava

WRONG: tuple[dict[str, Any], ...] = (
    {"arms": []},
    {"arms": [{"name": "x"}]},
    {"arms": [{"name": "vcd", "settings": {"alpha": "x"}}]},
    {"arms": [{"name": "vcd", "settings": {"branch": "third"}}]},
    {"change": {"cut": [0, 99]}},
    {"text": "  "},
    {"nothing": 1},
)
ENDPOINTS = ("state", "picture", "show", "work")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_without_the_token_nothing_is_said(page: Explored, endpoint: str) -> None:
    for token in ("", "wrong", page.server.token[:-1]):
        status, found = page.send(f"/api/{endpoint}", {"name": "first"}, token=token)
        assert status == 401
        assert "token" in found["error"]


def test_foreign_hosts_and_origins_are_refused(page: Explored) -> None:
    assert page.send("/", method="GET", Host="evil.example")[0] == 400
    assert page.send("/api/state", Host="evil.example:80")[0] == 400
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{page.port + 1}"):
        assert page.send("/api/state", Origin=origin)[0] == 403
    assert page.send("/api/state", Origin=f"http://127.0.0.1:{page.port}")[0] == 200
    assert page.send("/api/state", Content_Type="text/plain")[0] == 415


def test_the_page_lets_nothing_in_or_out(page: Explored) -> None:
    policy, text = page.policy(), page.send("/", method="GET")[1]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.server.token not in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.long
def test_a_picture_of_more_than_two_million_pixels_is_refused(page: Explored) -> None:
    status, found = page.send("/api/picture", {"url": data_url(Image.new("RGB", (1_500, 1_400)))})
    assert (status, "2,000,000" in found["error"]) == (400, True)  # the page's own bound (task.megapixels)
    assert page.send("/api/picture", {"url": data_url(Image.new("RGB", (1_500, 1_300)))})[0] == 200


def test_no_name_of_a_picture_is_ever_a_path(page: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "secret.png")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    for path in (str(tmp_path / "secret.png"), "../secret.png", (tmp_path / "secret.png").as_uri()):
        for name in (path, f"case:{path}", f"own:{path}", f"drawn:{path}:1"):
            status, found = page.send("/api/show", {"name": name})
            assert (status, len(found["error"]) > 20, "secret.png" in found.get("url", "")) == (400, True, False), name
            assert page.refused("ask", picture=name)
        assert page.send("/api/picture", {"url": path})[0] == 400


@pytest.mark.long
def test_nothing_goes_to_another_machine(page: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()
    connect, named = socket.socket.connect, socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", lambda self, to: (reached.add(to[0]), connect(self, to))[1])
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **_: (reached.add(host), named(host, *more))[1])
    for action in ("ask", *ACTIONS):
        page.work(action, other=OTHER)
    assert reached == {"127.0.0.1"}


def test_bodies_and_words_have_bounds(page: Explored) -> None:
    assert "text" in page.refused("ask", text="word " * 10_000)
    assert "can hold" in page.refused("ask", text="crush " * 3_000)
    assert page.send("/api/work", b'{"a"' + b" " * (33 * 2**20))[0] == 413
    assert page.send("/api/work", b"[" * 100_000)[0] == 400
    assert page.send("/api/picture", [])[0] == 400
    for name in ("case:../../etc/passwd", "/etc/passwd", "drawn:../x:1", "own:" + "0" * 64, "case:" + "<img>"):
        assert page.send("/api/show", {"name": name})[0] == 400
        assert page.refused("ask", picture=name)
    for wrong in WRONG:
        status, found = page.send("/api/work", {"tab": "a", "experiment": {"picture": CASE, "text": TEXT, **wrong}})
        last = found if status == 400 else found[-1]
        error = last.get("error") or last["done"]["answers"][0]["error"]
        assert len(error) > 10, wrong
        assert "went wrong" not in error, (wrong, error)


@pytest.mark.long
def test_a_page_that_leaves_frees_the_model_after_the_forward_under_way() -> None:
    """A tiny random model whose answers only end where their tokens run out, each forward with a pause."""
    vlm = VLM(*tiny_llava(), name="tiny")
    forwards: list[float] = []

    def pause(*_: Any) -> None:
        forwards.append(time.monotonic())
        time.sleep(0.05)

    vlm.model.register_forward_pre_hook(pause)
    with exploring(vlm) as page:
        asked = {"picture": "drawn:cat:1", "text": "word", "framed": False, "tokens": 150}
        body = json.dumps({"tab": "a", "experiment": asked}).encode()
        head = (
            f"POST /api/work HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {page.server.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
            connection.sendall(head.encode() + body)
            heard = b""
            while b'"forwards"' not in heard:
                part = connection.recv(65536)
                assert part, heard
                heard += part
        begun = time.monotonic()
        while page.server.worker._running:
            assert time.monotonic() - begun < 5
            time.sleep(0.005)
        assert len(forwards) < 100
        assert vlm.batches.stop is None


@pytest.mark.long
@pytest.mark.parametrize("what", [*ACTIONS, *CHANGES])
def test_what_breaks_off_in_a_forward_leaves_the_model_bit_by_bit_as_it_was(
    page: Explored, organism: VLM, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At the first, second, fourth, … forward of each action and change, until one goes through."""
    prompt = Prompt("word", page.server.pictures.open(CASE), key="a")
    norm, margin = organism.module_map.module(organism.model, "final_norm"), organism.score([prompt])
    hooks = hooks_of(organism)
    asked = {"action": what} if what in ACTIONS else {"change": CHANGES[what]}
    arms = [{"name": "vcd"}] if what in CHANGES else [{"name": "baseline"}]
    experiment = {"picture": CASE, "text": TEXT, "other": OTHER, "arms": arms} | asked
    whole, ended, at = norm.forward, "", 1
    while "done" not in ended:
        forwards = 0

        def breaking(*args: Any, fail_at: int = at) -> Any:
            nonlocal forwards
            forwards += 1
            if forwards == fail_at:
                raise RuntimeError("planted")
            return whole(*args)

        with monkeypatch.context() as patched:
            patched.setattr(norm, "forward", breaking)
            status, events = page.send("/api/work", {"tab": "a", "experiment": experiment})
        assert status == 200, events
        (ended,) = events[-1].keys() - {"stopped", "forwards"}
        if forwards >= at:
            answers = events[-1].get("done", {}).get("answers", [{}])
            assert ended == "error" or "error" in answers[0]
            ended = "broken off"
        assert hooks_of(organism) == hooks
        assert torch.equal(organism.score([prompt]), margin)
        assert organism.batches.stop is None
        at *= 2
    assert at > 2


def hooks_of(vlm: VLM) -> list[list[Any]]:
    """What hangs in each module; not what only listens, and goes when an error's frames are collected."""
    every = [[*m._forward_hooks.values(), *m._forward_pre_hooks.values()] for m in vlm.model.modules()]
    return [[hook for hook in hooks if not getattr(hook, "only_listens", False)] for hooks in every]
