"""Settings out of range are refused when a method is made, in one sentence: ``snapshots/refused.txt``.

Add a line ``$ call``, run this file with ``UPDATE_SNAPSHOTS=1``, and read the sentence.
"""

from pathlib import Path
from typing import Any

import pytest

import mitigation
from interp.errors import UserError
from mitigation.vrtuning.settings import Settings
from tests.snapshots import check_entry, entries

FILE = Path(__file__).parent / "snapshots" / "refused.txt"


@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_the_sentence_that_refuses_settings(entry: tuple[str, str]) -> None:
    names: Any = {name: getattr(mitigation, name) for name in mitigation.__all__} | {"Settings": Settings}
    with pytest.raises(UserError) as refused:
        eval(entry[0], names)
    assert "\n" not in str(refused.value)
    check_entry(FILE, entry, str(refused.value))
