"""What a run says may be typed next: commands made from the one that was typed, with all that defines the run."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.command_line.arguments import expand
from experiments.report.terminal import OWN_MODEL, next_commands
from tests.experiments.compose import composed

TYPED = {
    "the demo": "+exp=vcd_llava",
    "a setting of an own method": "method=file method.path=my_rule.py +method.settings.strength=2",
    "an own arm beside others": "+exp=vcd_llava +method@arms.mine=file arms.mine.path=my_rule.py "
    "'arms.mine.settings={strength: 2}' ~method@arms.text_only",
    "a setting of an experiment's method": "+exp=vcd_sampled method.temperature=2",
    "the other bundled model": "+exp=mechanism model=smol_organism model.dtype=bfloat16 task.width=2",
    "a refusal benchmark": "model=smol_organism benchmark=iconworld_requests benchmark.answer_tokens=16 method=prompt",
    "settings of the run": "task=study method=prompt batch_size=8 fresh=true 'note=two words'",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own files are."""
    (tmp_path / "my_rule.py").write_text("def rule(scores, step, *, strength=1.0):\n    return scores\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plain(words: list[str]) -> dict[str, Any]:
    """The configuration of a command, its nodes and choices as plain values."""
    found = OmegaConf.to_container(composed(*expand(words)), resolve=False)
    return {str(key): value for key, value in found.items()}


def after(words: list[str]) -> dict[str, str]:
    config = plain(words)
    path = config["model"]["path"]
    environment = {"command": shlex.join(["python", "-m", "experiments.run", *words]), "config": config,
                   "model": {"name": "m", "path": path}}  # fmt: skip
    return next_commands(environment, "outputs/a run/now")


@pytest.mark.long
@pytest.mark.parametrize("what", TYPED)
def test_each_composes_and_keeps_what_defines_the_run(folder: Path, what: str) -> None:
    words = shlex.split(TYPED[what])
    before = plain(words)
    commands = after(words)
    assert 1 <= len(commands) <= 3
    for command, purpose in commands.items():
        arguments = shlex.split(command.removeprefix("forestlens "))
        then = plain(arguments)
        if OWN_MODEL in arguments:
            assert then.pop("model")["path"] == "FOLDER_OR_HUB_ID"
            known = {key: value for key, value in before.items() if key != "model"}
            assert then == known | {"fresh": False}
        elif "task=preview" not in arguments:
            assert then["model"] == before["model"], purpose
        if "task=preview" not in arguments:  # of the same cases
            assert then["benchmark"] == before["benchmark"], purpose
        if "task=attention" in arguments:
            assert then["task"]["run"] == "outputs/a run/now"
            assert all(then[key] == before[key] for key in ("benchmark", "method", "arms", "seed", "limit"))


def test_nothing_follows_without_weights_or_a_command() -> None:
    assert next_commands({"model": {"name": "api", "endpoint": {}}, "command": "python -m x"}, "") == {}
    bundled = {"model": {"name": "m", "path": "organism:llava"}}
    for command in (None, "make demo", "python -m experiments.run 'broken"):
        assert next_commands(bundled | {"command": command}, "") == {}
