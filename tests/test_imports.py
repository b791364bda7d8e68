"""The graph of imports: lazy ones inside functions count, and so do those for annotations alone."""

import subprocess
import sys
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.conftest import REPOSITORY

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


@pytest.mark.long
def test_a_study_runs_where_fcntl_does_not_exist(saved: Path, tmp_path: Path) -> None:
    """As on Windows, which has no ``signal.SIGUSR1`` either."""
    words = ["forestlens", "method=prompt", f"model.path={saved}", "limit=4", "max_new_tokens=2", "draws=20"]
    program = (
        "import signal, sys; sys.modules['fcntl'] = None; del signal.SIGUSR1\n"
        f"sys.argv = {[*words, f'output_root={tmp_path}']!r}\n"
        "from experiments.run import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.glob("*/*/results.csv"))


def test_on_windows_the_command_names_a_system_that_works() -> None:
    """``resource`` is a module of Linux and macOS."""
    program = "import sys; sys.modules['resource'] = None; from experiments.run import main; main()"
    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == "error: forestlens runs on Linux and macOS; on Windows, type this in WSL\n"
