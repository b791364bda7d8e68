"""Commands that cannot work are refused in one sentence, before weights are read or a file is written.

``snapshots/refused.txt`` has each command and its sentence. Add a line ``$ command``, run this file with
``UPDATE_SNAPSHOTS=1``, and read the sentence.
"""

import shlex
from pathlib import Path

import pytest

from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of
from tests.snapshots import check_entry, entries

FILE = Path(__file__).parent / "snapshots" / "refused.txt"


@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_the_sentence_that_refuses_a_command(entry: tuple[str, str], tmp_path: Path, no_weights: None) -> None:
    with pytest.raises(UserError) as refused:
        (run := run_of(*shlex.split(entry[0]), f"output_root={tmp_path}")).task(run)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    check_entry(FILE, entry, str(refused.value).replace(f"{REPOSITORY}/", ""))
