"""One page's server of the first organism for the tests of this folder."""

from collections.abc import Iterator

import pytest

from interp.vlm import VLM
from tests.experiments.serving.exploring.explored import Explored, exploring


@pytest.fixture(scope="module")
def page(organism: VLM) -> Iterator[Explored]:
    with exploring(organism) as found:
        yield found
