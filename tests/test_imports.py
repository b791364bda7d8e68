"""The graph of imports: lazy ones inside functions count, and so do those for annotations alone."""

from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("interp", "mitigation", "experiments")


def circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """Some circle of files, each importing the next; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_circle_of_files() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    found = circle({file: graph.find_modules_directly_imported_by(file) for file in graph.modules})
    assert not found, " → ".join(found)


@pytest.mark.parametrize(
    ("imports", "found"),
    [({"a": {"b"}, "b": {"c"}, "c": set()}, set()), ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, {"b", "c"})],
)
def test_a_circle_is_found(imports: dict[str, set[str]], found: set[str]) -> None:
    assert set(circle(imports)) == found
