"""``task=plan`` composes the command it is given without itself, knows its steps, and refuses in a sentence."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from experiments.command_line.arguments import for_hydra
from experiments.planning import peak_memory
from experiments.planning.model_calls import LEARNING, Scene, Step, signature, steps_of
from experiments.planning.models import Asked, blueprint, build, known
from experiments.planning.peak_memory import Measured, Outcome, Room, Stage, room_of
from experiments.planning.task import Plan, advice, assumptions
from experiments.planning.task import table as drawn
from experiments.shapes.ledger import Ledger
from experiments.studies.mechanism.study import Mechanism
from interp.batching import BatchContext
from interp.checkpoints import memory
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.memory import GIB, check_room, estimate, row_bytes
from interp.errors import UserError
from interp.loading import load
from mitigation.learned.direction_ablation import AblateDirection
from mitigation.method import Baseline
from mitigation.peers.opera import ROLLBACKS
from mitigation.prior_correction import PriorCorrection
from mitigation.vcd import VCD
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of
from tests.experiments.planning.job import OTHER_ARMS
from tests.parts import tiny_parts

SMALL = "model=llava_organism max_new_tokens=4 batch_size=4"
COMMANDS = {
    "vcd_llava": ("answers: baseline", "answers: vcd, vcd_published", "recording", "knockout"),
    "verbalise_llava": ("answers: verbalise", "answers: before", "answers: ecso", "answers: oracle"),
    "mechanism": ("answers: baseline", "recording: hidden", "knockout", "patching", "prior", "directions"),
    "localise": ("answers: baseline", "parts: pairs, whole", "parts: one or more replaced"),
    "direction_ablation": ("learning: ablate_direction", "answers: to_safe", "answers: random_0"),
    "vrtuning_llava_7b": ("training: LoRA steps", "answers: baseline", "answers: vrtuning"),
}


@cache
def plans() -> dict[str, Any]:
    """All that the job measures of the organism, by experiment; "longer" are answers of several arms, added up."""
    names = {exp: f"+exp={exp} {SMALL}" for exp in COMMANDS}
    command = [sys.executable, "-W", "ignore", "-m", "tests.experiments.planning.job", *names.values(), "longer"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return dict(zip([*names, "longer"], lines, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("exp", COMMANDS)
def test_an_experiment_is_planned_step_by_step(exp: str) -> None:
    outcomes = plans()[exp]["outcomes"]
    assert not [one for one in outcomes if one["error"]]
    for beginning in COMMANDS[exp]:
        assert [one for one in outcomes if one["step"].startswith(beginning)], beginning
    assert all(one["peak"] > plans()[exp]["weights"] and one["seconds"] > 0 for one in outcomes)
    assert all(one["rows"] == one["asked"] for one in outcomes)  # so small a model fits


@pytest.mark.long
def test_states_below_a_cut_or_a_patch_are_held_beside_it() -> None:
    """``interp.speed.unchanged`` keeps those of three layers, and patching the twin's too; an edit holds none."""
    peaks = {one["step"].partition(":")[0]: one["peak"] for one in plans()["mechanism"]["outcomes"]}
    state = 4 * plans()["mechanism"]["tokens"] * 160 * 2  # bytes: four rows in bfloat16
    assert peaks["knockout"] - peaks["directions"] >= 3 * state
    assert peaks["patching"] - peaks["directions"] >= 6 * state


@pytest.mark.long
def test_a_step_takes_as_long_as_all_that_the_study_runs_of_it() -> None:
    """A plan runs the last cuts and layers alone, and counts the others: between their share of layers and all."""
    seconds = {one["step"].partition(":")[0]: one["seconds"] for one in plans()["mechanism"]["outcomes"]}
    forward = seconds["directions"] / 3
    # Three edges, in all of four layers and in each of them.
    assert 1 + 3 * (4 + 4 + 3 + 2 + 1) / 4 < seconds["knockout"] / forward < 1 + 3 * 5
    # Six places of the picture's twin and three of the sentence's, at five layers.
    assert 4 + 9 * (4 + 3 + 2 + 1 + 0) / 4 < seconds["patching"] / forward < 4 + 9 * 5


@pytest.mark.long
def test_a_longer_answer_adds_up_to_what_it_is() -> None:
    found = plans()["longer"]
    assert [one["step"].removeprefix("answers: ") for one in found["added"]] == ["baseline", "vcd", *OTHER_ARMS]
    for added, done in zip(found["added"], found["done"], strict=True):
        assert not added["error"]
        assert added["peak"] == pytest.approx(done["peak"], rel=1e-3), added["step"]
        assert added["seconds"] == pytest.approx(done["seconds"], rel=0.02), added["step"]


