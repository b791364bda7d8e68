"""Calls in Python that cannot work are refused in one sentence: ``snapshots/refused.txt``.

The tiny LLaVA is ``vlm``, ``two`` are prompts with pictures. Add a line ``$ call``, run this file with
``UPDATE_SNAPSHOTS=1``, and read the sentence.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import interp
from interp.checkpoints.load import set_bounds
from interp.errors import UserError
from interp.module_map import module_map_of
from interp.prompt import with_keywords
from interp.sequence_metric import SequenceMetric
from interp.thoughts import check_marks
from interp.tools.held_out import grouped_folds, raked
from interp.vlm import VLM, Prompt
from tests.families import idefics, instructblip, mllama, paligemma
from tests.snapshots import check_entry, entries
from tests.tiny import picture

FILE = Path(__file__).parent / "snapshots" / "refused.txt"


NAMES: Any = {name: getattr(interp, name) for name in interp.__all__}
NAMES |= {one.__name__: one for one in (
    SequenceMetric, check_marks, grouped_folds, idefics, instructblip, mllama, module_map_of, paligemma, picture,
    raked, set_bounds, torch, transformers, with_keywords,
)}  # fmt: skip


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_the_sentence_that_refuses_a_call(vlm: VLM, entry: tuple[str, str]) -> None:
    two = [Prompt("Is this safe?", picture(0, (40, 40))), Prompt("the cake", picture(1, (40, 40)))]
    with pytest.raises(UserError) as refused:
        eval(entry[0], NAMES | {"np": np, "two": two, "vlm": vlm})
    assert "\n" not in str(refused.value)
    check_entry(FILE, entry, str(refused.value))
