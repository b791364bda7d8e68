"""Every tool and method works where half of the decoder and the head are on another device than the embeddings.

The real code runs on two pretended devices (``experiments.shapes.device``): in the shape of seven billion parameters,
without values, where whatever mixes two devices raises; and on small models with values, whose answers must be the
CPU's.
"""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.families import FAMILIES

CELLS = (
    *("generate", "score", "recording_of_all_queries", "recording_of_generated_queries", "recorder_check"),
    *("knockout_effects", "knockout_while_generating", "patching", "residual_edits", "lens", "probes_collection"),
    *("heads", "direct_attribution", "kept_activations"),
    *("attribution", "occlusion", "vcd_sequential", "vcd_paired", "vcd_lazy", "vcd_controls", "shifts"),
    *("prior_correction", "read_out", "steering_by_direction", "steering_of_attention", "direction_ablation"),
    *("pai", "icd", "m3id", "only", "vista", "agla", "opera", "verbalise", "ecso", "vrtuning"),
)
SEVEN_BILLION = ("llava", "qwen2_5_vl")  # the other families are asked by `make contract` alone


@cache
def started(family: str) -> subprocess.Popen[str]:
    """The family's job, at work."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.two_devices.job", family]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)


@cache
def outcomes(family: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the job said of every cell; skips where this torch cannot pretend a device."""
    for other in SEVEN_BILLION if family in SEVEN_BILLION else ():
        started(other)  # beside each other
    said, errors = started(family).communicate(timeout=900)
    assert started(family).returncode == 0, errors[-3000:]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if reason := lines[0].get("unsupported"):
        pytest.skip(reason)
    return {(line["kind"], line["cell"]): line for line in lines}


@pytest.mark.contract("two_devices")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("family", "kind"), [*((family, "shapes") for family in SEVEN_BILLION), ("llava", "head_first")]
)
def test_nothing_mixes_devices_at_seven_billion(family: str, kind: str, cell: str) -> None:
    """``head_first``: with the head where the embeddings are, and so on another device than what leads to it."""
    said = outcomes(family)[kind, cell]
    assert not said["error"], said["error"] + "\n" + said["trace"]


@pytest.mark.contract("two_devices")
@pytest.mark.parametrize(
    "family", [pytest.param(n, marks=() if n in SEVEN_BILLION else pytest.mark.families) for n in FAMILIES]
)
def test_answers_are_those_of_one_device(family: str) -> None:
    said = {cell: one["error"] for (kind, cell), one in outcomes(family).items() if kind == "values"}
    assert set(said) == set(CELLS)
    assert not any(said.values()), {cell: error for cell, error in said.items() if error}
