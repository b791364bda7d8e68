"""Attention of single cases for the report: masses and maps equal the recorder's, coarser only as the note says."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.attention_log import prompts_of, record_cases
from experiments.report.cases import attention_of_cases
from interp.attention.record import record_attention
from interp.vlm import VLM
from mitigation.method import Baseline
from mitigation.vcd import VCD
from tests.tiny import tiny_llava


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    vlm = VLM(*tiny_llava(), name="tiny")
    folder = tmp_path_factory.mktemp("run")
    samples = IconWorld().load().samples[:4]
    arms = {"baseline": Baseline(), "vcd": VCD(noise_step=999)}
    record_cases(vlm, arms, samples, folder, max_new_tokens=3)
    return folder, samples


def test_every_case_has_every_arm_and_a_note(recorded: tuple[Path, list]) -> None:
    folder, samples = recorded
    found = attention_of_cases(folder)
    assert set(found["cases"]) == {sample.id for sample in samples}
    assert all(set(arms) == {"baseline", "vcd"} for arms in found["cases"].values())
    assert "Attention of 4 cases" in found["note"]
    assert "12 × 12" in found["note"]


def test_masses_and_maps_are_the_recorders(vlm: VLM, recorded: tuple[Path, list]) -> None:
    folder, samples = recorded
    with record_attention(vlm, queries=[0], maps=[0]) as log:
        vlm.generate(prompts_of(samples[:1]), max_new_tokens=3)
    whole, row = log.maps[0].weights, log.rows[0]
    block = json.loads((folder / "attention/cases.json").read_text())["cases"][samples[0].id]["baseline"]
    for layer in range(len(block["layers"])):
        for at, name in enumerate(block["names"]):
            expected = float(whole[layer][:, row.columns(name)].sum(-1).mean())
            assert block["masses"][0][layer][0][at] == pytest.approx(expected, abs=1e-3)
    tokens, layers, groups = len(block["tokens"]), len(block["layers"]), len(block["groups"])
    steps = np.frombuffer(base64.b64decode(block["words"]), dtype=np.uint8).reshape(tokens, layers, groups, -1)
    words = [at for at, name in enumerate(row.labels) if not name.startswith("image") and name != "padding"]
    weights = steps[0, 1, 0] / 255 * block["words_scale"][0][1][0]
    assert np.allclose(weights[: len(words)], whole[1].mean(0)[words].numpy(), atol=2e-3)
    picture = np.frombuffer(base64.b64decode(block["image"]), dtype=np.uint8).reshape(tokens, layers, groups, -1)
    total = float((picture[0, 1, 0] / 255 * block["image_scale"][0][1][0]).sum())
    assert total == pytest.approx(float(whole[1].mean(0)[row.columns("image_0")].sum()), abs=5e-3)
