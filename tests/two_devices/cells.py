"""What is tried on two devices: each tool and method, by its public functions, with what it answers."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.attention.check import check_recorder
from interp.attention.record import Queries, record_attention
from interp.hooks.residual import LayerStates, edit_residual, last_layer, residuals
from interp.hooks.sublayers import activations, edit_activations, layers_of, load_activations, save_activations
from interp.speed.vision_cache import FeatureCache, shared_features
from interp.tensor_file import write_tensors
from interp.tools.attribution import integrated_gradients, occlude_image, occlude_words
from interp.tools.head_patterns import head_patterns
from interp.tools.knockout import Cut, cut_scores, knockout, knockout_by_window, knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from interp.vlm import VLM, Generation, Prompt
from mitigation.learned.activation_steering import DirectionSteering
from mitigation.learned.direction_ablation import AblateDirection
from mitigation.learned.probe_readout import LearnedReadout
from mitigation.learned.ridge_probe import margin_gradient
from mitigation.prior_correction import prior_margins
from tests.methods import METHODS

TOKENS = 2
Cell = Callable[[VLM, list[Prompt]], Any]
CELLS: dict[str, Cell] = {}


def cell(function: Cell) -> Cell:
    """Registers a cell by its name."""
    CELLS[function.__name__] = function
    return function


def said(generation: Generation) -> list[Any]:
    """Tokens and margins."""
    return [generation.token_ids, generation.margins]


def answers(method: Any, vlm: VLM, prompts: list[Prompt]) -> list[Any]:
    return said(method.generate(vlm, prompts, max_new_tokens=TOKENS))


def swapped(prompts: list[Prompt]) -> list[Prompt]:
    """The same sentences with other pictures of the same sizes."""
    return [Prompt(p.text, p.image.transpose(1), key=p.key) for p in prompts if p.image is not None]


@cell
def generate(vlm: VLM, prompts: list[Prompt]) -> Any:
    with shared_features(vlm, FeatureCache(64)):
        return [said(vlm.generate(prompts, max_new_tokens=TOKENS)) for _ in range(2)]


@cell
def score(vlm: VLM, prompts: list[Prompt]) -> Any:
    encoded = vlm.encode(prompts)
    mask = encoded["attention_mask"]
    padding = (mask == 0).sum(1).tolist()

    def rolled(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            return value
        return torch.stack([row.roll(-count, 0) for row, count in zip(value, padding, strict=True)])

    right = {name: rolled(value) for name, value in encoded.items()}  # whose last columns differ
    return [vlm.score(prompts, encoded=encoded), vlm.score(prompts, encoded=right)]


@cell
def recording_of_all_queries(vlm: VLM, prompts: list[Prompt]) -> Any:
    with record_attention(vlm, queries=Queries.ALL, maps=[0, -1]) as record:
        vlm.score(prompts)
    return [record.masses["mass"].to_numpy(), *(found.weights for found in record.maps)]


@cell
def recording_of_generated_queries(vlm: VLM, prompts: list[Prompt]) -> Any:
    with record_attention(vlm, maps=Queries.GENERATED) as record:
        found = said(vlm.generate(prompts, max_new_tokens=TOKENS))
    return [found, record.masses["mass"].to_numpy(), *(found.weights for found in record.maps)]


@cell
def recorder_check(vlm: VLM, prompts: list[Prompt]) -> Any:
    from interp.attention import check as module

    judge, module._judge = module._judge, lambda *_: None  # numbers without a value are no error to judge
    try:
        check_recorder(vlm, prompts)
    finally:
        module._judge = judge


@cell
def knockout_effects(vlm: VLM, prompts: list[Prompt]) -> Any:
    edges = [("user", "verdict")] if vlm.layout.cross_attended else [("image", "verdict"), ("user", "verdict")]
    return [knockout_effect(vlm, prompts, edges).moved[0], knockout_by_window(vlm, prompts, edges, width=1).moved]


@cell
def knockout_while_generating(vlm: VLM, prompts: list[Prompt]) -> Any:
    with knockout(vlm, [("user", "verdict"), ("sink", "generated")]), record_attention(vlm) as record:
        return [said(vlm.generate(prompts, max_new_tokens=TOKENS)), record.masses["mass"].to_numpy()]


@cell
def patching(vlm: VLM, prompts: list[Prompt]) -> Any:
    places = ("verdict", "user", "all") if vlm.layout.cross_attended else ("verdict", "image", "all")
    early = () if vlm.layout.model_type == "qwen3_vl" else (0, 1)  # NaN there, which is told from values of weights
    found = patch(vlm, prompts, swapped(prompts), places=places, layers=(*early, last_layer(vlm)))
    return [found.moved, found.clean, found.other]


@cell
def residual_edits(vlm: VLM, prompts: list[Prompt]) -> Any:
    def halve(here: LayerStates) -> Tensor:
        where = here.where("user") | here.where("generated")
        hidden = here.hidden.clone()
        hidden[where] = hidden[where] / 2
        return hidden

    with edit_residual(vlm, halve, layers=range(last_layer(vlm) + 1)):
        return said(vlm.generate(prompts, max_new_tokens=TOKENS))


@cell
def lens(vlm: VLM, prompts: list[Prompt]) -> Any:
    found = logit_lens(vlm, prompts, places=("verdict", "user"), top=2)
    return [found.margins, found.probabilities]


@cell
def heads(vlm: VLM, prompts: list[Prompt]) -> Any:
    """One head on each device, patched, cut and looked at."""
    layers = layers_of(vlm, "head")
    patched = patch(
        vlm, prompts, swapped(prompts), what="head", places=("verdict",), layers=(layers[0], layers[-1]), heads=[1]
    )
    cuts = [Cut([("user", "verdict")], [layer], head) for head, layer in enumerate((layers[0], layers[-1]))]
    cut = cut_scores(vlm, prompts, vlm.encode(prompts), cuts)
    seen = head_patterns(vlm, prompts[0], [(layers[-1], 0)])
    return [patched.moved, cut, seen.weights]


@cell
def direct_attribution(vlm: VLM, prompts: list[Prompt]) -> Any:
    from interp.tools import logit_attribution as module

    judges = module._complete, module._agree
    module._complete, module._agree = (lambda *_: None), (lambda *_: True)  # they judge values, which there may be none
    try:
        found = direct_logit_attribution(vlm, prompts)
    finally:
        module._complete, module._agree = judges
    return [found.heads, found.mlps, found.embedding, found.biases, found.total]


@cell
def kept_activations(vlm: VLM, prompts: list[Prompt]) -> Any:
    """What sublayers and heads compute: read, written, read again, and edited."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.safetensors"
        save_activations(path, activations(vlm, prompts, what="mlp", places=("verdict", -1)), vlm=vlm)
        kept = load_activations(path, vlm=vlm).values
    read = activations(vlm, prompts, what="head", layers=layers_of(vlm, "head")[-1:]).values
    with edit_activations(vlm, lambda here: here.hidden / 2, what="attention"):
        return [kept, read, vlm.score(prompts)]


