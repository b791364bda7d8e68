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
from tests.snapshots import check_entry, entries

MISTAKES = Path(__file__).with_name("snapshots") / "mistakes.txt"


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


@pytest.mark.parametrize("entry", entries(MISTAKES), ids=lambda entry: entry[0])
def test_the_nearest_word_is_named(entry: tuple[str, str]) -> None:
    check_entry(MISTAKES, entry, said(*shlex.split(entry[0])))


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
