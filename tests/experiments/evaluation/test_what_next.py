"""What a study says around its answer: the bundled model is a toy, and how this program is typed."""

import sys
from pathlib import Path

import pytest

from experiments.report.terminal import program
from tests.conftest import REPOSITORY


def test_commands_are_written_as_they_are_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    started = tmp_path / ".venv" / "bin" / "forestlens"
    monkeypatch.setattr(sys, "argv", [str(started)])
    assert program() == ".venv/bin/forestlens"
    monkeypatch.chdir("/")
    assert program() == str(started).lstrip("/")
    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "experiments" / "run.py")])
    assert program() == "python -m experiments.run"
