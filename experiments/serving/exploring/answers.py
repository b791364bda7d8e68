"""What an experiment shows: each action by a public tool of ``interp`` and ``mitigation``.

Runs only in the model's thread. A change is undone when its block ends, so the model is as it was after each action.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import interp
from experiments.benchmarks.iconworld.sentences import question
from experiments.evaluation.attention_log import at_verdicts, packed
from experiments.evaluation.cases import prompt_of
from experiments.serving.exploring.arms import Cases, chosen
from experiments.serving.exploring.experiment import Change, Experiment
from experiments.serving.pictures import Pictures, as_url
from experiments.serving.worker import check_length
from interp.errors import UserError
from interp.prompt import Prompt
from mitigation.attention_edit import steer_attention
from mitigation.contrastive.corruption import pictures_of
from mitigation.method import Baseline, abilities
from mitigation.prior_correction import PriorCorrection, prior_inputs
from mitigation.vcd import VCD, in_two_branches

if TYPE_CHECKING:
    from interp.vlm import VLM

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
    arms: Mapping[str, Any]

    def prompt(self, experiment: Experiment, picture: str | None = None) -> Prompt:
        """Return the prompt of an experiment, or the same prompt with the other ``picture``.

        The question of the case's benchmark stands around the words, if the experiment is framed. The prompt's key
        says which noise is drawn: it is the case's id, or the picture's own name.

        Raises:
            UserError: there is no such picture, or no words.
        """
        if not experiment.text.strip():
            raise UserError("the question is empty; type a question about the picture")
        image = self.pictures.open(experiment.picture if picture is None else picture)
        if not experiment.picture.startswith("case:"):
            text = question(experiment.text) if experiment.framed else experiment.text
            return Prompt(text, image, key=experiment.picture, request=experiment.text if experiment.framed else "")
        sample = self.cases.sample(experiment.picture.removeprefix("case:"))
        prompt = prompt_of(sample, [image] if image else [])
        if not experiment.framed:
            return Prompt(experiment.text, image, key=sample.id)
        return replace(prompt, text=prompt.text.replace(sample.text, experiment.text), request=experiment.text)

    def method(self, experiment: Experiment) -> Any:
        """Return the method of the arm that an experiment looks into."""
        return in_two_branches(chosen(self.arms, experiment.looked_at))


Tell = Callable[[dict[str, Any]], object]
Action = Callable[["VLM", Experiment, Material, Prompt], dict[str, Any]]


def answer(vlm: "VLM", experiment: Experiment, material: Material, tell: Tell) -> dict[str, Any]:
    """Return what the experiment shows, as the page draws it. ``tell`` hears each arm's answer when it is there.

    Raises:
        UserError: it cannot be done with this model, picture or text.
    """
    prompt = material.prompt(experiment)
    if experiment.action != "ask":
        method = material.method(experiment) if experiment.action == "look" else Baseline()
        (prompt,) = at_verdicts(vlm, [prompt], method, max_new_tokens=experiment.tokens)
    (length,) = vlm.batches.lengths.of_prompts([prompt]) if vlm.batches.lengths else (0,)
    check_length(vlm, length, experiment.tokens)
    if experiment.action == "ask":
        return _ask(vlm, experiment, material, prompt, tell)
    return _ACTIONS[experiment.action](vlm, experiment, material, prompt)


# By what the page offers: the tool that a proof may refuse, and whether it needs the picture's tokens in the prompt.
NEEDS = {
    "look": ("record", False),
    "heads": ("direct_attribution", False),
    "lens": ("lens", False),
    "windows": ("knockout", True),
    "patch": ("patch", True),
    "cut": ("knockout", True),
    "attention": ("record", True),
}


def refusals(vlm: "VLM") -> dict[str, str]:
    """Return why this model cannot do it, by what the page offers: by its proof, or by how its family is built."""
    refusals = {}
    for name, (tool, pictured) in NEEDS.items():
        try:
            vlm.require(tool)
            if pictured:
                vlm.module_map.require_image_tokens(vlm.name)
        except UserError as error:
            refusals[name] = str(error)
    return refusals


@contextmanager
def changed(vlm: "VLM", change: Change) -> Iterator[None]:
    """While open, the model is changed inside. What is painted over is the prompt's affair.

    Raises:
        UserError: a layer that is not there.
    """
    with ExitStack() as stack:
        if change.cut is not None:
            stack.enter_context(interp.knockout(vlm, [EDGE], layers=_layers(change.cut)))
        if change.attention:
            layers = None if change.attended is None else _layers(change.attended)
            stack.enter_context(steer_attention(vlm, change.attention, layers=layers))
        yield


def _layers(ends: tuple[int, int]) -> range:
    return range(min(ends), max(ends) + 1)


def _ask(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt, tell: Tell) -> dict[str, Any]:
    edited = interp.grey_out(vlm, prompt, experiment.change.boxes) if experiment.change.grey else prompt
    blocks: list[dict[str, Any]] = []
    for index, arm in enumerate(experiment.arms):
        try:
            with changed(vlm, experiment.change):
                blocks.append(_by_arm(vlm, chosen(material.arms, arm), edited, experiment.tokens))
        except UserError as error:
            blocks.append({"error": str(error)})
        tell({"arm": index, "answer": blocks[-1]})
    return {"answers": blocks, **({"shown": as_url(edited.image)} if experiment.change.grey and edited.image else {})}


def _by_arm(vlm: "VLM", method: Any, prompt: Prompt, tokens: int) -> dict[str, Any]:
    generation = in_two_branches(method).generate(vlm, [prompt], max_new_tokens=tokens)
    margin = float(generation.margins[0])
    second = _second_picture(vlm, method, prompt)
    steps = list((generation.steps or [{}])[0].items())
    return {
        "text": generation.texts[0],
        "margin": None if margin != margin else margin,
        "unscored": abilities(method).unscored,
        "finished": bool(generation.finished[0]),
        "steps": [*map(list, steps), *(["thought", thought] for thought in generation.thoughts or () if thought)],
        "prompt": (generation.prompts or [""])[0],
        **({} if second is None else {"second": as_url(second, 336)}),
    }


def _second_picture(vlm: "VLM", method: Any, prompt: Prompt) -> Any:
    """Return the picture that a method contrasts with, as the model reads it; None if there is none to show."""
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


def _look(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    """Return the attention of the question's words and of the answer's first tokens, once for all clicks."""
    vlm.require("record")
    method = material.method(experiment)
    with interp.record_attention(vlm, queries=[], maps=[0]) as first:
        method.generate(vlm, [prompt], max_new_tokens=1)
    if len(first.rows) != 1:
        raise UserError(
            f"{experiment.looked_at.name} asks {len(first.rows)} prompts for one answer, so attention belongs to "
            "several answers; choose the baseline"
        )
    last = len(first.rows[0].labels) - 1
    words = [(word.text, word.columns[-1] - last) for word in first.rows[0].words][-WORDS_LOOKED:]
    count = min(experiment.tokens, ANSWER_LOOKED)
    steps = sorted({*(step for _, step in words), *range(count)})
    with interp.record_attention(vlm, queries=[0], maps=steps) as log:
        generation = method.generate(vlm, [prompt], max_new_tokens=count)
    written = max(1, len(generation.token_ids[0]))
    maps = {each.step: each for each in sorted(log.maps, key=lambda each: each.step) if each.row == 0}
    maps = {step: each for step, each in maps.items() if step < written}
    places = {step: index for index, step in enumerate(maps)}
    share = interp.image_share(log.masses)
    return {
        "block": packed(vlm, maps, log.rows[0], generation.token_ids[0], cells=CELLS),
        "words": [[text, places[step]] for text, step in words],
        "answer": [places[step] for step in maps if step >= 0],
        "share": [float(value) for value in share["share"]],
    }


def _heads(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    direct = interp.direct_logit_attribution(vlm, prompt)
    top = direct.top(5)
    with interp.record_attention(vlm, queries=[], maps=[0]) as record:
        vlm.score(prompt)
    (attention,), (row,) = record.maps, record.rows
    if not row.grids:
        raise UserError("the image tokens of this prompt have no place in its picture; look at the words instead")
    heads = [interp.weights_of(attention, layers=[layer], heads=[head]) for layer, head in top]
    maps = [interp.patch_map(weights, row.grids[0]).tolist() for weights in heads]
    effects = [float(direct.heads[direct.layers.index(layer), head, 0]) for layer, head in top]
    return {"heads": [list(head) for head in top], "effects": effects, "maps": maps}


def _lens(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    lens = interp.logit_lens(vlm, prompt, top=5)
    words = [[lens.word(0, row, 0, rank) for rank in range(lens.tokens.shape[3])] for row in range(len(lens.layers))]
    probabilities = lens.probabilities[0, :, 0].tolist()
    margins = lens.margins[0, :, 0].tolist()
    return {"layers": list(lens.layers), "margins": margins, "words": words, "probabilities": probabilities}


def _windows(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    windows = interp.knockout_effect(vlm, prompt, [EDGE], width=1)
    layers = [[cut.layers[0], cut.layers[-1]] for cut in windows.cuts if cut.layers]
    return {"windows": layers, "moved": windows.moved[:, 0].tolist(), "whole": float(windows.unedited[0])}


def _patch(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    if not experiment.other:
        raise UserError("patching needs a second picture, whose states replace this one's; choose the other picture")
    other = replace(
        material.prompt(experiment, experiment.other), answer_prefix=prompt.answer_prefix
    )  # the same thought after it
    patched = interp.patch(vlm, prompt, other, places=PLACES)
    margins = {"clean": float(patched.clean[0]), "other": float(patched.other[0])}
    return {"places": PLACES, "layers": list(patched.layers), "moved": patched.moved[:, :, 0].tolist(), **margins}


def _occlude(vlm: "VLM", experiment: Experiment, material: Material, prompt: Prompt) -> dict[str, Any]:
    words = [[word, value] for word, value in interp.occlude_words(vlm, prompt).itertuples(index=False)]
    return {"map": interp.occlude_image(vlm, prompt).tolist(), "words": words}


_ACTIONS: Mapping[str, Action] = {
    "look": _look,
    "heads": _heads,
    "lens": _lens,
    "windows": _windows,
    "patch": _patch,
    "occlude": _occlude,
}
