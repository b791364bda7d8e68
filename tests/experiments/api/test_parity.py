"""Parity of a model here and at an endpoint: one that serves it faithfully, and ones that do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from experiments.api.parity import Parity, Side, compared, made_up_prompts, parity
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
    settings = {"engine": "vllm", "logprobs": "auto", "retries": 0, "concurrency": 2} | options
    try:
        yield ApiModel(ApiConfig("there", "m", server.url, **settings))
    finally:
        server.close()


def some() -> list[Prompt]:
    """Two pictures under three questions each, and two under one."""
    every = made_up_prompts()
    return [*every[:6], every[12], every[24]]


@pytest.mark.long
def test_a_faithful_endpoint_is_the_same(here: VLM) -> None:
    with served(FakeEngine(here)) as there:
        found = parity(here, there)
    assert found.same, str(found)
    text = str(found)
    assert text.startswith("30 prompts here (float32) and there")
    assert "the same words, as tokens: 30 of 30" in text
    assert "as many tokens of the picture: 30 of 30" in text
    assert "margins within 0.01 logits: 30 of 30" in text
    assert "the same answer, up to 16 tokens: 30 of 30" in text
    assert "likely cause" not in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"before": "Be careful. "}, "the same words, as tokens: 0 of 8"),
        ({"blind": True}, "likely cause: pictures do not arrive: no token of them is read there"),
        ({"weight": 1.5}, "other weights"),
    ],
)
def test_a_fault_is_named(here: VLM, fault: dict[str, Any], cause: str) -> None:
    with served(FakeEngine(here, **fault)) as there:
        found = parity(here, there, some())
    assert not found.same
    assert cause in str(found)
    assert str(found).endswith("not the same")


def made(here: list[Side], there: list[Side]) -> Parity:
    prompts = [Prompt("?", Image.new("RGB", (10, 20)), key=f"p{row}") for row in range(len(here))]
    shown = {"image_token": 9, "dtype": torch.float32, "decode": lambda tokens: str(list(tokens))}
    return compared(prompts, here, there, **shown)  # type: ignore[arg-type]


def test_causes_follow_from_what_differs() -> None:
    own = Side([1, 9, 9, 2], "Yes", 1.0, 1.0)
    assert made([own], [own]).same
    assert "p0: '[1, 2]' here, '[1, 1, 2]' there\n  likely cause: another chat template" in str(
        made([own], [replace(own, tokens=[1, 1, 9, 9, 2])])
    )
    tiles = str(made([own], [replace(own, tokens=[1, 9, 2])]))
    assert "p0: 2 here, 1 there\n  likely cause: other limits on the picture's size" in tiles
    assert "p0: '1' here, '1.1' there\n  likely cause: a coarser number format there" in str(
        made([own], [replace(own, low=1.1, high=1.1)])
    )
    assert "two tokens that are nearly as likely" in str(made([own], [replace(own, answer="No")]))
    bounded = made([own], [replace(own, low=0.0, high=float("inf"))])
    assert bounded.same
    assert "(1 of 1 by bounds): 1 of 1" in str(bounded)
    assert "logits: not given there" in str(made([own], [replace(own, low=float("nan"), high=float("nan"))]))
