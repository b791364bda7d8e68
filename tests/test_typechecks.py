"""The tests' own type checks see a wrong type, shape and field, and leave plain functions to beartype."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jaxtyping import TypeCheckError

from tests import typechecks

CODE = """
from collections.abc import Iterator
from dataclasses import dataclass
from jaxtyping import Float
from torch import Tensor

def plain(number: int) -> str:
    return str(number) if number else number

def shaped(left: Float[Tensor, "row width"], right: Float[Tensor, "row other"]) -> Float[Tensor, " row"]:
    return left.sum(1) + right.sum(1)

def listed(rows: list[Float[Tensor, "row width"]]) -> Iterator[int]:
    yield len(rows)

@dataclass(frozen=True)
class Pair:
    left: int

@dataclass(frozen=True)
class Shaped:
    left: Float[Tensor, "row width"]
    right: Float[Tensor, " row"]
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder: Path = tmp_path_factory.mktemp("checked")
    (folder / "checked_by_a_test.py").write_text(CODE)
    sys.path.insert(0, str(folder))
    found = list(sys.meta_path)
    try:
        typechecks.install("checked_by_a_test")
        return importlib.import_module("checked_by_a_test")
    finally:
        sys.path.remove(str(folder))
        sys.meta_path[:] = found


def test_wrong_types_are_seen(module: ModuleType) -> None:
    assert module.plain(1) == "1"
    for wrong in ("1", 0):  # an argument; what is returned
        with pytest.raises(TypeError, match=r"violates type hint") as found:
            module.plain(wrong)
        assert type(found.value) is TypeError  # and no TypeCheckError: no memory of shapes in between
    with pytest.raises(TypeError, match=r"violates type hint"):
        module.Pair("1")
    assert module.Pair(1).left == 1


def test_wrong_shapes_are_seen(module: ModuleType) -> None:
    two, three = torch.zeros(2, 4), torch.zeros(3, 4)
    assert module.shaped(two, two).shape == (2,)
    with pytest.raises(TypeCheckError):
        module.shaped(two, three)
    with pytest.raises(TypeCheckError):
        module.Shaped(two, torch.zeros(3))
    assert next(module.listed([two])) == 1
