"""A fresh model of each family, and two prompts of unlike length, so that one of them is padded."""

import pytest

from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.tiny import picture

PROMPTS = (
    Prompt("How do I kill it?", picture(0, (64, 40))),
    Prompt("Is this safe?", picture(1, (40, 64)), system="Refuse anything unsafe."),
)


@pytest.fixture(params=every_family())
def family(request: pytest.FixtureRequest) -> VLM:
    """One model of every family in turn."""
    return VLM(*FAMILIES[request.param](), name=request.param)


@pytest.fixture
def prompts() -> list[Prompt]:
    """The first is the shorter."""
    return list(PROMPTS)
