"""Every tool and method works where half of the decoder and the head are on another device than the embeddings.

The real code runs on two pretended devices (``tests.two_devices.device``): in the shape of seven billion parameters,
without values, where whatever mixes two devices raises; and on small models with values, whose answers must be the
CPU's.
"""

from functools import cache
from typing import Any

import pytest

from tests.contract.jobs import lines_of
from tests.families import FAMILIES
from tests.two_devices.cells import CELLS
from tests.weekly import weekly

pytestmark = pytest.mark.long  # a job serves all of a family and kind, and takes a quarter of a minute

further = pytest.mark.families  # all but LLaVA are asked by `make contract` alone


@cache
def outcomes(family: str, kind: str) -> dict[str, dict[str, Any]]:
    """What the family's job said of every cell; skips where this torch cannot pretend a device."""
    return {line["cell"]: line for line in lines_of("tests.two_devices.job", family, kind)}


@pytest.mark.contract("two_devices")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("family", "kind"),
    [weekly("llava", "shapes"), weekly("llava", "head_first"), pytest.param("qwen2_5_vl", "shapes", marks=further)],
)
def test_nothing_mixes_devices_at_seven_billion(family: str, kind: str, cell: str) -> None:
    """``head_first``: with the head where the embeddings are, and so on another device than what leads to it."""
    said = outcomes(family, kind)[cell]
    assert not said["error"], said["error"] + "\n" + said["trace"]


@pytest.mark.contract("two_devices")
@pytest.mark.parametrize("family", [pytest.param(name, marks=() if name == "llava" else further) for name in FAMILIES])
def test_answers_are_those_of_one_device(family: str) -> None:
    said = {cell: one["error"] for cell, one in outcomes(family, "values").items()}
    assert set(said) == set(CELLS)
    assert not any(said.values()), {cell: error for cell, error in said.items() if error}
