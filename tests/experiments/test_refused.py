"""Commands that cannot work are refused in one sentence, before weights are read or a file is written.

``snapshots/refused.txt`` has each command and its sentence. Add a line ``$ command`` and run this file with
``UPDATE_SNAPSHOTS=1`` to write the sentences.
"""

import os
import shlex
from pathlib import Path

import pytest

from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

FILE = Path(__file__).parent / "snapshots" / "refused.txt"
ENTRIES = [entry.partition("\n") for entry in FILE.read_text(encoding="utf-8").strip().split("\n\n")]


@pytest.mark.parametrize(("command", "_", "sentence"), ENTRIES, ids=[first for first, *_ in ENTRIES])
def test_the_sentence_that_refuses(command: str, _: str, sentence: str, tmp_path: Path, no_weights: None) -> None:
    with pytest.raises(UserError) as refused:
        (run := run_of(*shlex.split(command.removeprefix("$ ")), f"output_root={tmp_path}")).task(run)
    said = str(refused.value).replace(f"{REPOSITORY}/", "")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        before = FILE.read_text(encoding="utf-8")
        FILE.write_text(
            before.replace(f"{command}\n{sentence}".strip() + "\n", f"{command}\n{said}\n"), encoding="utf-8"
        )
        pytest.skip("wrote the sentence; read it")
    assert said == sentence
    assert "\n" not in said
    assert not list(tmp_path.iterdir())
