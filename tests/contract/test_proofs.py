"""Every family, also those that no table of ours names: each tool against plain forwards of the small model.

What a family cannot do is in the table with the library's reason; ``make contract-check`` compares both.
"""

from functools import cache
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from interp.families import FACTS
from tests.contract.battery import SHOWN_BY, shown
from tests.contract.facts import WITHOUT_ROW
from tests.contract.table import CAPABILITIES
from tests.families import FAMILIES, every_family
from tests.read_families import NEEDS_TORCHVISION, READ

OF_ALL = ("baseline", "residuals", "lens", "record", "patch", "sublayers", "heads", "knockout", "direct_attribution")
"""Of the families of ``tests.families``, the other capabilities have tests of their own."""
OF_READ = ("load", "segments", "generate", "score", "vcd_sequential", "vcd_paired", *OF_ALL)


@cache
def found(name: str) -> dict[str, Any]:
    return shown(name)


def asked(names: list[Any], capabilities: tuple[str, ...]) -> list[Any]:
    """A parameter a cell of the table, family by family, so that one small model at a time is in memory."""
    pairs = [(name if isinstance(name, str) else name.values[0], name, one) for name in names for one in capabilities]
    return [
        pytest.param(family, one, marks=[pytest.mark.contract(one), *getattr(name, "marks", ())], id=f"{family}-{one}")
        for family, name, one in pairs
    ]


READ_NAMES = [pytest.param(name, marks=pytest.mark.families) for name in READ]


@pytest.mark.parametrize(("name", "capability"), [*asked(every_family(), OF_ALL), *asked(READ_NAMES, OF_READ)])
def test_what_a_family_can_do(name: str, capability: str, record_property) -> None:
    said = found(name)
    if name in READ and capability == "load":
        record_property("facts", said["facts"])
        return
    cell = said[capability]
    assert not cell["wrong"], cell["wrong"]
    if cell["refused"]:
        record_property("not_applicable", cell["refused"])
    elif cell["limit"]:
        record_property("limit", cell["limit"])


def test_every_capability_is_asked_and_every_recipe_is_one() -> None:
    assert {*SHOWN_BY, "direct_attribution"} >= set(OF_ALL)
    assert set(OF_READ) <= set(CAPABILITIES)
    assert set(READ) >= NEEDS_TORCHVISION
    assert not set(READ) & set(FAMILIES)


def test_every_model_of_transformers_has_a_row_or_a_reason_why_not() -> None:
    named = [name for names in WITHOUT_ROW.values() for name in names]
    assert len(named) == len(set(named))
    assert {*named, *READ, *FACTS} == set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
