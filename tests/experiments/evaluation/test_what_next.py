"""What a study says around its answer: the bundled model is a toy, and what to type next."""

import sys
from pathlib import Path

import pytest

from experiments.evaluation.what_next import bundled, next_commands, program
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed, run_of


@pytest.mark.parametrize("given", ["+exp=vcd_llava", "task=study method=prompt limit=5", "+exp=mechanism"])
def test_three_commands_follow_a_study_of_the_bundled_model(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forestlens", *given.split()])
    commands = next_commands(run_of(*given.split()), Path("outputs/vcd_llava/now"))
    assert len(commands) == 3
    for command, said in commands.items():
        assert said
        assert composed(*command.removeprefix(f"{program()} ").split())
    (own,) = [command for command in commands if "model.path=FOLDER_OR_HUB_ID" in command]
    assert ("method=prompt" in own) == ("method=prompt" in given)  # the same question, not the default's


def test_of_a_real_model_what_comes_next_is_about_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forestlens"])
    run = run_of("model=llava_1_5_7b")
    assert bundled(run) == []
    first, second = next_commands(run, Path("out puts/now"))
    assert first.endswith("task=attention run='out puts/now'")
    assert second.endswith("+exp=mechanism model.path=llava-hf/llava-1.5-7b-hf")


def test_a_bundled_model_is_called_a_toy() -> None:
    (said,) = bundled(run_of())
    assert said.startswith("llava_organism is a toy")


def test_the_one_with_real_language_is_called_small_and_named_in_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forestlens", "+exp=vcd_llava"])
    run = run_of("+exp=vcd_llava", "model=smol_organism")
    (said,) = bundled(run)
    assert said.startswith("smol_organism is a small model, made here from a pretrained language model")
    assert any(
        command.endswith("+exp=heatmap_llava model=smol_organism") for command in next_commands(run, Path("now"))
    )


def test_behind_an_api_nothing_can_be_looked_into() -> None:
    assert next_commands(run_of("model=api_gpt_4o", "benchmark=iconworld"), Path("now")) == {}


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
