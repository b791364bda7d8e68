"""A stub of a model behind an OpenAI-compatible endpoint, and a proxy before it that spoils what passes through."""

import hashlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

FAULTS = (
    "429", "500", "timeout", "cut", "cut_body", "drip", "empty_body", "empty_text", "garbage", "half", "no_choice",
)  # fmt: skip
SLOW = 2.0  # seconds; clients that are to give up wait less


class Reply(NamedTuple):
    """``body`` None cuts the connection without a word."""

    body: bytes | None
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed
    drip: bool = False


class Served:
    """An HTTP server on loopback with threads of its own; ``requests`` are the bodies that it was sent."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self, reply))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that gave up are what these tests are about."""


def _handler(served: Served, reply: Callable[[dict[str, Any]], Reply]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append(request)
            served.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = reply(request)
            if answer.body is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body))} | answer.headers
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            for i in range(len(answer.body) if answer.drip else 0):
                self.wfile.write(answer.body[i : i + 1])
                time.sleep(0.05)
            if not answer.drip:
                self.wfile.write(answer.body)
            self.close_connection = int(headers["Content-Length"]) != len(answer.body)

        def log_message(self, *_: Any) -> None: ...

    return Handler


def completion(text: str | None, finish: Any = "stop", **choice: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    choices = [{"message": message, "finish_reason": finish} | choice]
    return json.dumps({"object": "chat.completion", "model": "stub-1", "choices": choices}).encode()


def asked(request: dict[str, Any]) -> str:
    """The words of the last message."""
    content = request["messages"][-1]["content"]
    return content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")


def stub_answer(text: str) -> str:
    """What the stub says to a question: always the same, Yes to about every other."""
    return "Yes, it is." if hashlib.sha256(text.encode()).digest()[0] % 2 else "No, it is not."


def stub(request: dict[str, Any]) -> Reply:
    return Reply(completion(stub_answer(asked(request))))


class FaultyProxy(Served):
    """Passes requests on to ``upstream``, and spoils a share of ``rate`` of them by the ``faults`` in turn."""

    def __init__(self, upstream: str, *, faults: tuple[str, ...] = FAULTS, rate: float = 1.0, seed: int = 0) -> None:
        self.rate = rate
        self.injected: Counter[str] = Counter()
        self._upstream = upstream
        self._faults = faults
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        super().__init__(self._reply)

    def _reply(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            fault = ""
            if self._rng.random() < self.rate:
                fault = self._faults[self.injected.total() % len(self._faults)]
                self.injected[fault] += 1
        return self._spoilt(fault, request) if fault else self._passed_on(request)

    def _passed_on(self, request: dict[str, Any]) -> Reply:
        host, _, path = self._upstream.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        body = json.dumps(request)
        connection.request("POST", f"/{path}/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        try:
            return Reply(answer.read(), answer.status)
        finally:
            connection.close()

    def _spoilt(self, fault: str, request: dict[str, Any]) -> Reply:
        if fault == "429":
            return Reply(b'{"error": {"message": "slow down"}}', 429, {"Retry-After": "0.02"})
        if fault == "500":
            return Reply(b"<html>oops</html>", 500, {"Content-Type": "text/html"})
        if fault == "timeout":
            time.sleep(SLOW)
            return Reply(None)
        if fault == "cut":
            return Reply(None)
        whole = self._passed_on(request).body or b""
        spoilt = {
            "cut_body": Reply(whole[:20], headers={"Content-Length": str(len(whole))}),
            "drip": Reply(whole, drip=True),
            "empty_body": Reply(b""),
            "empty_text": Reply(completion("")),
            "garbage": Reply(b"<html>\xff 200 OK</html>", headers={"Content-Type": "text/html"}),
            "half": Reply(whole[: len(whole) // 2]),
            "no_choice": Reply(b'{"choices": []}'),
        }
        return spoilt[fault]
