"""Pictures of requests: three formats, bounded in bytes, pixels and shape, and sent along."""

import base64
import socket
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.serving.pictures import read_picture
from experiments.serving.server import BadRequest
from tests.experiments.benchmarks.test_images import png_claiming
from tests.experiments.serving.served import data_url

PIXELS = 100_000


def drawn(width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def inline(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that somebody tried to reach."""
    tried: list[Any] = []

    def refuse(_: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no connections in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **_: tried.append(a))
    return tried


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_three_formats_are_read(form: str) -> None:
    found = read_picture(data_url(drawn(), form), PIXELS)
    assert (found.mode, found.size) == ("RGB", (40, 30))
    if form == "PNG":
        assert found.tobytes() == drawn().tobytes()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (inline(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "begins data:TYPE;base64"),
        (inline(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not a complete image in one of JPEG, PNG, WEBP"),
        (data_url(drawn(), "GIF"), "begins data:TYPE;base64"),
        (data_url(drawn(), "GIF").replace("image/gif", "image/png"), "not a complete image"),
        (data_url(drawn())[:-600] + "AAAA", "not a complete image"),
        ("data:image/png;base64,%%%", "not valid base64"),
        ("data:image/png;base64,", "has zero bytes"),
        ("data:", "begins data:TYPE;base64"),
        (data_url(drawn(400, 300)), "400 x 300 pixels, more than the 100,000"),
        (inline(png_claiming(60_000, 60_000)), "scale it down"),
        (data_url(drawn(1, 200)), "a strip of 1 x 200 pixels"),
        ("/etc/passwd", "files and paths are never opened"),
        ("FILE:/etc/passwd", "files and paths are never opened"),
        ("http://127.0.0.1:22/x.png", "files and paths are never opened"),
        ("https://example.org/x.png", "files and paths are never opened"),
        ("http://[::1/x.png", "files and paths are never opened"),
    ],
)
def test_anything_else_is_refused_without_a_connection(url: str, said: str, no_connections: list[Any]) -> None:
    with pytest.raises(BadRequest, match=said):
        read_picture(url, PIXELS)
    assert no_connections == []