def test_what_depends_on_the_numbers_is_taken_at_its_most_or_said_to_be_left_out() -> None:
    lazy, other = "method.branch=lazy", "arms.v.branch=sequential"
    run = run_of("method=vcd", lazy, "+method@arms.v=vcd", other, "+method@arms.o=opera")
    steps = {step.name: step for step in steps_of(run)}
    assert list(steps) == ["answers: baseline", "answers: vcd, v", "answers: o"]
    search = steps["answers: o"]
    assert (search.rows, search.left_out) == (1, ROLLBACKS)
    found = Measured("", 24 * GIB, GIB, 1, "bfloat16", "", True, 700, 576, "", [
        Outcome(search.name, 1, 1, GIB, left_out=search.left_out)])  # fmt: skip
    assert advice(found, run_of())[-1] == f"answers: o, not in the plan: {ROLLBACKS}."
    never = steps_of(run_of("method=opera", "method.threshold=null"))
    assert not [step for step in never if step.left_out]


def test_weights_that_are_trained_in_four_bits_are_packed_before_they_are_weighed(tmp_path: Path) -> None:
    ledger: Any = Ledger()
    layers = torch.nn.ModuleList(torch.nn.Linear(64, 64, bias=False) for _ in range(4))
    for layer in layers:
        layer.weight.memory = ledger.held(layer.weight.detach().bfloat16(), torch.device("meta"))  # type: ignore[attr-defined]
    vlm: Any = SimpleNamespace(model=None, layout=SimpleNamespace(module=lambda model, name: layers))
    vlm.speaker, vlm.batches = layers[0], BatchContext(layers)
    run: Any = SimpleNamespace(task=SimpleNamespace(settings=SimpleNamespace(four_bit=True)), max_new_tokens=1)
    run.protocol = "score"
    stage = Stage(run, None, Room("", 0, True), None, torch.bfloat16, ledger, tmp_path, _vlm=vlm)  # type: ignore[arg-type]
    nothing = lambda scene, rows: None  # noqa: E731
    answering, training = Step("answers", nothing), Step("training", nothing, trains=True)
    between = int(0.6 * ledger.now)
    assert stage.cost(answering, 1, between) is None
    assert stage.cost(training, 1, between) is not None
    assert stage.cost(training, 1, int(0.2 * 8 * 64 * 64)) is None


@pytest.mark.long
def test_the_causal_tools_are_timed_with_all_their_windows_and_points() -> None:
    from experiments.studies.mechanism import examination as tools
    from interp.hooks.residual import last_layer
    from interp.tools.knockout import windows

    run = run_of("+exp=mechanism", "task.layers=3", "task.failures=5")
    steps = {step.name.partition(":")[0]: step for step in steps_of(run)}
    vlm = load("organism:llava", device="cpu")
    scene = Scene(run, vlm, Asked(8, 48, 48), Path(), 1, False)
    ran: list[int] = []
    for layer in vlm.layout.module(vlm.model, "layers"):
        layer.self_attn.register_forward_hook(lambda *_: ran.append(1))

    def layers_run(do: Any) -> int:
        ran.clear()
        do()
        return len(ran)

    layers = tools.spaced_layers(last_layer(vlm), 3)
    clean, twin = ([prompt] for prompt in (scene.prompts(1)[0], scene.prompts(1, seed=1)[0]))
    patched = sum(
        layers_run(lambda places=places: tools.patch_effects(vlm, clean, [twin], positions=places, layers=layers))
        for places in tools.PATCHED.values()
    )
    cut = layers_run(lambda: tools.cut_margins(vlm, clean, windows=windows(vlm, 1)))
    for name, whole, cases in (("knockout", cut, 20), ("patching", patched, 5)):
        step = steps[name]
        assert step.times(vlm) == pytest.approx(whole / layers_run(lambda step=step: step.do(scene, 1)))  # type: ignore[operator]
        assert step.cases == cases
    assert "prior" in {step.name.partition(":")[0] for step in steps_of(run_of("+exp=mechanism", "task.prior=none"))}


