"""A server of the organism on a port of its own, and requests as clients send them."""

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from PIL import Image

from experiments.config import Run
from experiments.serving.methods import served
from experiments.serving.server import bound, uvicorn_server
from experiments.types import Sample


def reply_to(port: int, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[Any, str]:
    """The reply to a request, and its text."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, data, {"Content-Type": "application/json"} | headers)
        reply = connection.getresponse()
        return reply, reply.read().decode()


@dataclass
class Served:
    """A running server."""

    port: int
    server: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, **options: Any) -> Any:
        """openai's own client."""
        from openai import OpenAI

        return OpenAI(**{"base_url": self.url, "api_key": "none", "max_retries": 0, "timeout": 120} | options)

    def send(
        self, body: Any, path: str = "/v1/chat/completions", method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of the reply to a request as curl sends it; None where the reply is no JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        reply, text = reply_to(self.port, method, path, data, headers or {})
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, None


@contextmanager
def hosted(server: Any, *, ready: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """The port of ``server``, which uvicorn runs in a thread of this process until the block ends."""
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        host = uvicorn_server(server.app())
        thread = threading.Thread(target=host.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not (host.started and ready()):
                assert thread.is_alive()
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            host.should_exit = True
            thread.join(30)
            server.worker.close()


@contextmanager
def running(run: Run, vlm: Any, *, key: str = "") -> Iterator[Served]:
    """The run's server, in threads of this process."""
    task = run.task
    server = task.server(run, served(run), vlm, key)
    with hosted(server) as port:
        yield Served(port, server)


def data_url(image: Image.Image, form: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def turns(text: str, image: str | None) -> list[dict[str, Any]]:
    """A user turn as clients write it; ``image`` is a URL."""
    picture = [] if image is None else [{"type": "image_url", "image_url": {"url": image, "detail": "low"}}]
    return [{"role": "user", "content": [*picture, {"type": "text", "text": text}]}]


def question(sample: Sample, **fields: Any) -> dict[str, Any]:
    """The body that asks what a study asks of the case."""
    image = sample.image
    assert hasattr(image, "render")
    asked = {"messages": turns(sample.prompt, data_url(image.render())), "metadata": {"key": sample.id}}
    return {"model": "llava_organism+vcd", **asked, **fields}
