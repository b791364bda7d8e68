"""What a study says around its answer: the bundled model is a toy, and how this program is typed."""

import sys
from pathlib import Path

import pytest

from experiments.evaluation.what_next import bundled, program
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of


def test_a_bundled_model_is_called_a_toy() -> None:
    assert bundled(run_of("model=llava_1_5_7b")) == bundled(run_of("model=api_gpt_4o")) == []
    (said,) = bundled(run_of())
    assert said.startswith("llava_organism is a toy")


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