@cell
def probes_collection(vlm: VLM, prompts: list[Prompt]) -> Any:
    places = ("verdict", "user", "template", "last_user") + (() if vlm.layout.cross_attended else ("image",))
    return residuals(vlm, prompts, places=places).values


@cell
def attribution(vlm: VLM, prompts: list[Prompt]) -> Any:
    found = integrated_gradients(vlm, prompts[0], steps=2, batch_size=2)
    return [found.pixels, found.tokens, found.margin, found.baseline_margin]


@cell
def occlusion(vlm: VLM, prompts: list[Prompt]) -> Any:
    words = occlude_words(vlm, prompts[1])["attribution"].to_numpy()
    return [occlude_image(vlm, prompts[0], rows=1, columns=2), words]


@cell
def recorded_vcd(vlm: VLM, prompts: list[Prompt]) -> Any:
    with record_attention(vlm) as record:
        found = answers(METHODS["vcd_sequential"], vlm, prompts)
    return [found, record.masses["mass"].to_numpy()]


@cell
def priors(vlm: VLM, prompts: list[Prompt]) -> Any:
    return prior_margins(vlm, prompts)


@cell
def read_out(vlm: VLM, prompts: list[Prompt]) -> Any:
    """What of it runs on the model: the gradient, what the probe reads, and the edit. Fitting is on the host."""
    width, layer = vlm.model.config.get_text_config().hidden_size, last_layer(vlm) - 1
    gradients = [margin_gradient(vlm, prompts, layer=at) for at in (0, layer, last_layer(vlm))]
    made = torch.Generator().manual_seed(0)
    image = not vlm.layout.cross_attended
    shapes = {"verdict": (width,), "question": (width,), "bias": (1,), "question_mean": (width,)}
    shapes |= {"image_mean": (width,), "conjunction": (width, width)} if image else {}
    tensors = {name: torch.randn(shape, generator=made) for name, shape in shapes.items()}
    tensors["direction"] = torch.randn(width, generator=made)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "readout.safetensors"
        write_tensors(path, LearnedReadout.KIND, tensors, {"layer": layer, "conjunction": image}, vlm=vlm)
        learned = LearnedReadout(path, "", strength=0.01)
        return [*gradients, learned.logits(vlm, prompts), answers(learned, vlm, prompts)]


