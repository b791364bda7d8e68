"""What an experiment does with its model, step by step: each one batch of what the study does many times.

Every step calls the very functions that the study calls, so that what changes there changes the plan.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.arms import not_applicable, signature
from experiments.planning.memory_trace import SETTLING
from experiments.planning.models import Asked
from experiments.runs.responses import Responses
from experiments.studies.attention.analysis import EDGES
from experiments.studies.attention.heatmap import Heatmap
from experiments.studies.direction_ablation import Ablation
from experiments.studies.localise.cases import JOIN, TERMS
from experiments.studies.localise.study import Localise
from experiments.studies.mechanism import examination as tools
from experiments.studies.mechanism.study import Mechanism
from experiments.studies.mitigation_selection.study import Mitigations
from experiments.studies.vrtuning.arms import NewAdapter
from experiments.studies.vrtuning.study import VRTuningStudy
from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.hooks.residual import last_layer
from interp.hooks.residual import residuals as read_residuals
from interp.segments import segment
from interp.speed.prefills import PrefillStore, shared_prefills
from interp.speed.unchanged import MOST, Prefix
from interp.speed.vision_cache import FeatureCache, shared_features
from interp.tools.attribution import integrated_gradients
from interp.tools.gradients import same_functions
from interp.tools.knockout import knockout, windows
from interp.tools.part_effects import check_precise, part_attribution, part_set_effects, parts_of
from interp.vlm import VLM, Prompt
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import Baseline, TrainableMethod, abilities
from mitigation.threshold import ConstantShift
from mitigation.vrtuning.settings import Settings

BASELINE = "baseline"
# Of a trainable method: what it does with what it has learned, and whose labels it learns from. Arms that differ in
# these too learn as much, and one of them learns for all.
AFTER_LEARNING = ("to", "weights", "shuffle")
LEARNING = 64  # cases that a method learns from in a plan, at least: it needs some of either kind
QUESTIONS = 8
CHOICE = "the choice of settings on the development split, whose time the command itself says when it begins"
TRAINED_TOKENS = 64  # of an answer that an adapter is trained on


@dataclass(frozen=True)
class Scene:
    """What a step works on: the run, the model, the prompts, and a folder for files that nobody keeps."""

    run: Run
    vlm: VLM
    asked: Asked
    folder: Path
    new_tokens: int  # generated in a plan; the later ones of an answer are added up from these
    on_gpu: bool
    begin: Callable[[], None] = lambda: None  # called where a step's preparations are over

    def prompts(self, count: int, *, seed: int = 0) -> list[Prompt]:
        """As many prompts as the batch has rows."""
        return self.asked.prompts(count, seed=seed)


@dataclass(frozen=True)
class Step:
    """One batch of a study's work.

    ``do`` is called with the scene and the rows of the batch. ``rows`` are the most that a batch has (None: as many as
    ``batch_size`` and ``batch_tokens`` allow). ``times`` is how often the study does it with every case it does it
    with, which may depend on the model's layers; ``cases`` are the most it does it with (None: all). ``generates`` says
    that it makes an answer, whose later tokens are added up from its first ones. ``trains`` says that it counts in
    optimiser steps, not in cases. ``alters`` says that it leaves something in the model. ``left_out`` is what depends
    on the numbers and is not in the plan, as a clause without its full stop. ``settling`` is how many tokens more than
    others' its answers need until each takes as much as the one before. ``least`` are the prompts that ``do`` works on
    at least, however small the batch.
    """

    name: str
    do: Callable[[Scene, int], object]
    rows: int | None = None
    times: float | Callable[[VLM], float] = 1.0
    cases: int | None = None
    generates: bool = False
    trains: bool = False
    alters: bool = False
    left_out: str = ""
    settling: int = 0
    least: int = 1


def steps_of(run: Run) -> list[Step]:
    """The steps of the composed experiment.

    Raises:
        UserError: its task asks no model, or one whose steps are not known here.
    """
    task = run.task
    _ = run.weights
    if isinstance(task, Mechanism):
        return [*_answers(run, {BASELINE: run.arms[BASELINE]}), *_mechanism(task, run)]
    if isinstance(task, Localise):
        return [*_answers(run, {BASELINE: run.arms[BASELINE]}), *_localise(task)]
    if isinstance(task, Mitigations):
        found = {name: candidate.method for name, candidate in task.candidates.items()}
        first, *others = _answers(run, {**run.arms, **found})
        return [replace(first, left_out=CHOICE), *others]
    if isinstance(task, VRTuningStudy):
        watched = [_recording("attention of answers, with and without adapter")] if task.attention else []
        return [*_training(task), *_answers(run, run.arms, task.settings), *watched]
    if isinstance(task, Heatmap):
        return [_recording("recording with maps of all queries", rows=1)]
    if isinstance(task, Ablation) or getattr(task, "func", None) is study.run:
        return [*_answers(run, run.arms), *_attention(run)]
    raise UserError(
        "task=plan does not know the steps of this task; it plans study, mechanism, localise, "
        "direction_ablation, mitigation_selection, vrtuning and heatmap; choose one of them, or an experiment that "
        "runs one (+exp=NAME)"
    )


def _answers(run: Run, arms: Mapping[str, Any], adapter: Settings | None = None) -> list[Step]:
    """One step for all arms that compute as much, and before it what a trainable one learns."""
    alike: dict[str, tuple[Any, list[str]]] = {}
    absent = not_applicable(run)
    for name, method in arms.items():
        if not isinstance(method, Responses) and name not in absent:
            able = abilities(method)
            answering = ConstantShift(1.0) if able.fitted_to else able.worst_case or method
            alike.setdefault(signature(answering), (answering, []))[1].append(name)
    learners: dict[str, tuple[list[str], list[Path]]] = {}
    for method, names in alike.values():
        learners.setdefault(signature(method, without=AFTER_LEARNING), ([], []))[0].extend(names)
    steps: list[Step] = []
    for method, names in alike.values():
        able = abilities(method)
        learn_alike, files = learners[signature(method, without=AFTER_LEARNING)]
        if isinstance(method, TrainableMethod) and learn_alike[0] == names[0]:
            label, do = f"learning: {', '.join(learn_alike)}", partial(_learn, method, files)
            steps.append(Step(label, do, times=len(learn_alike), least=LEARNING))
        steps.append(
            Step(
                f"answers: {', '.join(names)}",
                partial(_answer, method, adapter, files),
                rows=1 if able.one_by_one else None,
                times=len(names),
                generates=True,
                alters=isinstance(method, NewAdapter),
                left_out=able.not_planned,
                settling=SETTLING if able.one_by_one else 0,
            )
        )
    return steps


def _learn(method: Any, files: list[Path], scene: Scene, rows: int) -> None:
    """Puts the file of what has been learned into ``files``, for the steps that answer with it."""
    if isinstance(method, TruthReadout):
        # Which layer it chooses depends on the numbers. The gradient down to the first one takes the most.
        method = at_one_layer(method)
    files[:] = [_taught(method, scene, scene.prompts(max(rows, LEARNING)))]


def at_one_layer(method: Any) -> Any:
    """The method at its first layer, where it would choose among layers."""
    return replace(method, layer=1) if getattr(method, "layer", 1) is None else method


def _taught(method: Any, scene: Scene, prompts: Sequence[Prompt]) -> Path:
    """The file of what the method learns from a few questions, each of several cases: some learn by leaving them
    out."""
    asked = [replace(one, text=f"{one.text} {number // 2 % QUESTIONS}") for number, one in enumerate(prompts)]
    path = scene.folder / f"{id(method)}.safetensors"
    method.learn(scene.vlm, asked, [number % 2 == 0 for number in range(len(asked))], out=path)
    return path


def _answer(method: Any, adapter: Settings | None, files: list[Path], scene: Scene, rows: int) -> object:
    answering, vlm = method, scene.vlm
    if getattr(method, "weights", False) is True:  # a second checkpoint, which is on disk in the study
        answering, vlm = Baseline(), second_copy(scene.vlm)
    elif isinstance(method, TrainableMethod):
        if not files:  # learning did not fit
            files.append(_taught(at_one_layer(method), scene, Asked(8, 56, 56).prompts(LEARNING)))
        answering = method.read(files[0])
    elif isinstance(method, NewAdapter):
        assert adapter is not None
        answering, vlm = method.inner or Baseline(), _with_adapter(scene.vlm, adapter)
    prompts = scene.prompts(rows)
    scene.begin()
    with shared_features(vlm, FeatureCache(scene.run.feature_cache_mib)), _prefills_apart(vlm):
        return answering.generate(vlm, prompts, max_new_tokens=scene.new_tokens)


def _prefills_apart(vlm: VLM) -> AbstractContextManager[None]:
    """While open, prefills are kept as a study keeps them, and none is given out: shapes do not tell one from another.

    What is not read again is subtracted afterwards (``experiments.planning.peak_memory.Outcome.shared``).
    """

    class Apart(PrefillStore):
        def _key(self, branch: str, inputs: Mapping[str, Any]) -> bytes:
            return b"%d" % len(self._entries)

    return shared_prefills(vlm, Apart())


def second_copy(vlm: VLM) -> VLM:
    """The same model once more on the same device, with memory of its own."""

    copied = VLM(copy.deepcopy(vlm.model), vlm.processor, name=f"{vlm.name} once more")
    copied.batches = vlm.batches
    return copied


def _attention(run: Run) -> list[Step]:
    """What ``attention=true`` adds, as ``experiments.studies.attention`` does it."""
    if run.attention_analysis is None or run.benchmark.kind != "yes_no":
        return [] if run.attention_analysis is None else [_recording("recording: attention of single cases")]
    steps = [
        _recording("recording: attention of failures, and of single cases"),
        Step("knockout: image → verdict cut", _cut),
        Step("scoring: another picture", lambda scene, rows: scene.vlm.score(scene.prompts(rows, seed=1))),
    ]
    return (
        [*steps, Step("attribution (captum), one case", _attribute, rows=1)] if run.attribution == "captum" else steps
    )


def _recording(name: str, rows: int | None = None) -> Step:
    def do(scene: Scene, count: int) -> object:
        with record_attention(scene.vlm, queries=Queries.GENERATED, maps=Queries.VERDICT) as record:
            found = scene.vlm.generate(scene.prompts(count), max_new_tokens=scene.new_tokens)
        return found, record.masses

    return Step(name, do, rows=rows, generates=True)


def _cut(scene: Scene, rows: int) -> object:
    with knockout(scene.vlm, EDGES):
        return scene.vlm.score(scene.prompts(rows))


def _attribute(scene: Scene, rows: int) -> object:
    return integrated_gradients(scene.vlm, scene.prompts(rows)[0], steps=8, batch_size=8)


def _mechanism(task: Mechanism, run: Run) -> Iterator[Step]:
    """The causal tools, each with as few windows, edges and layers as show its peak.

    Windows and layers are the last ones: as many states below them are kept as in the study, and few layers are run.
    """
    edges = tools.EDGES[:1]
    places = tools.PATCHED[tools.PICTURE]

    def last(vlm: VLM) -> list[int]:
        """As many layers as the study patches."""
        end = last_layer(vlm) + 1
        return list(range(end - len(tools.spaced_layers(end - 1, task.layers)), end))

    def residuals(scene: Scene, rows: int) -> object:
        layers = tools.spaced_layers(last_layer(scene.vlm), task.layers)
        return read_residuals(scene.vlm, scene.prompts(rows), places=tools.READ, layers=layers, batch_size=rows)

    def cut(scene: Scene, rows: int) -> object:
        latest = windows(scene.vlm, task.width, task.stride)[-MOST:]
        return tools.cut_margins(scene.vlm, scene.prompts(rows), windows=latest, edges=edges, batch_size=rows)

    def patched(scene: Scene, rows: int) -> object:
        twins = [[twin] for twin in scene.prompts(rows, seed=1)]
        return tools.patch_effects(
            scene.vlm, scene.prompts(rows), twins, positions=places, layers=last(scene.vlm), batch_size=rows
        )

    def prior(scene: Scene, rows: int) -> object:
        return tools.prior_margins_of(scene.vlm, scene.prompts(rows), task.prior, batch_size=rows, seed=run.seed)

    def ablated(scene: Scene, rows: int) -> object:
        unit = torch.nn.functional.one_hot(torch.tensor(0), scene.vlm.model.config.get_text_config().hidden_size)
        return tools.ablated_margins(scene.vlm, scene.prompts(rows), unit.float(), 0.0, layer=1, batch_size=rows)

    def cut_times(vlm: VLM) -> float:
        """All edges in all windows over what ``cut`` does."""
        every = windows(vlm, task.width, task.stride)
        return tools.cut_forwards(vlm, windows=every) / tools.cut_forwards(vlm, windows=every[-MOST:], edges=edges)

    def patched_times(vlm: VLM) -> float:
        """Both pairs at every place and layer over what ``patched`` does."""
        layers = tools.spaced_layers(last_layer(vlm), task.layers)
        whole = sum(tools.patch_forwards(vlm, positions=one, layers=layers) for one in tools.PATCHED.values())
        return whole / tools.patch_forwards(vlm, positions=places, layers=last(vlm))

    members = None if task.failures is None else 4 * task.failures  # with matched successes, and the twins of both
    yield Step("recording: hidden states of all cases", residuals)
    yield Step("knockout: edges cut, all layers and by window", cut, times=cut_times, cases=members)
    yield Step("patching: the twin's states", patched, times=patched_times, cases=task.failures)
    yield Step("prior: the sentence without its picture", prior)
    yield Step("directions: states edited", ablated, times=3)


def _localise(task: Localise) -> Iterator[Step]:
    """Every pair whole in either direction, then the runs with parts replaced: single columns where one is enough."""
    runs = len({name for question in task.questions for name, _ in TERMS[question]})
    most = None if task.pairs is None else 2 * task.pairs

    def pairs(scene: Scene, rows: int) -> object:
        twins = [
            replace(twin, text=own.text)
            for own, twin in zip(scene.prompts(rows), scene.prompts(rows, seed=1), strict=True)
        ]
        last = [parts_of(scene.vlm)[-1:]]
        if task.place != "verdict":
            part_attribution(scene.vlm, scene.prompts(rows), twins, place=task.place, batch_size=rows)
        return part_set_effects(scene.vlm, scene.prompts(rows), twins, last, place=task.place, batch_size=rows)

    def column(scene: Scene, rows: int) -> object:
        vlm, prompts = scene.vlm, scene.prompts(rows)
        check_precise(vlm)
        encoded = vlm.encode(prompts)
        last = encoded["input_ids"].shape[1] - 1
        if task.place != "verdict" or not Prefix.fits(vlm, segment(vlm, prompts, encoded), last):
            return vlm.score(prompts, encoded=encoded)
        prefix = Prefix.of(vlm, encoded, columns=last)
        scene.begin()
        return prefix.score()

    def replaced(vlm: VLM) -> float:
        """Runs with something replaced for each case; half of the layers of a single part's run are kept."""
        parts = len(parts_of(vlm))
        counts = (max(1, parts // 4)).bit_length()
        curves = (len(task.questions) - (JOIN in task.questions)) * counts * (3 + task.random_sets)
        single = task.candidates * len(task.questions) + (parts if task.place == "verdict" else 0)
        return (runs * single / 2 + curves) / 2

    yield Step("parts: pairs, whole, in both directions", pairs, times=runs / 2, cases=most)
    yield Step("parts: one or more replaced", column, times=replaced, cases=most)


def _training(task: VRTuningStudy) -> list[Step]:
    def do(scene: Scene, rows: int) -> object:
        return training_step(scene, task.settings, rows)

    adapters, rows = len(task.adapters), task.settings.batch_size
    return [Step("training: LoRA steps", do, rows, times=adapters, trains=True, alters=True)]


def _with_adapter(vlm: VLM, settings: Settings) -> VLM:
    adapted = VLM(adapted_model(vlm, settings).get_base_model(), vlm.processor, name=vlm.name)
    adapted.batches = vlm.batches
    return adapted


def adapted_model(vlm: VLM, settings: Settings) -> Any:
    """The model with a new adapter, as TRL's trainer makes it. It stays in the model."""
    from peft import get_peft_model

    from mitigation.vrtuning.model import lora_config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(vlm.model, lora_config(vlm.model, vlm.layout, settings))


def training_step(scene: Scene, settings: Settings, rows: int) -> float:
    """Two optimiser steps with one batch each: the second has the optimiser's state from the start.

    The collator, the adapter and the loss are those of ``mitigation.vrtuning.train``; TRL's loop around them is not
    run.
    """
    from trl.trainer.utils import add_fused_lm_head

    from mitigation.vrtuning.collator import Collator

    vlm = scene.vlm
    model = adapted_model(vlm, settings)
    if "." not in vlm.layout.lm_head:
        add_fused_lm_head(model.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))
    switched = {"auto": scene.on_gpu, "on": True, "off": False}
    if switched[settings.checkpointing]:
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": same_functions})
        model.enable_input_require_grads()
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate)
    answer = " ".join(["word"] * TRAINED_TOKENS)
    examples = [
        {
            "prompt": [{"role": "user", "content": prompt.text}],
            "completion": [{"role": "assistant", "content": answer}],
            "images": [prompt.image],
        }
        for prompt in scene.prompts(rows)
    ]
    collate = Collator(vlm, settings.max_pixels)
    scene.begin()
    with products_in_bfloat16() if switched[settings.bf16] else nullcontext():
        for _ in range(2):
            batch = collate(examples)
            found = model(**batch, use_cache=False, fused_lm_head=True)
            loss = -found.log_probs.sum() / found.label_mask.sum().clamp(min=1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm)
            optimiser.step()
            model.zero_grad()
            value = float(loss.detach())
            del found, loss, batch
    return value


def products_in_bfloat16() -> AbstractContextManager[Any]:
    """Products of matrices as torch's autocast makes them, which knows of no pretended device."""
    products = {torch.nn.functional.linear, torch.matmul, torch.bmm, torch.addmm, torch.mm, torch.Tensor.matmul}

    class Products(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in products:
                args = [
                    one.to(torch.bfloat16) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
                    for one in args
                ]
            return func(*args, **(kwargs or {}))

    return Products()
