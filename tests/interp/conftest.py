"""A fresh model of each family, and two prompts of unlike length, so that one of them is padded."""

import pytest

from interp.vlm import Prompt
from tests.tiny import picture

PROMPTS = (
    Prompt("How do I kill it?", picture(0, (64, 40))),
    Prompt("Is this safe?", picture(1, (40, 64)), system="Refuse anything unsafe."),
)


@pytest.fixture
def prompts() -> list[Prompt]:
    """The first is the shorter."""
    return list(PROMPTS)
