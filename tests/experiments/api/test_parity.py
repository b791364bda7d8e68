"""Parity of a model here and at an endpoint: one that serves it faithfully, and ones that do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from experiments.api.model import ApiModel
from experiments.api.parity import Parity, Side, compared, made_up_prompts, parity
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.experiments.api import recorded_engine
from tests.experiments.api.fake_engine import FakeEngine
from tests.experiments.faulty_server import Served


@pytest.fixture(scope="module")
def here() -> VLM:
    return load("organism:llava", device="cpu")


@contextmanager
def served(reply: Any) -> Iterator[ApiModel]:
    with Served(reply) as server:
        yield recorded_engine.model(server.url)


def some() -> list[Prompt]:
    """Two pictures under three questions each, and two under one."""
    every = made_up_prompts()
    return [*every[:6], every[12], every[24]]


@pytest.mark.long
def test_a_faithful_endpoint_is_the_same(here: VLM) -> None:
    with served(FakeEngine(here)) as there:
        found = parity(here, there)
    assert found.same, found.text
    text = found.text
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
        ({"blind": True}, "likely cause: pictures that do not arrive (0 there)"),
        ({"weight": 1.5}, "other weights"),
    ],
)
def test_a_fault_is_named(here: VLM, fault: dict[str, Any], cause: str) -> None:
    with served(FakeEngine(here, **fault)) as there:
        found = parity(here, there, some())
    assert not found.same
    assert cause in found.text
    assert found.text.endswith("not the same")


def made(here: list[Side], there: list[Side]) -> Parity:
    prompts = [Prompt("?", Image.new("RGB", (10, 20)), key=f"p{row}") for row in range(len(here))]
    shown = {"image_token": 9, "dtype": torch.float32, "decode": lambda tokens: str(list(tokens))}
    return compared(prompts, here, there, **shown)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": [1, 1, 9, 9, 2]}, "p0: '[1, 2]' here, '[1, 1, 2]' there\n  likely cause: another chat template"),
        ({"tokens": [1, 9, 2]}, "p0: 2 here, 1 there\n  likely cause: pictures that do not arrive (0 there), or other"),
        ({"low": 1.1, "high": 1.1}, "p0: 1.0 here, 1.1 there\n  likely cause: a coarser number format there"),
        ({"low": 1.1, "high": 2.0}, "p0: 1.0 here, 1.1 there"),
        ({"low": 0.0, "high": 0.9}, "margins within 0.01 logits: 0 of 1"),
        ({"answer": "No"}, "two tokens that are nearly as likely"),
        ({"low": 0.0, "high": float("inf")}, "margins within 0.01 logits: 1 of 1"),
        ({"low": float("nan"), "high": float("nan")}, "logits: not given there"),
    ],
)
def test_causes_follow_from_what_differs(change: dict[str, Any], said: str) -> None:
    own = Side([1, 9, 9, 2], "Yes", 1.0, 1.0)
    assert made([own], [own]).same
    assert said in made([own], [replace(own, **change)]).text