def test_what_a_method_learns_is_learned_once_at_one_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches are tried until one fits: at seven billion parameters each learning takes seconds."""
    layers: list[int | None] = []

    def learn(self: AblateDirection, *_: Any, **__: Any) -> None:
        layers.append(self.layer)

    monkeypatch.setattr(AblateDirection, "learn", learn)
    monkeypatch.setattr(AblateDirection, "read", lambda self, out: Baseline())
    run = run_of("method=ablate_direction")
    steps = {step.name: step for step in steps_of(run)}
    scene = Scene(run, load("organism:llava", device="cpu"), Asked(8, 48, 48), tmp_path, 1, False)
    for rows in (2, 1):
        steps["answers: ablate_direction"].do(scene, rows)
    assert layers == [1]


def test_arms_that_learn_as_much_learn_once_in_a_plan_and_what_they_learn_is_answered_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[Path] = []
    read: list[tuple[str, Path]] = []

    def reading(self: AblateDirection, out: Path) -> Baseline:
        read.append((self.to, out))
        return Baseline()

    monkeypatch.setattr(AblateDirection, "learn", lambda self, *_, out: learned.append(out))
    monkeypatch.setattr(AblateDirection, "read", reading)
    run = run_of("+exp=direction_ablation")
    steps = {step.name: step for step in steps_of(run)}
    (learning,) = (name for name in steps if name.startswith("learning"))
    assert learning == "learning: ablate_direction, to_safe, shuffled_to_safe, shuffled"
    assert (steps[learning].times, steps[learning].least) == (4, LEARNING)
    scene = Scene(run, load("organism:llava", device="cpu"), Asked(8, 48, 48), tmp_path, 1, False)
    for name in (learning, "answers: ablate_direction", "answers: to_safe"):
        steps[name].do(scene, 1)
    (file,) = learned
    assert read == [("zero", file), ("safe", file)]


def test_a_failed_step_is_shown_as_it_is_said() -> None:
    said = "on shapes it fails (ValueError: sizes [/tmp/x] and [row])"
    found = Measured("a [gpu]", GIB, GIB, 1, "bfloat16", "", True, 7, 5, "", [
        Outcome("answers: a", 0, 1, error=said), Outcome("patching: b", 1, 1, seconds=2.0, cases=3)])  # fmt: skip
    console = Console(width=200, file=StringIO())
    console.print(drawn(found, run_of(), 100))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert said in shown
    assert "a [gpu]" in shown
    assert "6.0 s" in shown


def test_a_small_model_on_a_cpu_is_counted_in_small_units_and_no_card_is_spoken_of_as_here() -> None:
    rates = Plan().rates(None)[1]
    small = Measured(
        "cpu, 22.2 GiB of it free now", 22 * GIB, 8 * 2**20, 2_100_000, "float32", "", False, 9, 5, "x", []
    )
    told = " ".join(assumptions(small, run_of(), "", rates))
    assert "2.1 million parameters in float32, 8 MiB of weights; 22.0 GiB usable" in told
    assert "this CPU takes longer" in told
    assert "CUDA" not in told
    large = replace(small, room="a GPU of 24 GiB", parameters=7_060_000_000, weights=13 * GIB)
    told = " ".join(assumptions(large, run_of(), "", rates))
    assert "7.06 billion parameters in float32, 13.0 GiB of weights" in told
    assert "this CPU" not in told
    assert "For CUDA itself" in told


def test_a_plan_composes_the_command_without_itself() -> None:
    command = ["task=plan", "+exp=mechanism", "task.width=8", "task.gpu_gib=24"]
    assert for_hydra(command) == ["+task@plan=plan", "+exp=mechanism", "task.width=8", "plan.gpu_gib=24"]
    assert for_hydra(command[1:]) == command[1:]
    run = run_of(*for_hydra(command))
    assert isinstance(run.plan, Plan)
    assert run.plan.gpu_gib == 24
    assert run.task == Mechanism(width=8)
    assert run.config_hash == run_of("+exp=mechanism").config_hash


def test_a_benchmark_that_is_not_here_is_planned_for() -> None:
    run = run_of(*for_hydra(["task=plan", "benchmark=mossbench", "task.cases=7"]))
    assert run.plan is not None
    asked, cases, said = run.plan.prompts(run)  # type: ignore[attr-defined]
    assert (asked.words, cases) == (128, 7)
    assert "Assumed, for want of cases" in said


def test_a_benchmark_that_is_here_says_how_long_its_prompts_are() -> None:
    _, cases, said = Plan().prompts(run_of("limit=50"))
    assert cases == 50
    assert "longest of 732 cases" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gpu_gib": 0}, r"task.gpu_gib=0: must be above 0"),
        ({"gpu_gib": -4.0}, r"task.gpu_gib=-4.0: must be above 0"),
        ({"gpu_gib": float("nan")}, r"task.gpu_gib=nan: must be above 0"),
        ({"gpu_gib": float("inf")}, r"task.gpu_gib=inf: must be above 0 and finite"),
        ({"text_tokens": 0}, r"task.text_tokens=0: must be above 0"),
        ({"picture": (640, 0)}, r"task.picture=\[640, 0\]: must be width and height"),
    ],
)
def test_numbers_out_of_range(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Plan(**arguments)


def test_a_model_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"configuration of nobody/nothing is not known here; it is for .*llava-1.5-7b"):
        blueprint(ModelConfig("nothing", "nobody/nothing"))
    with pytest.raises(UserError, match="no model folder at /nowhere/at/all"):
        blueprint(ModelConfig("nothing", "/nowhere/at/all"))


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config.json in .*; a model folder holds one"):
        blueprint(ModelConfig("empty", str(tmp_path)))


def test_a_task_whose_steps_are_not_known() -> None:
    with pytest.raises(UserError, match="task=plan does not know the steps of this task; it plans study, mechanism"):
        steps_of(run_of("task=bench_vcd"))


def test_free_memory_decides_not_the_cards_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "resolve_device", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * GIB, 80 * GIB))
    busy = room_of(None, ModelConfig("big", "a/b"))
    assert busy.usable < 5 * GIB
    assert busy.on_gpu
    assert "cuda:0, 5.0 GiB of it free now" in busy.title
    found = Measured(busy.title, busy.usable, 13 * GIB, 7 * 10**9, "bfloat16", "", True, 700, 576, "", [
        Outcome("answers: baseline", 0, 23, 14 * GIB)])  # fmt: skip
    first, second = advice(found, run_of("model=llava_1_5_7b"))[:2]
    assert first == "It does not fit: the weights alone need 13.0 GiB, and 4.8 GiB are usable."
    assert "model.device_map=auto spreads it over 3 such cards" in second
    monkeypatch.setattr(peak_memory, "free_memory", lambda _: None)
    with pytest.raises(UserError, match=r"how much memory cuda:0 has is not known here; say it with task.gpu_gib"):
        room_of(None, ModelConfig("big", "a/b"))


@pytest.mark.long
@pytest.mark.parametrize("path", known())
def test_shipped_configurations_have_the_published_number_of_parameters(path: str) -> None:
    model = ModelConfig(path.rpartition("/")[2], path)
    found = build(blueprint(model), model, torch.bfloat16).model
    billions = sum(weight.numel() for weight in found.parameters()) / 1e9
    assert billions == pytest.approx(known()[path]["billions"], abs=0.006)


def test_arms_that_differ_in_values_alone_are_planned_once() -> None:
    assert signature(VCD(alpha=1.0, noise_step=500)) == signature(VCD(alpha=2.0, noise_step=700))
    assert signature(VCD(beta=None)) != signature(VCD(beta=0.1))
    assert signature(VCD(branch="paired")) != signature(VCD(branch="sequential"))
    assert signature(PriorCorrection(prior="noise", pictures=2)) != signature(
        PriorCorrection(prior="noise", pictures=3)
    )


def test_a_command_says_what_it_needs_before_it_loads(capsys: pytest.CaptureFixture[str]) -> None:
    load("organism:llava", device="cpu")
    assert "of weights in float32 and about 13 MiB for one prompt of 1,024 tokens; " in capsys.readouterr().err


def test_weights_and_one_prompt_decide_and_force_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = blueprint(ModelConfig("big", "llava-hf/llava-1.5-7b-hf"))
    row = row_bytes(plan.config, "bfloat16")
    assert 0.5 * GIB < row < 0.7 * GIB
    numbers = {"BF16": 7_063_427_072}
    monkeypatch.setattr(memory, "free_memory", lambda _: int(13.5 * GIB))
    cuda = torch.device("cuda")
    check_room(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda)
    with pytest.raises(UserError, match=r"need 13.2 GiB in bfloat16, one prompt of 1,024 tokens about .*force=true"):
        check_room(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda, row)
    check_room(ModelConfig("big", "a/b", force=True), numbers, "bfloat16", cuda, row)
    said = estimate(ModelConfig("big", "a/b"), numbers, "bfloat16", cuda, row)
    assert said is not None
    assert said.startswith("big: 13.2 GiB of weights in bfloat16 and about 0.")
    assert run_of("force=true").config_hash == run_of().config_hash
    assert run_of("force=true").weights.force


def test_a_model_in_parts_is_planned_with_its_adapter_and_without_its_language_model(tmp_path: Path) -> None:
    model, _ = tiny_parts(tmp_path / "parts", tmp_path / "base")
    shutil.rmtree(tmp_path / "base")
    config = ModelConfig("parts", str(tmp_path / "parts"))
    plan = blueprint(config)
    assert not plan.stand_in
    made = build(plan, config, torch.bfloat16).model
    assert {name: weight.shape for name, weight in made.state_dict().items()} == {
        name: weight.shape for name, weight in model.state_dict().items()
    }
    assert next(made.parameters()).is_meta


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


def test_a_real_model_is_planned_with_pictures_as_large_as_photographs() -> None:
    asked, _, said = Plan().prompts(run_of("model=qwen2_5_vl_7b", "limit=4"))
    assert (asked.width, asked.height) == (640, 480)
    assert "pictures of 640 × 480 pixels, as photographs are (task.picture), though the drawings of iconworld" in said
    asked, _, said = Plan().prompts(run_of("limit=4"))
    assert (asked.width, asked.height) == (96, 96)
