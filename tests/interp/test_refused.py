"""Calls in Python that cannot work are refused in one sentence: ``snapshots/refused.txt``.

The tiny LLaVA is ``vlm``, ``two`` are prompts with pictures. Add a line ``$ call``, run this file with
``UPDATE_SNAPSHOTS=1``, and read the sentence.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import interp
from interp.errors import UserError
from interp.segments import segment
from interp.tools.patching import misaligned
from interp.vlm import VLM, Prompt
from tests.families import mllama
from tests.snapshots import check_entry, entries
from tests.tiny import picture

FILE = Path(__file__).parent / "snapshots" / "refused.txt"


@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_the_sentence_that_refuses_a_call(vlm: VLM, entry: tuple[str, str]) -> None:
    names: Any = {name: getattr(interp, name) for name in interp.__all__}
    names |= {one.__name__: one for one in (misaligned, mllama, picture, segment, torch)} | {"vlm": vlm}
    names["two"] = [Prompt("Is this safe?", picture(0, (40, 40))), Prompt("the cake", picture(1, (40, 40)))]
    with pytest.raises(UserError) as refused:
        eval(entry[0], names)
    assert "\n" not in str(refused.value)
    check_entry(FILE, entry, str(refused.value))
