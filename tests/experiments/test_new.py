"""``forestlens new``: skeletons whose tests pass as they stand, and fail where the skeleton is broken."""

import re
import subprocess
from pathlib import Path

import pytest

from experiments.command_line.new import KINDS, METHODS, new
from interp.errors import UserError
from tests.experiments.compose import composed
from tests.forked import typed
from tests.weekly import first

BREAKS = {
    "method": ("scores.new_full(likeliest.shape, strength)", "scores.new_full(likeliest.shape, float(len(scores)))"),
    "learned_method": ("+= strength *", "+= len(here.hidden) * strength *"),
    "benchmark": ('"blue", True', '"blue", False'),
    "judge": (".lower()", ""),
}


def run_its_test(folder: Path) -> subprocess.CompletedProcess[str]:
    return typed("pytest", "-q", "-p", "no:cacheprovider", "test_mine_own.py", folder=folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", first(KINDS))
def test_the_test_of_a_skeleton_passes_at_once_and_fails_where_it_is_broken(kind: str, tmp_path: Path) -> None:
    new([kind, "mine_own"], into=tmp_path)
    passed = run_its_test(tmp_path)
    assert passed.returncode == 0, passed.stdout
    file, (whole, broken) = tmp_path / "mine_own.py", BREAKS[kind]
    assert whole in file.read_text()
    file.write_text(file.read_text().replace(whole, broken))
    assert run_its_test(tmp_path).returncode == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_command_composes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = new([kind, "mine_own"])
    command = re.search(r"^  forestlens (.*)$", printed, re.MULTILINE)
    assert command is not None
    arguments = command[1].split()
    if kind in METHODS:
        assert composed(*arguments).method.path == "mine_own.py"
    else:
        assert arguments[:2] == ["--config-dir", "mine"]
        assert (tmp_path / "mine" / kind / "mine_own.yaml").read_text().count("_target_: mine_own.MineOwn") == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine_own.py").write_text("mine")
    with pytest.raises(UserError, match=r"test_mine_own\.py exists"):
        new(["method", "mine_own"], into=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine_own.py"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a kind and a name"),
        (["method", "My-Rule"], "lower-case"),
        (["method", "../mine"], "lower-case"),
        (["benchmark", "datasets"], "is installed"),
    ],
)
def test_what_cannot_be_written_is_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        new(arguments, into=tmp_path)
    assert not list(tmp_path.iterdir())
