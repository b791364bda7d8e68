"""``task=prove`` from a folder or preset to its exit code."""

from pathlib import Path
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.selfcheck import CHECKS, TOOLS
from interp.vlm import VLM
from tests.experiments.compose import run_of
from tests.families import FAMILIES
from tests.interp.test_unknown_family import odd


def proved(*overrides: str) -> None:
    run = run_of("task=prove", *overrides)
    run.task(run)


def printed(shown: str) -> tuple[dict[str, str], dict[str, str]]:
    """Check → its state, and tool → works or refused."""
    above, _, below = shown.partition("\ntool")
    checks = {line.split()[0]: line[20:36].strip() for line in above.splitlines()[3:] if line}
    return checks, {words[0]: words[1] for line in below.splitlines() if (words := line.split()) and words[0] in TOOLS}


def written(pieces: Any, folder: Path) -> str:
    for piece in pieces:
        piece.save_pretrained(folder)
    return f"model.path={folder}"


@pytest.mark.long
def test_the_bundled_organism_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    proved("model=llava_organism")
    checks, tools = printed(capsys.readouterr().out)
    assert checks == dict.fromkeys(CHECKS, "passed")
    assert tools == dict.fromkeys(TOOLS, "works")


@pytest.mark.slow
def test_the_organism_with_real_language_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        proved("model=smol_organism")
    except UserError as error:
        if "make smol" not in str(error) and "fetch_smol" not in str(error):
            raise
        pytest.skip(str(error))
    assert printed(capsys.readouterr().out)[0] == dict.fromkeys(CHECKS, "passed")


def test_a_checkpoint_of_a_family_that_nobody_has_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # what its second sublayers say is halved, which no configuration names
        proved(written(odd(), tmp_path))
    shown = capsys.readouterr().out
    checks, tools = printed(shown)
    assert checks == dict.fromkeys(CHECKS, "passed") | {"additive": "failed"}
    assert tools == dict.fromkeys(TOOLS, "works") | dict.fromkeys(("sublayers", "direct_attribution"), "refused")
    assert "layers [1] have no attention" in shown


@pytest.mark.long
def test_what_is_refused_ends_with_exit_code_1_unless_it_is_not_required(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is blind: nothing that holds a picture against it can be shown."""
    model, processor = FAMILIES["llava"]()
    with torch.no_grad():
        for weight in VLM(model, processor).module_map.module(model, "projector").parameters():
            weight.zero_()
    path = written((model, processor), tmp_path)
    with pytest.raises(SystemExit) as ended:
        proved(path)
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "refused: vcd, segments, patch, " in shown.err
    assert printed(shown.out)[1]["vcd"] == "refused"
    with pytest.raises(SystemExit):
        proved(path, "task.require=[lens,vcd]")
    assert capsys.readouterr().err.splitlines()[-1] == "refused: vcd"
    proved(path, "task.require=[lens,score]")


@pytest.mark.slow
def test_a_checkpoint_in_sixteen_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(FAMILIES["llava_next"](), tmp_path)
    proved(path, "model.dtype=bfloat16", "task.require=[baseline,score,lens,record]")
    assert "in bfloat16" in capsys.readouterr().out


@pytest.mark.long
def test_a_model_that_is_spread_is_proved(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proved(f"model.path={saved}", "model.device_map=auto")
    assert printed(capsys.readouterr().out)[1] == dict.fromkeys(TOOLS, "works")
