"""Our own code makes the host wait for the device at no decoding step, or at most once where it must decide or record.

Counted on a pretended device (``tests.two_devices.device``), where the operations that would wait for a GPU are known.
Each step's waits are those of six tokens less those of three; transformers' own (it asks at every step whether all
rows have ended, and of padding in every forward) are told apart by who called.
``tests/mitigation/test_processors_gpu.py`` asks a GPU the same.
"""

from functools import cache
from typing import Any

import pytest

from tests.contract.jobs import lines_of

pytestmark = pytest.mark.slow  # what it counts costs time and changes no answer

NEVER = (
    *("baseline", "vcd_sequential", "vcd_paired", "constant_shift", "shifted_sequential", "shifted_paired", "cutoff"),
    *("prior_correction", "m3id", "sampled", "knockout", "pai", "vista", "levelled"),
    *("attention_steering_relative", "ablate_random"),
)
ONCE = ("recorded", "recorded_with_maps", "recorded_vcd")


@cache
def steps() -> dict[str, dict[str, Any]]:
    """What the job counted; skips where this torch cannot pretend a device."""
    return {line["method"]: line for line in lines_of("tests.two_devices.waits")}


def test_every_way_to_answer_is_asked() -> None:
    assert set(steps()) == {*NEVER, *ONCE}
    assert all(few < many for few, many in (said["steps"] for said in steps().values()))
    # transformers asks at every step whether all rows have ended: the count sees what there is to see
    assert all(said["others"] >= 1 for said in steps().values())


@pytest.mark.parametrize("method", NEVER)
def test_no_step_waits(method: str) -> None:
    assert steps()[method]["own"] == {}


@pytest.mark.parametrize("method", ONCE)
def test_a_step_waits_once_at_most(method: str) -> None:
    found = steps()[method]["own"]
    assert 0 < sum(found.values()) <= 1, found
