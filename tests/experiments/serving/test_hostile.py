"""Hostile requests: a refusal or a right answer, never an error of ours, a hang, a leak or a connection elsewhere."""

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.types import Sample
from tests.conftest import REPOSITORY
from tests.experiments.serving.hostile import Attacker, Sent, post, send
from tests.experiments.serving.served import Served, question

SETTINGS = ["task=serve", "method=vcd", "task.port=0", "task.body_mib=2.5", "task.megapixels=4", "task.max_tokens=128"]


def judged(sent: Sent, status: int, body: bytes, right: str) -> str:
    """What is wrong with a reply, "" if nothing is."""
    kind = sent[0].split()[0]
    if status <= 0:
        return "" if status == 0 and kind == "cut" else f"{sent[0]}: no reply"
    if status == 200 and sent[1].startswith(b"POST") and kind != "leaving":
        found = json.loads(body)["choices"]
        said = found[0]["message"]["content"]
        return "" if kind != "right" or said == right else f"{sent[0]}: {said!r}"
    return "" if status == 200 or 400 <= status < 500 else f"{sent[0]}: {status} {body[:200]!r}"


def attacked(port: int, attacker: Attacker, count: int, right: str) -> Counter[tuple[str, int]]:
    """Sends so many requests with 16 clients; by kind and status, how many replies there were."""
    every = [attacker() for _ in range(count)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda sent: send(port, sent), every))
    wrong = [judged(sent, *reply, right) for sent, reply in zip(every, replies, strict=True)]
    assert [sentence for sentence in wrong if sentence] == []
    return Counter((sent[0].split()[0], status) for sent, (status, _) in zip(every, replies, strict=True))


def of_status(replies: Counter[tuple[str, int]], status: int) -> int:
    return sum(count for (_, found), count in replies.items() if found == status)


@pytest.mark.long
def test_a_hundred_hostile_requests(server: Served, cases: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    connect, elsewhere = socket.socket.connect, []

    def watched(self: socket.socket, address: Any) -> None:
        if address != ("127.0.0.1", server.port):
            elsewhere.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    good = question(cases[0])
    right = server.send(good)[1]["choices"][0]["message"]["content"]
    statuses = attacked(server.port, Attacker(0, good), 100, right)
    assert of_status(statuses, 200) > 5
    assert of_status(statuses, 400) > 20
    assert elsewhere == []
    assert server.server._held == 0


@pytest.mark.slow
def test_two_thousand_hostile_requests(tmp_path: Path, cases: list[Sample]) -> None:
    noted = tmp_path / "connections.txt"
    command = [sys.executable, "-m", "tests.experiments.serving.watched_server", str(noted), *SETTINGS]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "MALLOC_ARENA_MAX": "2"}
    with (
        (tmp_path / "err.txt").open("w") as err,
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=err, text=True, env=environment) as it,
    ):
        assert it.stdout is not None
        port = next(int(found[1]) for line in it.stdout if (found := re.search(r"http://127.0.0.1:(\d+)", line)))
        before = noted.read_text() if noted.exists() else ""
        try:
            good = question(cases[0])
            right = json.loads(send(port, ("right", post(json.dumps(good).encode()), False))[1])
            answer = right["choices"][0]["message"]["content"]
            attacker = Attacker(1, good)
            attacked(port, attacker, 1000, answer)  # what is allocated once is allocated
            sizes = [psutil.Process(it.pid).memory_info().rss]
            statuses: Counter[tuple[str, int]] = Counter()
            for _ in range(4):
                statuses += attacked(port, attacker, 500, answer)
                sizes.append(psutil.Process(it.pid).memory_info().rss)
            flood = ("headers", post(b"{}", *[f"X-{n}: {'x' * 1000}" for n in range(50_000)]), False)  # 50 MB
            assert send(port, flood)[0] in (400, 431)
            assert json.loads(send(port, ("right", post(json.dumps(good).encode()), False))[1])["choices"]
            sizes.append(psutil.Process(it.pid).memory_info().rss)
        finally:
            it.terminate()
            it.wait(60)
    print(sorted(statuses.items()), [round(size / 2**20) for size in sizes])
    assert max(sizes[1:]) <= 1.05 * sizes[0]
    assert (noted.read_text() if noted.exists() else "") == before
    assert "Traceback" not in (tmp_path / "err.txt").read_text()
