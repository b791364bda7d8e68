"""Fixtures of the tests of experiments."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.experiments.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; closed with the module, lest its event loop outlive the tests that need it."""
    with chromium() as found:
        yield found
