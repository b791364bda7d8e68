"""What an experiment finds: each action by the public tool of ``interp`` and ``mitigation`` that ``code`` writes down.

Runs in the model's thread alone. A change is undone when its block ends, so the model is as it was after each action.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from experiments.benchmarks.iconworld.sentences import question
from experiments.evaluation.attention_log import at_verdicts, packed
from experiments.evaluation.case_batches import prompt_of
from experiments.serving.exploring.arms import Offered, chosen
from experiments.serving.exploring.cases import Cases
from experiments.serving.exploring.experiment import Change, Experiment
from experiments.serving.exploring.pictures import Pictures, as_url
from experiments.serving.request_queue import check_length
from interp.attention.record import record_attention
from interp.attention.tables import image_share
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, residuals
from interp.hooks.sublayers import edit_activations, layers_of
from interp.prompt import Prompt
from interp.tools.attribution import grey_out, integrated_gradients, occlude_image, occlude_words, pixel_map
from interp.tools.head_patterns import head_patterns
from interp.tools.knockout import knockout, knockout_by_window
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from mitigation.attention_edit import steer_attention
from mitigation.contrastive.pixels import pictures_of
from mitigation.method import Baseline, abilities
from mitigation.prior_correction import PriorCorrection, prior_inputs
from mitigation.vcd import VCD, in_two_branches
from mitigation.wrappers import WrappedVLM

if TYPE_CHECKING:
    from interp.vlm import VLM

Say = Callable[[dict[str, Any]], object]
EDGE = ("image", "verdict")
WORDS_LOOKED = 48  # words of a prompt whose attention is read, the last ones
ANSWER_LOOKED = 8  # tokens of an answer
CELLS = 24  # of a side of an attention map, at most
PLACES = ("image", "user", "verdict")


@dataclass(frozen=True)
class Material:
    """What experiments name: pictures, cases, arms."""

    pictures: Pictures
    cases: Cases
    arms: Mapping[str, Offered]


def prompt_for(material: Material, experiment: Experiment, picture: str | None = None) -> Prompt:
    """The prompt of an experiment, or the same with the other ``picture``.

    The question of the case's benchmark stands around the words, if the experiment is framed; a key says which noise is
    drawn: the case's id, or the picture's own name.

    Raises:
        UserError: there is no such picture, or no words.
    """
    if not experiment.text.strip():
        raise UserError("there are no words yet; type what you would ask about the picture")
    named = experiment.picture if picture is None else picture
    image = material.pictures.open(named)
    if not experiment.picture.startswith("case:"):
        text = question(experiment.text) if experiment.framed else experiment.text
        return Prompt(text, image, key=experiment.picture, request=experiment.text if experiment.framed else "")
    sample = material.cases.sample(experiment.picture.removeprefix("case:"))
    prompt = prompt_of(sample, image)
    if not experiment.framed:
        return Prompt(experiment.text, image, key=sample.id)
    return replace(prompt, text=prompt.text.replace(sample.text, experiment.text), request=experiment.text)


def answer(vlm: "VLM", experiment: Experiment, material: Material, say: Say) -> dict[str, Any]:
    """What the experiment finds, as the page draws it; ``say`` is told what is known on the way.

    Raises:
        UserError: it cannot be done with this model, picture or text.
    """
    prompt = prompt_for(material, experiment)
    if experiment.action != "ask":
        method = chosen(material.arms, experiment.looked_at) if experiment.action == "look" else Baseline()
        (prompt,) = at_verdicts(vlm, [prompt], method, max_new_tokens=experiment.tokens)
    (length,) = vlm.batches.lengths.of_prompts([prompt]) if vlm.batches.lengths else (0,)
    check_length(vlm, length, experiment.tokens)
    return _ACTIONS[experiment.action](vlm, experiment, material, prompt, say)


# By what the page offers: the tool that a proof may refuse, and whether it needs the picture's tokens in the prompt.
NEEDS = {
    "look": ("record", False),
    "heads": ("direct_attribution", False),
    "lens": ("lens", False),
    "attribution": ("attribution", True),
    "windows": ("knockout", True),
    "patch": ("patch", True),
    "cut": ("knockout", True),
    "attention": ("record", True),
    "steer": ("residuals", False),
    "off": ("heads", False),
}


def refusals(vlm: "VLM") -> dict[str, str]:
    """By what the page offers, why this model cannot do it: by its proof, or by how its family is built."""
    refusals = {}
    for name, (tool, pictured) in NEEDS.items():
        try:
            vlm.require(tool)
            if pictured:
                vlm.layout.require_image_tokens(vlm.name)
            if name == "off":
                layers_of(vlm, "head")
        except UserError as error:
            refusals[name] = str(error)
    return refusals


def run_of_layers(ends: tuple[int, int]) -> range:
    """The decoder layers from the first to the last of ``ends``."""
    return range(min(ends), max(ends) + 1)


@contextmanager
def changed(vlm: "VLM", change: Change, prompt: Prompt, other: Prompt | None) -> Iterator[None]:
    """While open, the model is changed inside; what is painted over is the prompt's affair.

    Raises:
        UserError: a layer or head that is not there, or no other picture to steer to.
    """
    with ExitStack() as stack:
        if change.steer:
            stack.enter_context(_steered(vlm, change, prompt, other))
        if change.cut is not None:
            stack.enter_context(knockout(vlm, [EDGE], layers=run_of_layers(change.cut)))
        if change.attention:
            layers = None if change.attended is None else run_of_layers(change.attended)
            stack.enter_context(steer_attention(vlm, change.attention, layers=layers))
        if change.off:
            off = {layer: [head for at, head in change.off if at == layer] for layer, _ in change.off}
            stack.enter_context(_silenced(vlm, off))
        yield


@contextmanager
def _silenced(vlm: "VLM", off: Mapping[int, list[int]]) -> Iterator[None]:
    layers_of(vlm, "head", list(off))
    if missing := [(layer, head) for layer, heads in off.items() for head in heads if head >= vlm.layout.heads(layer)]:
        raise UserError(f"no head {missing[0][1]} in decoder layer {missing[0][0]}; choose one that is there")

    def silence(here: LayerStates) -> Tensor:
        states = here.hidden.clone()
        states[:, :, off[here.layer]] = 0
        return states

    with edit_activations(vlm, silence, what="head", layers=list(off)):
        yield


@contextmanager
def _steered(vlm: "VLM", change: Change, prompt: Prompt, other: Prompt | None) -> Iterator[None]:
    if other is None:
        raise UserError("to steer towards another picture, choose one: the other picture")
    here, there = (
        residuals(vlm, [one], layers=[change.layer]).at("verdict", change.layer)[0] for one in (prompt, other)
    )
    added = change.steer * (there - here)

    def steer(here: LayerStates) -> Tensor:
        states = here.hidden.clone()
        states[here.at("verdict", "generated")] += added.to(states)
        return states

    with edit_residual(vlm, steer, layers=[change.layer]):
        yield


class _Streaming(WrappedVLM):
    """A VLM that tells of its first row's answer as it grows."""

    def __init__(self, vlm: "VLM", tell: Callable[[str], object]) -> None:
        super().__init__(vlm)
        self._tell = tell

    def generate(self, prompts: Any, *, encoded: Any = None, **options: Any) -> Any:
        """``VLM.generate``, with a stopping criterion that ends nothing."""
        before: list[int] = []

        def grown(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            before[:] = before or [input_ids.shape[1] - 1]
            self._tell(str(self.tokenizer.decode(input_ids[0, before[0] :], skip_special_tokens=True)).strip())
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

        criteria = StoppingCriteriaList([*options.pop("stopping_criteria", ()), grown])
        return super().generate(prompts, encoded=encoded, stopping_criteria=criteria, **options)


def _ask(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    other = prompt_for(material, experiment, experiment.other) if experiment.change.steer and experiment.other else None
    edited = grey_out(vlm, prompt, experiment.change.boxes) if experiment.change.grey else prompt
    blocks: list[dict[str, Any]] = []
    for place, arm in enumerate(experiment.arms):

        def tell(text: str, place: int = place) -> None:
            say({"arm": place, "text": text})

        try:
            blocks.append(_by_arm(vlm, experiment, chosen(material.arms, arm), edited, other, tell))
        except UserError as error:
            blocks.append({"error": str(error)})
        say({"arm": place, "answer": blocks[-1]})
    return {"answers": blocks, **({"shown": as_url(edited.image)} if experiment.change.grey and edited.image else {})}


def _by_arm(
    vlm: "VLM", experiment: Experiment, method: Any, prompt: Prompt, other: Prompt | None, tell: Callable[[str], object]
) -> dict[str, Any]:
    with changed(vlm, experiment.change, prompt, other):
        streaming = cast("VLM", _Streaming(vlm, tell))
        generation = in_two_branches(method).generate(streaming, [prompt], max_new_tokens=experiment.tokens)
    margin = float(generation.margins[0])
    second = _second_picture(vlm, method, prompt)
    return {
        "text": generation.texts[0],
        "margin": None if margin != margin else margin,
        "unscored": abilities(method).unscored,
        "finished": bool(generation.finished[0]),
        "tokens": [vlm.tokenizer.decode([token]) for token in generation.token_ids[0]],
        "steps": [*map(list, _steps(generation).items())],
        "prompt": (generation.prompts or [""])[0],
        **({"second": as_url(second, 336)} if second is not None else {}),
    }


def _steps(generation: Any) -> dict[str, str]:
    """What was said before the answer, by name: a method's steps, and a thought."""
    steps = dict(generation.steps[0]) if generation.steps else {}
    return steps | ({"thought": generation.thoughts[0]} if generation.thoughts and generation.thoughts[0] else {})


def _second_picture(vlm: "VLM", method: Any, prompt: Prompt) -> Any:
    """The picture that a method contrasts with, as the model is given it; None where there is none to be shown."""
    from PIL import Image

    method = getattr(method, "wraps", None) or method
    try:
        if isinstance(method, VCD):
            inputs = method.noised(vlm, [prompt], vlm.encode([prompt]))
        elif isinstance(method, PriorCorrection) and method.prior != "none":
            inputs = prior_inputs(vlm, [prompt], method.prior, pictures=1, seed=method.seed)[0]
        else:
            return None
        view = pictures_of(inputs, 1, model=vlm.model).views[0][-1].float().cpu()
    except UserError:
        return None
    processor = vlm.processor.image_processor
    mean, deviation = (
        torch.tensor(getattr(processor, name, None) or (0.5, 0.5, 0.5))[:, None, None]
        for name in ("image_mean", "image_std")
    )
    pixels = (255 * (view * deviation + mean)).clamp(0, 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def _look(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    """Attention of every word of the question, and of the first tokens of the answer: once, for all clicks."""
    vlm.require("record")
    method = in_two_branches(chosen(material.arms, experiment.looked_at))
    with record_attention(vlm, queries=[], maps=[0]) as first:
        method.generate(vlm, [prompt], max_new_tokens=1)
    if len(first.rows) != 1:
        raise UserError(
            f"{experiment.looked_at.name} asks {len(first.rows)} prompts for one answer; what it looked at is not one "
            "answer's; look at the baseline"
        )
    last = len(first.rows[0].labels) - 1
    words = [(word.text, word.columns[-1] - last) for word in first.rows[0].words][-WORDS_LOOKED:]
    count = min(experiment.tokens, ANSWER_LOOKED)
    steps = sorted({*(step for _, step in words), *range(count)})
    with record_attention(vlm, queries=[0], maps=steps) as log:
        generation = method.generate(vlm, [prompt], max_new_tokens=count)
    maps = {found.step: found for found in sorted(log.maps, key=lambda found: found.step) if found.row == 0}
    maps = {step: found for step, found in maps.items() if step < max(1, len(generation.token_ids[0]))}
    places = {step: place for place, step in enumerate(maps)}
    share = image_share(log.masses)
    return {
        "block": packed(vlm, maps, log.rows[0], generation.token_ids[0], cells=CELLS),
        "words": [[text, places[step]] for text, step in words],
        "answer": [places[step] for step in maps if step >= 0],
        "share": [None if value != value else float(value) for value in share["share"]],
    }


def _heads(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    direct = direct_logit_attribution(vlm, prompt)
    top = direct.top(5)
    patterns = head_patterns(vlm, prompt, top)
    maps = [found.tolist() for found in patterns.maps.values()]
    effects = [float(direct.heads[direct.layers.index(layer), head, 0]) for layer, head in top]
    return {"heads": [list(head) for head in top], "effects": effects, "maps": maps}


def _lens(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    lens = logit_lens(vlm, prompt, top=5)
    layers = range(len(lens.layers))
    words = [[lens.word(0, layer, 0, rank) for rank in range(lens.tokens.shape[3])] for layer in layers]
    return {"layers": list(lens.layers), "margins": lens.margins[0, :, 0].tolist(), "words": words,
            "probabilities": lens.probabilities[0, :, 0].tolist()}  # fmt: skip


def _attribution(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    attribution = integrated_gradients(vlm, prompt)
    return {
        "map": pixel_map(vlm, attribution).tolist(),
        "words": [[word, value] for word, value in attribution.words.itertuples(index=False)],
        "image": attribution.image,
        "text": attribution.text,
        "error": attribution.error,
    }


def _windows(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    windows = knockout_by_window(vlm, prompt, [EDGE], width=experiment.width)
    return {
        "windows": [[layers[0], layers[-1]] for layers in windows.layers],
        "moved": windows.moved[:, 0].tolist(),
        "whole": float(windows.whole[0]),
    }


def _patch(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    if not experiment.other:
        raise UserError("patching takes a second picture, whose states replace this one's; choose the other picture")
    other = replace(
        prompt_for(material, experiment, experiment.other), begun=prompt.begun
    )  # the same thought behind it
    patched = patch(vlm, prompt, other, places=PLACES)
    return {
        "places": list(PLACES),
        "layers": list(patched.layers),
        "moved": patched.moved[:, :, 0].tolist(),
        "clean": float(patched.clean[0]),
        "other": float(patched.other[0]),
    }


def _occlude(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, say: Say) -> dict[str, Any]:
    words = occlude_words(vlm, prompt)
    return {
        "map": occlude_image(vlm, prompt).tolist(),
        "words": [[word, value] for word, value in words.itertuples(index=False)],
    }


_ACTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "ask": _ask,
    "look": _look,
    "heads": _heads,
    "lens": _lens,
    "attribution": _attribution,
    "windows": _windows,
    "patch": _patch,
    "occlude": _occlude,
}
