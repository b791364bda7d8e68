"""Settings and calls that cannot work are refused in one sentence: ``snapshots/refused.txt``.

Add a line ``$ call``, run this file with ``UPDATE_SNAPSHOTS=1``, and read the sentence.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

import mitigation
from interp.errors import UserError
from interp.vlm import Prompt
from mitigation.contrastive.corruption import blind_inputs, diffuse_images
from mitigation.contrastive.processors import SecondBranch
from mitigation.forced import log_probabilities
from mitigation.learned.state_edits import projected
from mitigation.vrtuning.data import Row, check_dataset, from_rows, refuse_record
from mitigation.vrtuning.settings import Settings
from tests.mitigation.conftest import contrasting, generate
from tests.mitigation.family_laws import case, family
from tests.mitigation.test_paired import paired, pairing
from tests.snapshots import check_entry, entries
from tests.tiny import picture

FILE = Path(__file__).parent / "snapshots" / "refused.txt"
NAMES: Any = {name: getattr(mitigation, name) for name in mitigation.__all__}
NAMES |= {"np": np, "torch": torch, "RepetitionPenalty": RepetitionPenaltyLogitsProcessor}
NAMES |= {one.__name__: one for one in (
    GenerationConfig, Prompt, Row, SecondBranch, Settings, blind_inputs, case, check_dataset, contrasting,
    diffuse_images, family, from_rows, generate, log_probabilities, paired, pairing, picture, projected, refuse_record,
    replace,
)}  # fmt: skip
FIXTURES = {"inputs", "noised", "prompts", "tmp_path", "vlm"}


@pytest.mark.parametrize("entry", entries(FILE), ids=lambda entry: entry[0])
def test_the_sentence_that_refuses_a_call(entry: tuple[str, str], request: pytest.FixtureRequest) -> None:
    fixtures = {name: request.getfixturevalue(name) for name in FIXTURES & {*re.findall(r"\w+", entry[0])}}
    with pytest.raises(UserError) as refused:
        eval(entry[0], NAMES | fixtures)
    assert "\n" not in str(refused.value)
    check_entry(FILE, entry, str(refused.value))
