"""Parity of a model here and at an endpoint: one that serves it faithfully, and ones that do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from experiments.api.parity import Parity, Side, parity, thirty_prompts
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.experiments.api.fake_engine import FakeEngine
from tests.experiments.faulty_server import Served


@pytest.fixture(scope="module")
def here() -> VLM:
    return load("organism:llava", device="cpu")


@contextmanager
def served(reply: Any, **options: Any) -> Iterator[ApiModel]:
    server = Served(reply)
    settings = {"engine": "vllm", "logprobs": "auto", "retries": 0, "concurrency": 2, "shared": False} | options
    try:
        yield ApiModel(ApiConfig("there", "m", server.url, **settings))
    finally:
        server.close()


def some() -> list[Prompt]:
    """Two pictures under two questions each, and four prompts in words."""
    every = thirty_prompts(words=True)
    return [*every[:4], *every[20:24]]


@pytest.mark.long
def test_a_faithful_endpoint_is_the_same(here: VLM) -> None:
    with served(FakeEngine(here)) as there:
        found = parity(here, there)
    assert found.same, str(found)
    text = str(found)
    assert text.startswith("30 prompts here (float32) and there")
    assert "the same words, as tokens: 30 of 30" in text
    assert "as many tokens of the picture: 30 of 30" in text
    assert "margins within 0.01 logits: 30 of 30 (largest" in text
    assert "the same answer, up to 16 tokens: 30 of 30" in text
    assert "likely cause" not in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"before": "Be careful. "}, "8 prompts are written otherwise"),
        ({"blind": True}, "4 pictures do not arrive: no token of them is read there"),
        ({"weight": 1.5}, "other weights"),
    ],
)
def test_a_fault_is_named(here: VLM, fault: dict[str, Any], cause: str) -> None:
    with served(FakeEngine(here, **fault)) as there:
        found = parity(here, there, some())
    assert not found.same
    assert cause in str(found)
    assert str(found).endswith("not the same")


def made(here: list[Side], there: list[Side], dtype: str = "float32") -> Parity:
    prompts = [Prompt("?", Image.new("RGB", (10, 20)), key=f"p{row}") for row in range(len(here))]
    return Parity(prompts, here, there, image_token=9, close=1e-2, dtype=dtype, decode=lambda tokens: str(list(tokens)))


def test_causes_follow_from_what_differs() -> None:
    own = Side([1, 9, 9, 2], "Yes", 1.0, 1.0)
    assert made([own], [own]).same
    assert "1 prompts are written otherwise (p0: '[1, 2]' here, '[1, 1, 2]' there)" in str(
        made([own], [replace(own, tokens=[1, 1, 9, 9, 2])])
    )
    tiles = str(made([own], [replace(own, tokens=[1, 9, 2])]))
    assert "(one of 10×20 pixels: 2 here, 1 there)" in tiles
    assert "a coarser number format there" in str(made([own], [replace(own, low=1.1, high=1.1)]))
    assert "two tokens that are nearly as likely" in str(made([own], [replace(own, answer="No")]))
    bounded = made([own], [replace(own, low=0.0, high=float("inf"))])
    assert bounded.same
    assert "1 of 1, 1 of them by bounds" in str(bounded)
    assert "margins: not given" in str(made([own], [replace(own, low=float("nan"), high=float("nan"))]))
