"""A mistake on the command line is answered in one sentence with the word that was meant."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st
from omegaconf.errors import OmegaConfBaseException

from experiments.command_line.arguments import _unread, in_a_sentence
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed


def said(*overrides: str) -> str:
    with pytest.raises((HydraException, OmegaConfBaseException)) as refused:
        composed(*overrides)
    sentence = in_a_sentence(refused.value, overrides)
    assert "\n" not in sentence
    assert "hydra.cc" not in sentence
    return sentence


@pytest.mark.parametrize("override", ["note=mès données", "output_root=写真", "note=it's", 'note=a "b"'])
def test_a_value_that_needs_quotes_is_printed_as_it_must_be_typed(override: str) -> None:
    typed = said("limit=3", override).partition("write ")[2]
    assert composed(*shlex.split(typed))
    key, _, value = override.partition("=")
    (read,) = OverridesParser.create().parse_overrides(shlex.split(typed))
    assert (read.key_or_group, read.value()) == (key, value)


@given(st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=("Cs",)), min_size=1))
def test_the_quoted_form_is_read_as_the_value_itself(value: str) -> None:
    (word,) = shlex.split(_unread(f"note={value}").partition("; write ")[2])
    (read,) = OverridesParser.create().parse_overrides([word])
    assert read.value() == value


@pytest.mark.parametrize(
    ("overrides", "meant"),
    [
        (["task=vrtuning", "task.steps=3"], "did you mean task.settings.steps=3?"),
        (["metod=vcd"], "did you mean method=vcd?"),
        (["method=prompt", "lmit=5"], "did you mean limit=5?"),
        (["method=vdc"], "method=vdc: there is no such option; did you mean method=vcd?"),
        (["+exp=vcd_lava"], "did you mean +exp=vcd_llava?"),
        (["model=zzz"], "there are api, api_gpt_4o"),
        (["zzz=1"], "there are name, note, seed"),
        (["+seed=3"], "+seed=3: Could not append to config. An item is already at 'seed'."),
        (["method.alhpa=3"], "did you mean method.alpha=3?"),
        (["seed=x"], "seed=x: Value 'x' of type 'str' could not be converted to Integer"),
        (["note=a,b"], "To sweep over it, add --multirun"),
        (["limit"], "limit: is no KEY=VALUE"),
        (["vcd_llava"], "vcd_llava: is no KEY=VALUE and no flag; did you mean +exp=vcd_llava?"),
        (["doctor"], "did you mean task=doctor?"),
        (["limit=2", "note=How", "is", "it?"], "is: is no KEY=VALUE and no flag; a value with spaces needs quotes"),
    ],
)
def test_the_nearest_word_is_named(overrides: list[str], meant: str) -> None:
    sentence = said(*overrides)
    assert meant in sentence
    assert "+key" not in sentence
    assert f"+{overrides[-1]}" not in sentence or f"+{overrides[-1]}" in meant


def test_an_error_of_ours_is_no_mistake_of_theirs() -> None:
    assert in_a_sentence(ValueError("a bug"), ["limit=1"]) is None


@pytest.mark.long
def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    code = (
        "import signal, sys, os\n"
        "class AtImport:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "from experiments.run import main\n"
        "sys.meta_path.insert(0, AtImport())\n"
        "main()"
    )
    command = [sys.executable, "-c", code, f"output_root={tmp_path}", "limit=2"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert answer.stderr == "stopped; the same command continues where it ended\n"
    assert answer.returncode == 128 + signal.SIGINT