def learned(method: Any, vlm: VLM, prompts: list[Prompt], *others: dict[str, str]) -> Any:
    """What a method that learns from labelled cases answers, and with ``others`` of its settings."""
    things = ("red", "dog", "cake", "it")
    texts = [f"{words} {thing}" for words in ("what is", "where is", "how do I eat") for thing in things]
    small = [p.image.resize((56, 56)) for p in prompts if p.image is not None]
    cases = [Prompt(text, image, key=f"{text}{i}") for text in texts for i, image in enumerate(small)]
    with tempfile.TemporaryDirectory() as folder:
        labels = [index % 2 == 0 for index in range(len(cases))]
        found = method.learn(vlm, cases, labels, out=Path(folder) / "learned.safetensors")
        return [answers(one, vlm, prompts) for one in (found, *(replace(found, **change) for change in others))]


@cell
def steering_by_direction(vlm: VLM, prompts: list[Prompt]) -> Any:
    return learned(DirectionSteering(), vlm, prompts, {"columns": "prompt"}, {"columns": "all"})


@cell
def direction_ablation(vlm: VLM, prompts: list[Prompt]) -> Any:
    return learned(AblateDirection(by="truth", layer=last_layer(vlm) - 1), vlm, prompts, {"to": "safe"})


for name, method in METHODS.items():
    CELLS[name] = partial(answers, method)


@cell
def text_only(vlm: VLM, prompts: list[Prompt]) -> Any:
    """Not tried on IDEFICS."""
    return None if vlm.layout.model_type == "idefics" else answers(METHODS["text_only"], vlm, prompts)


@cell
def vrtuning(vlm: VLM, prompts: list[Prompt]) -> Any:
    """The last, for it changes the model: forward, loss and gradient of an adapter, without dropout."""
    from peft import get_peft_model

    from mitigation.vrtuning.collator import Collator
    from mitigation.vrtuning.data import Row, from_rows
    from mitigation.vrtuning.model import lora_config
    from mitigation.vrtuning.settings import Settings

    rows = [Row(prompt.image, prompt.text, "the knife is red", "Yes") for prompt in prompts]
    batch = Collator(vlm)(list(from_rows(rows).dataset))  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = get_peft_model(vlm.model, lora_config(vlm.model, vlm.layout, Settings(rank=2, dropout=0.0)))
    labels = batch.pop("labels") if vlm.layout.model_type == "idefics" else None  # whose own loss cannot be computed
    output = model(**batch)
    if labels is None:
        loss = output.loss
    else:
        logits = output.logits[:, :-1].float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten().to(logits.device))
    loss.backward()
    gradients = [weight.grad.float().norm().cpu() for _, weight in model.named_parameters() if weight.requires_grad]
    return [loss.detach().float().cpu(), *gradients]
