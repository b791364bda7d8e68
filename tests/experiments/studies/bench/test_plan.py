"""``task=plan`` estimates what a run then takes, says that it is an estimate, and refuses in a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.command_line.arguments import expand
from experiments.runs.store import read_object
from experiments.studies.bench import plan
from experiments.studies.bench.models import LLAVA, shipped
from experiments.studies.bench.plan import NOTE, Batch, Plan, batch_bytes, outline, room_of, seconds_of, weight_bytes
from interp.checkpoints import config
from interp.checkpoints.config import GIB, ModelConfig, check_room, row_bytes, token_cache_bytes
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.method import abilities
from tests.experiments.compose import ran, run_of
from tests.families import FAMILIES
from tests.methods import METHODS
from tests.slow import first
from tests.tiny import picture

BIG = ModelConfig("big", LLAVA)
PROMPTS = [Prompt(f"Is it safe{' to eat' * n}?", picture(n, (48, 48)), key=str(n)) for n in range(2)]


def plan_of(folder: Path, *words: str) -> dict[str, Any]:
    """Return the one plan of a command."""
    return read_object(ran(run_of(*expand(["task=plan", *words]), f"output_root={folder}")) / "plan.json")


@pytest.mark.long
def test_a_plan_composes_the_command_without_itself() -> None:
    command = ["task=plan", "+exp=mechanism", "task.width=8", "task.gpu_gib=24"]
    assert expand(command) == ["+exp=mechanism", "task.width=8", "plan.gpu_gib=24", "+task@plan=plan"]
    run = run_of(*expand(command))
    assert run.task == Plan(gpu_gib=24)
    assert run.config_hash == run_of("+exp=mechanism").config_hash
    with pytest.raises(UserError, match=r"task\.widths: .* has no such argument"):
        run_of(*expand(["task=plan", "+exp=mechanism", "+task.widths=8"]))


def test_weights_are_those_of_the_loaded_model() -> None:
    model = ModelConfig("llava", "organism:llava")
    vlm, _, per_word = outline(model, torch.float32)
    assert (vlm.model.device.type, per_word) == ("meta", 1.0)
    assert weight_bytes(vlm) == load(model, device="cpu").model.get_memory_footprint()


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_keys_and_values_are_those_of_a_real_cache(family: str) -> None:
    vlm = VLM(*FAMILIES[family](), name=family)
    inputs = vlm.encode(PROMPTS)
    with torch.no_grad():
        cache = vlm.model(**inputs, use_cache=True).past_key_values
    held = sum(part.numel() * part.itemsize for layer in cache.layers for part in (layer.keys, layer.values))
    assert inputs["input_ids"].numel() * token_cache_bytes(vlm.model.config, "float32") == held


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_the_prompts_that_it_declares(name: str) -> None:
    """Steering of no strength leaves some out."""
    method, vlm, read = METHODS[name], load("organism:llava", device="cpu"), []

    def count(module: Any, args: Any, given: dict[str, Any]) -> None:
        cache = given.get("past_key_values")
        if cache is None or not cache.get_seq_length():
            tokens = given.get("input_ids")
            read.append(len(given["inputs_embeds"] if tokens is None else tokens))

    hook = vlm.model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        method.generate(vlm, PROMPTS, max_new_tokens=2)
    finally:
        hook.remove()
    declared = len(PROMPTS) * abilities(method).work.prompts
    if name == "ecso":  # it describes and asks again where its check finds harm, which is not known in advance
        assert declared <= sum(read) <= 2 * declared
    else:
        assert sum(read) == declared


@pytest.mark.long
def test_a_known_model_is_planned_for_a_card_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan_of(tmp_path, "model=llava_1_5_7b", "limit=8", "max_new_tokens=16", "task.gpu_gib=16")
    assert NOTE in " ".join(capsys.readouterr().out.split())
    assert "the shipped one" in found["sentences"][0]
    assert found["longest"] > 576
    assert found["weights"] == pytest.approx(2 * 7.06e9, rel=0.002)
    assert [row["rows that fit"] for row in found["arms"]] == [4, 2]
    assert "Set batch_tokens=" in found["sentences"][2]
    assert "half of 65 TFLOP/s" in found["sentences"][1]
    assert 0 < found["arms"][0]["minutes"] < found["arms"][1]["minutes"]


def test_memory_grows_with_rows_branches_and_patches_and_seconds_with_slower_cards() -> None:
    vlm = outline(BIG, torch.bfloat16)[0]
    batch = Batch([], 649, 576)
    one = batch_bytes(vlm, batch, 1, 1, 16)
    assert one == row_bytes(vlm.model.config, "bfloat16", 649) + 16 * 524288
    assert batch_bytes(vlm, batch, 3, 1, 16) == 3 * one
    assert batch_bytes(vlm, batch, 1, 2, 16) == 2 * one
    assert batch_bytes(vlm, batch._replace(patches=10**6), 1, 1, 16) == 10**6 * (4 * 1024 + 3 * 4096) * 2
    slow = seconds_of(vlm, batch, 8, 1e9, 1e15)
    assert seconds_of(vlm, batch, 8, 2e9, 1e15)[0] == pytest.approx(slow[0] / 2)
    reading, step = seconds_of(vlm, batch, 8, 1e15, 1e9)
    assert reading == pytest.approx(weight_bytes(vlm) / 1e9, rel=0.01)
    assert step > reading  # the cache is read too
    vlm.model.config._attn_implementation = "eager"
    assert batch_bytes(vlm, batch, 1, 1, 16) - one == 32 * 649**2 * 8


def test_what_does_not_fit_is_said_with_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "resolve_device", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * GIB, 80 * GIB))
    room, usable, on_gpu = room_of(None, BIG)
    assert "cuda:0, 5.0 GiB of it free now" in room
    assert on_gpu
    assert usable < 5 * GIB
    run = run_of("model=llava_1_5_7b", "limit=2")
    found = plan.estimated(run, run.benchmark.load().samples, None)
    assert [row["rows that fit"] for row in found["arms"]] == [0, 0]
    assert found["sentences"][2].startswith("It does not fit: vcd needs ")
    assert "model.dtype=bfloat16" in found["sentences"][2]
    monkeypatch.setattr(plan, "free_memory", lambda _: None)
    with pytest.raises(UserError, match=r"the memory of cuda:0 is unknown here; set task.gpu_gib"):
        room_of(None, BIG)


@pytest.mark.long
@pytest.mark.parametrize("path", first(shipped()))
def test_shipped_configurations_have_the_published_number_of_parameters(path: str) -> None:
    model = outline(ModelConfig(path.rpartition("/")[2], path), torch.bfloat16)[0].model
    billions = sum(weight.numel() for weight in model.parameters()) / 1e9
    assert billions == pytest.approx(shipped()[path]["billions"], abs=0.006)


def test_weights_and_one_prompt_decide_and_force_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_bytes(outline(BIG, torch.bfloat16)[0].model.config, "bfloat16")
    assert 0.5 * GIB < row < 0.7 * GIB
    numbers, cuda = {"BF16": 7_063_427_072}, torch.device("cuda")
    monkeypatch.setattr(config, "free_memory", lambda _: int(13.5 * GIB))
    check_room(BIG, numbers, "bfloat16", cuda)
    with pytest.raises(UserError, match=r"need 13.2 GiB in bfloat16, one prompt of 1,024 tokens about .*force=true"):
        check_room(BIG, numbers, "bfloat16", cuda, row)
    check_room(replace(BIG, force=True), numbers, "bfloat16", cuda, row)
    assert run_of("force=true").config_hash == run_of().config_hash
    assert run_of("force=true").weights.force
