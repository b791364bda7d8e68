"""The packages hand on their public names lazily, and no submodule takes a name's place once it is imported."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = [name for name in ("interp", "mitigation") if hasattr(importlib.import_module(name), "__all__")]


def submodules(package: str) -> list[str]:
    return [found.name for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")]


def run(code: str) -> str:
    """What ``code`` prints in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_interp_has_public_names() -> None:
    assert "interp" in PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_stays_what_it_is_once_every_submodule_is_imported(package: str) -> None:
    public = importlib.import_module(package)
    before = {name: getattr(public, name) for name in public.__all__}
    for name in submodules(package):
        importlib.import_module(name)
    assert {name: getattr(public, name) for name in public.__all__} == before


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_a_submodules(package: str) -> None:
    own = {name.removeprefix(f"{package}.") for name in submodules(package)}
    assert not own & set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_the_package_loads_no_torch(package: str) -> None:
    assert run(f"import sys, {package}; print({{'torch', 'transformers'}} & set(sys.modules))") == "set()"


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: str) -> None:
    spec = find_spec(package)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(importlib.import_module(package).__all__)


def test_every_public_name_is_in_the_table_of_contents() -> None:
    interp = importlib.import_module("interp")
    assert [name for name in interp.__all__ if name not in (interp.__doc__ or "")] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'interp' has no attribute 'nothing'"):
        importlib.import_module("interp").nothing  # noqa: B018
