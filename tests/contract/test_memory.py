"""At seven billion parameters tools hold no more than they must, loops halve their batches, and logits are float32.

Run on a pretended device (``tests.two_devices.device``) that counts memory and runs out of it:
``tests.two_devices.memory``.
"""

from functools import cache
from typing import Any

import pytest

from tests.contract.jobs import lines_of

pytestmark = pytest.mark.slow  # that loops halve their batches: tests/interp/test_batching.py

LOOPS = (
    *("scores", "states", "gradients", "knockout", "patching"),
    *("mechanism_knockout", "mechanism_prior", "mechanism_ablation"),
)
LOGITS = ("score", "plain", "vcd_sequential", "vcd_paired", "prior_correction")


@cache
def said() -> list[dict[str, Any]]:
    """What the job measured; skips where this torch cannot pretend a device."""
    return lines_of("tests.two_devices.memory")


def depths() -> list[dict[str, float]]:
    """What is held with few layers and with more, in hidden states of the batch."""
    return [line for line in said() if line["kind"] == "memory"]


@pytest.mark.parametrize(("tool", "states"), [("score", 0.0), ("gradient_at_last", 0.0), ("gradient_at_first", 1.0)])
def test_what_a_layer_adds(tool: str, states: float) -> None:
    """Neither keys and values nor what a gradient of weights needs; of checkpointed layers their input alone."""
    few, many = depths()
    assert (many[tool] - few[tool]) / (many["layers"] - few["layers"]) == pytest.approx(states, abs=0.05)


def test_steering_one_query_holds_nothing_of_the_others() -> None:
    for held in depths():
        assert held["steered"] - held["score"] < 0.1 * held["every_query"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_with_half_where_memory_runs_out(loop: str) -> None:
    (found,) = (line for line in said() if line.get("loop") == loop)
    assert found["lowered"] == [2]


@pytest.mark.parametrize("method", LOGITS)
def test_logits_are_float32(method: str) -> None:
    (found,) = (line for line in said() if line.get("by") == method)
    assert found["types"] == ["torch.float32"]


def test_every_loop_and_method_is_asked() -> None:
    assert {line["loop"] for line in said() if line["kind"] == "halving"} == {*LOOPS}
    assert {line["by"] for line in said() if line["kind"] == "logits"} == {*LOGITS}
