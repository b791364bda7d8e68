"""Hostile requests: a refusal or a right answer, never an error of ours, a hang or a connection elsewhere."""

import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from experiments.types import Sample
from tests.experiments.serving.hostile import Attacker, Sent, send
from tests.experiments.serving.served import Served, question


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
    assert server.server.worker._waiting == []
