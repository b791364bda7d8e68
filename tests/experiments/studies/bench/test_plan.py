"""``task=plan`` estimates what a run is then seen to take, says that it is an estimate, and refuses in a sentence."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.studies.bench.estimate import (
    Batch,
    Rates,
    Room,
    Seconds,
    arm_estimate,
    batch_bytes,
    computed_seconds,
    room_of,
    weight_bytes,
)
from experiments.studies.bench.known_models import at_hand, known, outline

from experiments.command_line.arguments import for_hydra
from experiments.evaluation import study
from experiments.studies.bench import estimate
from experiments.studies.bench.plan import ERROR, Plan, entering, verdict
from experiments.studies.mechanism.study import Mechanism
from interp.checkpoints import memory
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.memory import GIB, check_room, row_bytes, token_cache_bytes
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.method import Baseline, abilities
from mitigation.vcd import VCD
from tests.experiments.compose import run_of
from tests.families import FAMILIES
from tests.methods import METHODS
from tests.tiny import picture
from tests.weekly import first

LLAVA = ModelConfig("big", "llava-hf/llava-1.5-7b-hf")
PROMPTS = [
    Prompt(text, picture(number, (48, 48)), key=str(number))
    for number, text in enumerate(("Is it safe to eat the cake?", "Is it safe to eat the cake with it?"))
]


def plan_of(folder: Path, *words: str) -> dict[str, Any]:
    """The one plan of a command."""
    run = run_of(*for_hydra(["task=plan", *words]), f"output_root={folder}")
    run.task(run)
    (path,) = folder.glob("plan/*/plan.json")
    (found,) = json.loads(path.read_text(encoding="utf-8"))["plans"]
    return found  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_plan_composes_the_command_without_itself() -> None:
    command = ["task=plan", "+exp=mechanism", "task.width=8", "task.gpu_gib=24"]
    assert for_hydra(command) == ["+task@plan=plan", "+exp=mechanism", "task.width=8", "plan.gpu_gib=24"]
    assert for_hydra(command[1:]) == command[1:]
    run = run_of(*for_hydra(command))
    assert run.task == Plan(gpu_gib=24)
    assert run.config_hash == run_of("+exp=mechanism").config_hash
    with pytest.raises(UserError, match=r"task\.widths: .* has no such argument"):
        run_of(*for_hydra(["task=plan", "+exp=mechanism", "+task.widths=8"]))
    assert isinstance(run_of("+exp=mechanism").task, Mechanism)


def test_weights_are_those_of_the_loaded_model() -> None:
    model = ModelConfig("llava", "organism:llava")
    loaded = load(model, device="cpu").model
    found = outline(model, torch.float32)
    assert (found.stand_in, found.vlm.model.device.type) == (False, "meta")
    assert weight_bytes(found.vlm) == loaded.get_memory_footprint()


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
        assert sum(read) < declared if name == "vista_normed" else sum(read) == declared


@pytest.mark.long
def test_prompts_and_tokens_of_arms_are_those_that_a_run_notes(tmp_path: Path) -> None:
    words = (
        *("method=vcd", "+method@arms.calibrated_shift=calibrated_shift", "+method@arms.verbalise=verbalise"),
        *("arms.verbalise.description_tokens=1", "limit=6", "max_new_tokens=1", "draws=20"),
    )
    planned = {one["arm"]: one for one in plan_of(tmp_path, *words)["arms"]}
    study.run(run_of(*words, f"output_root={tmp_path}"))
    (folder,) = (tmp_path / "study").iterdir()
    noted: dict[str, Counter[str]] = {}
    for line in map(json.loads, (folder / "cost.jsonl").read_text(encoding="utf-8").splitlines()):
        # An arm that is asked alone, as on the development split, shares no prefills, and none is counted.
        read = line["prefills"] + line["prefills_reused"] or line["cases"]
        noted.setdefault(line["arm"], Counter()).update(
            prompts=read, tokens=line["tokens"] + line.get("step_tokens", 0)
        )
    assert noted["vcd"] == {"prompts": 12, "tokens": 6}
    assert noted == {arm: {name: one[name] for name in ("prompts", "tokens")} for arm, one in planned.items()}


@pytest.mark.long
def test_a_plan_says_that_it_estimates_and_what_it_rests_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan_of(tmp_path, "limit=4", "method=vcd", "max_new_tokens=2")
    assert ERROR in found["sentences"]
    assert ERROR in " ".join(capsys.readouterr().out.split())
    assert "Times are by one batch of 4 cases, measured here" in found["speed"]
    assert "2.04 million parameters in float32, 8 MiB of weights" in found["sentences"][0]
    baseline, vcd = found["arms"]
    assert found["weights"] < baseline["peak"] < vcd["peak"]
    assert 0 < baseline["seconds"] < vcd["seconds"]
    assert vcd["rows"] == vcd["asked"] == 4


@pytest.mark.long
def test_a_known_model_is_planned_for_a_card_without_weights(tmp_path: Path) -> None:
    words = ("model=llava_1_5_7b", "limit=8", "max_new_tokens=16", "task.gpu_gib=16")
    found = plan_of(tmp_path, *words)
    assert found["stand_in"]
    assert found["longest"] > 576
    assert found["weights"] == pytest.approx(2 * 7.06e9, rel=0.002)
    assert [one["rows"] for one in found["arms"]] == [4, 2]
    assert "set batch_tokens=" in found["sentences"][3]
    assert "Times are computed for 50% of 65 TFLOP/s" in found["speed"]


def test_memory_grows_with_rows_branches_and_patches() -> None:
    vlm = outline(LLAVA, torch.bfloat16).vlm
    batch = Batch([], 649, 576)
    one = batch_bytes(vlm, batch, 1, 1, 16)
    assert one == row_bytes(vlm.model.config, "bfloat16", 649) + 16 * 524288
    assert batch_bytes(vlm, batch, 3, 1, 16) == 3 * one
    assert batch_bytes(vlm, batch, 1, 2, 16) == 2 * one
    assert batch_bytes(vlm, replace(batch, patches=10**6), 1, 1, 16) == 10**6 * (4 * 1024 + 3 * 4096) * 2
    vlm.model.config._attn_implementation = "eager"
    assert batch_bytes(vlm, batch, 1, 1, 16) - one == 32 * 649**2 * 8


def test_seconds_are_prompts_and_tokens_times_those_of_a_batch() -> None:
    vlm = outline(ModelConfig("llava", "organism:llava"), torch.float32).vlm
    batch = Batch([None] * 8, 50, 36)  # type: ignore[list-item]
    room = Room("", GIB, False)

    def seconds(method: Any, speed: Any) -> float:
        return arm_estimate("a", method, 100, [batch], vlm, room, 5, speed).seconds

    assert seconds(Baseline(), Seconds(8, 1.6, 0.4)) == pytest.approx(100 * (1.6 + 4 * 0.4) / 8)
    assert seconds(Baseline(), Seconds(8, 1.6, 0.4, tokens=3.0)) == pytest.approx(100 * (1.6 + 2 * 0.4) / 8)
    assert seconds(VCD(), Seconds(8, 1.6, 0.4)) == pytest.approx(200 * (1.6 + 4 * 0.4) / 8)
    slow = computed_seconds(vlm, batch, 8, Rates(1e9, 1e15, ""))
    assert computed_seconds(vlm, batch, 8, Rates(2e9, 1e15, "")).reading == pytest.approx(slow.reading / 2)
    bound = computed_seconds(vlm, batch, 8, Rates(1e15, 1e9, ""))
    assert bound.reading == pytest.approx(4 * 2_040_000 / 1e9, rel=0.01)
    assert bound.step > bound.reading  # the cache is read too


def test_what_does_not_fit_is_said_with_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "resolve_device", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * GIB, 80 * GIB))
    busy = room_of(None, LLAVA)
    assert "cuda:0, 5.0 GiB of it free now" in busy.title
    assert busy.on_gpu
    assert busy.usable < 5 * GIB
    run = run_of("model=llava_1_5_7b", "limit=2")
    samples = run.benchmark.load().samples[:2]
    found = estimate.estimated(run, samples, entering(run), {"baseline": 2, "vcd": 2}, None, Plan().rates(None))
    assert [one.rows for one in found.arms] == [0, 0]
    (said,) = verdict(found, run)
    assert said.startswith("It does not fit: vcd needs ")
    assert "4.8 GiB are usable. What to change: " in said
    monkeypatch.setattr(estimate, "free_memory", lambda _: None)
    with pytest.raises(UserError, match=r"how much memory cuda:0 has is not known here; say it with task.gpu_gib"):
        room_of(None, LLAVA)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("benchmark=mossbench",),
            r"benchmark\.root is not set; MOSSBench is read from a clone of .*; give its folder",
        ),
        (("model.path=nobody/nothing",), r"configuration of nobody/nothing is not known here; .*llava-1\.5-7b"),
        (("model.path=/nowhere/at/all",), "no model folder at /nowhere/at/all"),
        (("task.gpu_gib=0",), r"task\.gpu_gib=0\.0: must be above 0"),
        (("task.gb_per_s=inf",), r"task\.gb_per_s=inf: must be above 0 and finite"),
        (
            ("model=api", "model.model=x", "model.base_url=http://localhost:1/v1"),
            "is only reached over an API; this task looks inside a model",
        ),
    ],
)
def test_what_is_missing_is_asked_for_in_a_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        plan_of(tmp_path, "task.gpu_gib=24" * ("task.gpu_gib=0" not in words) or "limit=2", *words)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config.json in .*; a model folder holds one"):
        outline(ModelConfig("empty", str(tmp_path)), torch.float32)
    assert not at_hand(ModelConfig("empty", str(tmp_path)))
    assert not at_hand(LLAVA)
    assert at_hand(ModelConfig("organism", "organism:llava"))


@pytest.mark.long
@pytest.mark.parametrize("path", first(known()))
def test_shipped_configurations_have_the_published_number_of_parameters(path: str) -> None:
    found = outline(ModelConfig(path.rpartition("/")[2], path), torch.bfloat16).vlm.model
    billions = sum(weight.numel() for weight in found.parameters()) / 1e9
    assert billions == pytest.approx(known()[path]["billions"], abs=0.006)


@pytest.mark.parametrize(
    ("model", "arguments", "gpu", "cards"),
    [
        ("qwen2_5_vl_7b", {}, False, (24, 80)),
        ("qwen2_5_vl_7b", {}, True, [None]),
        ("qwen2_5_vl_7b", {"gpu_gib": 40}, False, [40]),
        ("llava_organism", {}, False, [None]),
    ],
)
def test_without_a_gpu_a_real_model_is_planned_for_usual_cards(
    model: str, arguments: dict[str, Any], gpu: bool, cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert Plan(**arguments).cards(run_of(f"model={model}")) == cards
    assert Plan().cards(run_of("model=qwen2_5_vl_7b", "model.device=cpu")) == [None]


def test_a_command_says_what_it_needs_before_it_loads(capsys: pytest.CaptureFixture[str]) -> None:
    load("organism:llava", device="cpu")
    assert "of weights in float32 and about 13 MiB for one prompt of 1,024 tokens; " in capsys.readouterr().err


@pytest.mark.long
def test_weights_and_one_prompt_decide_and_force_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_bytes(outline(LLAVA, torch.bfloat16).vlm.model.config, "bfloat16")
    assert 0.5 * GIB < row < 0.7 * GIB
    numbers = {"BF16": 7_063_427_072}
    monkeypatch.setattr(memory, "free_memory", lambda _: int(13.5 * GIB))
    cuda = torch.device("cuda")
    check_room(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda)
    with pytest.raises(UserError, match=r"need 13.2 GiB in bfloat16, one prompt of 1,024 tokens about .*force=true"):
        check_room(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda, row)
    check_room(ModelConfig("big", "a/b", force=True), numbers, "bfloat16", cuda, row)
    said = memory.estimate(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda, row)
    assert said is not None
    assert said.startswith("big: 13.2 GiB of weights in bfloat16 and about 0.")
    assert run_of("force=true").config_hash == run_of().config_hash
    assert run_of("force=true").weights.force
