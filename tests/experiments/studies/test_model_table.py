"""The table of models: read from configurations and contract results, with a reason for each gap."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiments.config import CONF
from experiments.evaluation.answer import _identity
from experiments.studies import model_table
from experiments.studies.model_table import configurations, limits, models, read_contract
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import set_bounds
from interp.errors import UserError
from interp.families import FACTS
from interp.vlm import VLM, Prompt
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of
from tests.families import FAMILIES
from tests.read_families import READ

NODES = {node["name"]: node for node in configurations()}
LOCAL = {name: node for name, node in NODES.items() if "path" in node}
CROSS = "image tokens do not exist in the sequence (cross-attention)"


def contract(**capabilities: Any) -> dict[str, Any]:
    family = {"model_type": "llava", "notes": ["tiny random weights only"], "capabilities": capabilities}
    return {"transformers": "5.23.0", "torch": "2.13.0", "families": {"llava": family, "mllama": family}}


def cell(works: bool, reason: str | None = None) -> dict[str, Any]:
    return {"works": works, "reason": reason, "test": "tests/contract/test_x.py::test_y"}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(contract(generate=cell(True), maps=cell(False, CROSS), lora=cell(True, "not merged"))))
    monkeypatch.setattr(model_table, "CONTRACT", path)
    return path


@pytest.mark.long
@pytest.mark.usefixtures("written")
def test_limits_come_from_the_contract_with_their_reasons(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = run_of("task=model_table")
    run.task(run)
    made = (models(configurations()), limits(read_contract(model_table.CONTRACT)))
    rows = [list(row.values()) for table in made for row in table.records()]
    assert ["mllama", "maps", "no", CROSS] in rows
    assert ["mllama", "lora", "yes", "not merged"] in rows
    assert not any(row[:2] == ["mllama", "generate"] for row in rows)  # it works, and nothing is to be said of it
    assert ["llava_organism", "llava", "organism:llava", "0.1", "Apache-2.0"] in rows
    assert any(row[:2] == ["api_vllm", model_table.SERVED] for row in rows)
    shown = capsys.readouterr().out
    for part in (CROSS, "No model from the hub was run on its real weights", model_table.REMOTE):
        assert part in " ".join(shown.split())


@pytest.mark.long
@pytest.mark.usefixtures("written")
def test_it_fits_eighty_columns_and_cuts_no_heading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_of("task=model_table").task(run_of("task=model_table"))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for heading in ("hub id", "GiB", "licence", "works", "why, or how far"):
        assert heading in shown


def test_what_was_not_run_is_said_by_family() -> None:
    found = {
        "families": {
            "llava": {"capabilities": {"maps": cell(True), "lora": cell(True), "captum": cell(True)}},
            "one": {"capabilities": {"maps": cell(True)}},
            "two": {"capabilities": {"maps": cell(True)}},
        }
    }
    assert model_table.not_run(found) == " Not run: lora, captum of one, two."  # fmt: skip


def test_gated_models_say_so() -> None:
    gated = {name for name, node in LOCAL.items() if node.get("gated")}
    assert gated == {"gemma3_4b", "paligemma2_3b", "llama_3_2_11b_vision"}
    (row,) = model_table.models([LOCAL["gemma3_4b"]]).records()
    assert row["licence"] == "Gemma Terms of Use; gated"


def test_without_results_the_table_says_what_fills_it(tmp_path: Path) -> None:
    assert "`make contract` fills the table" in model_table.provenance(read_contract(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text('{"families": 3}')
    with pytest.raises(UserError, match="make contract"):
        read_contract(tmp_path / "broken.json")
    assert "Installed here is transformers" in model_table.provenance(
        {"transformers": "0.1", "families": {"llava": {}}}
    )


def test_proved_are_counted_and_what_is_not_has_a_reason() -> None:
    every = {name: cell(True) for name in (*model_table.PROVED, "vcd_sequential")}
    rows = {
        "one": {"model_type": "one", "capabilities": every | {"vcd_paired": cell(False, "no")}},
        "two": {"model_type": "two", "capabilities": every | {"vcd_sequential": cell(False, "no")}},
        "again": {"model_type": "two", "capabilities": every},
        "three": {"model_type": "three", "capabilities": every | {"lens": cell(False, "no")}},
    }
    found = {"families": rows, "without_row": {"it has none": ["four", "five"]}}
    assert model_table.lacking(found) == {"one": [], "two": ["VCD"], "three": ["lens"]}
    said = model_table.proved_families(found)
    assert said.startswith("Of 5 kinds of models 1 work in baseline, ")
    assert "Not whole: two (no VCD); three (no lens). Not asked, since it has none: four, five." in said


def test_the_readme_counts_as_the_table_does() -> None:
    found = read_contract(model_table.CONTRACT)
    kinds = model_table.lacking(found)
    proved = sum(not missing for missing in kinds.values())
    every = len(kinds) + sum(map(len, found["without_row"].values()))
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert proved >= 50
    assert f"{proved} of transformers {found['transformers']}'s {every} kinds" in readme


@pytest.mark.long
def test_no_torch_and_no_run_directory(tmp_path: Path) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('HEAVY', [n for n in ('torch', 'transformers') if n in sys.modules]))\n"
        "from experiments.run import main\nmain()"
    )
    command = [sys.executable, "-c", code, "task=model_table", f"output_root={tmp_path}/outputs"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "HEAVY []" in answer.stdout
    assert "llava_1_5_7b" in answer.stdout
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_a_configuration_says_what_it_needs(name: str) -> None:
    node = LOCAL[name]
    assert node["family"] in {*FAMILIES, *READ}
    assert node["licence"]
    assert node["trust_remote_code"] is False
    if node["path"].startswith("organism:"):
        return
    assert node["revision"] == "main"
    listed = (CONF / "models.yaml").read_text()
    text = listed.partition(f"\n{name}:\n")[2].partition("\n\n")[0]
    stated = re.search(r"memory_gib: ([\d.]+)  # ([\d.]+) billion parameters × 2 bytes", text)
    if node["family"] in READ:
        assert f"path: {node['path']}  # transformers: " in text
    if node["family"] in READ and node["memory_gib"] is None:
        return
    assert stated is not None
    weights = float(stated[2]) * 1e9 * 2 / 2**30
    assert 1.15 * weights <= float(stated[1]) <= 1.3 * weights
    assert "Never run on real weights" in listed.partition("\n\n")[0]


def test_every_family_of_the_issue_has_a_configuration() -> None:
    families = {node["family"] for node in LOCAL.values()}
    assert families - set(READ) | {"llava_mistral", "paligemma"} == set(FAMILIES)
    assert len(families & set(READ)) >= 12
    named = families - set(READ)
    assert {"paligemma" if family == "paligemma2" else family for family in named} <= set(FACTS)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, node in LOCAL.items() if node["chat_template"]])
def test_a_chat_template_of_ours_renders_what_its_family_s_processor_takes(name: str) -> None:
    node = LOCAL[name]
    vlm = VLM(*FAMILIES[node["family"]]())
    vlm.processor.chat_template = node["chat_template"]
    prompt = Prompt("Is this safe?", Image.new("RGB", (40, 40)), system="Be kind.")
    text = vlm.render(prompt)
    assert text.index("Be kind.") < text.index("Is this safe?")
    assert len(vlm.generate([prompt], max_new_tokens=1).texts) == 1


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_bounds_are_those_the_family_takes(name: str) -> None:
    shown = [key for key in ("min_pixels", "max_pixels", "longest_edge", "max_tiles") if key in LOCAL[name]]
    vlm = VLM(*FAMILIES[LOCAL[name]["family"]]()) if shown else None
    for key in shown:
        assert vlm is not None
        value = {"min_pixels": 1024, "max_pixels": 4096, "longest_edge": 64, "max_tiles": 1}[key]
        set_bounds(vlm.processor.image_processor, ModelConfig(name, "a/b", **{key: value}))  # type: ignore[arg-type]


@pytest.mark.long
def test_answers_to_bounded_pictures_are_other_answers() -> None:
    found = []
    for most in (None, 3136):
        model, processor = FAMILIES["qwen2_vl"]()
        if most is not None:
            processor.image_processor.size = {"shortest_edge": 784, "longest_edge": most}
        found.append(_identity(run_of("model=qwen2_vl_7b"), VLM(model, processor, name="m", revision="r")))
    assert found[0][2] != found[1][2]
    assert found[0][:2] == found[1][:2]
