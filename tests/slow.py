"""Variants of a test that are asked weekly (``make test-all``), where CI asks the same law of another variant."""

from typing import Any

import pytest


def weekly(*values: Any) -> Any:
    """A parameter set of ``pytest.mark.parametrize`` that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first(values: Any) -> list[Any]:
    """The values, all but the first asked weekly."""
    one, *others = values
    return [one, *map(weekly, others)]
