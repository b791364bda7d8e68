"""The tests' own type checks see a wrong shape and field, and leave alone what names no shape."""

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
    return str(number)

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
    package = folder / "checked_by_a_test"
    package.mkdir()
    (package / "shapes.py").write_text(CODE)
    sys.path.insert(0, str(folder))
    found = list(sys.meta_path)
    try:
        typechecks.install(package)
        return importlib.import_module("checked_by_a_test.shapes")
    finally:
        sys.path.remove(str(folder))
        sys.meta_path[:] = found


def test_what_names_no_shape_is_left_as_it_was(module: ModuleType) -> None:
    assert module.plain("1") == "1"
    assert not hasattr(module.plain, "__wrapped__")
    assert module.Pair("1").left == "1"


def test_wrong_shapes_are_seen(module: ModuleType) -> None:
    two, three = torch.zeros(2, 4), torch.zeros(3, 4)
    assert module.shaped(two, two).shape == (2,)
    with pytest.raises(TypeCheckError):
        module.shaped(two, three)
    with pytest.raises(TypeCheckError):
        module.Shaped(two, torch.zeros(3))
    assert next(module.listed([two])) == 1
