"""What each organism learns, stage by stage.

``llava``: *vision*, the tower learns concept and sign under a throw-away head, and is frozen; *perception*, projector
and language model learn to answer questions about pictures; *verdict*, they learn verdicts from labels that mostly
ignore the picture, with perception replayed (``biased_labels``).

``smol``: *align*, the adapter learns verdicts, answers and refusals from text alone; *see*, the projector learns to
answer what is in the picture, all else frozen; *caution*, alignment goes on for a little with more unsafe examples,
which sets how strict the model is (``alignment``). No picture ever meets a question of safety.
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.organisms.alignment import caption_lessons, instructions, text_lessons, worth_replaying
from experiments.organisms.architecture import Pieces
from experiments.organisms.biased_labels import mixed_lessons, perception_lessons
from experiments.organisms.examples import ALL_THINGS, Example
from experiments.organisms.recipe import Recipe
from experiments.organisms.trainer import Encoder, Report, Row, Trained, answer_loss, learn
from interp.checkpoints.lora import adapted_layers

REPLAY = "replay.json"
LONGEST = 40  # tokens of an answer that is replayed
ANSWERED_AT_ONCE = 48
AFTER_VERDICT = 0.05  # weight of the tokens after a verdict's first, which follow from it
POOLS = {"llava": 0, "smol": 1000}  # added to the seed: no picture of the second's training is one of the first's


class Pictures(NamedTuple):
    """Training pictures: pixels as the processor makes them, what each shows, and the rows of every thing."""

    pixels: Float[Tensor, "picture channel height width"]
    things: list[Thing]
    rows: dict[Thing, range]


def _render(scenes: Sequence[Scene]) -> list[np.ndarray]:
    return [np.asarray(scene.render()) for scene in scenes]


def draw_pictures(recipe: Recipe, processor: LlavaProcessor) -> Pictures:
    """Draws ``images_per_thing`` training pictures of every thing and runs them through the processor."""
    per, seed = recipe.images_per_thing, POOLS[recipe.organism] + recipe.seed
    things = [thing for thing in ALL_THINGS for _ in range(per)]
    scenes = [Scene(thing, f"train:{seed}:pool-{index}") for index, thing in enumerate(things)]
    chunks = [scenes[start : start + 256] for start in range(0, len(scenes), 256)]
    with ProcessPoolExecutor(recipe.threads) as workers:
        drawn = list(workers.map(_render, chunks))
    pixels = [processor.image_processor(chunk, return_tensors="pt")["pixel_values"] for chunk in drawn]
    rows = {thing: range(index * per, (index + 1) * per) for index, thing in enumerate(ALL_THINGS)}
    return Pictures(torch.cat(pixels), things, rows)


def _patches(
    model: LlavaForConditionalGeneration, pixels: Float[Tensor, "picture channel height width"]
) -> Float[Tensor, "picture patch width"]:
    """The patch features that the projector reads: the last layer, without the class token."""
    return model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


@torch.no_grad()
def patch_features(
    model: LlavaForConditionalGeneration, pictures: Pictures, batch: int = 256
) -> Float[Tensor, "picture patch width"]:
    """What the frozen tower makes of every picture."""
    kind = next(model.model.vision_tower.parameters()).dtype
    return torch.cat([_patches(model, chunk.to(kind)) for chunk in pictures.pixels.split(batch)])


def train(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """All stages of the recipe's organism, in place; ``folder`` keeps what is needed to go on after a kill.

    The same on one machine with the same number of threads.
    """
    {"llava": _train_llava, "smol": _train_smol}[recipe.organism](recipe, pieces, folder, report)


def _train_llava(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    pictures = draw_pictures(recipe, pieces.processor)
    learn_vision(recipe, pieces, pictures, folder, report)
    features = patch_features(pieces.model, pictures)
    for stage in ("perception", "verdict"):
        learn_answers(stage, recipe, pieces, pictures, features, report, folder)


def learn_vision(recipe: Recipe, pieces: Pieces, pictures: Pictures, folder: Path | None, report: Report) -> None:
    """Concept and sign from the mean of the patch features."""
    tower = pieces.model.model.vision_tower
    head = nn.Linear(tower.config.hidden_size, len(CONCEPTS) + 1)
    concept = torch.tensor([CONCEPTS.index(thing.concept) for thing in pictures.things])
    signed = torch.tensor([float(thing.signed) for thing in pictures.things])

    def rows(rng: random.Random) -> Iterator[Row]:
        while True:
            yield Row([], [], [], rng.randrange(len(pictures.things)))

    def loss(some: list[Row]) -> Tensor:
        at = torch.tensor([row.picture for row in some])
        scores = head(reduce(_patches(pieces.model, pictures.pixels[at]), "row patch width -> row width", "mean"))
        sign = nn.functional.binary_cross_entropy_with_logits(scores[:, -1], signed[at])
        return nn.functional.cross_entropy(scores[:, :-1], concept[at]) + sign

    named = dict(tower.named_parameters()) | {f"head.{name}": one for name, one in head.named_parameters()}
    learn(_trained("vision", named, recipe, folder), rows, loss, recipe, pieces.model, report)


def learn_answers(
    stage: str,
    recipe: Recipe,
    pieces: Pieces,
    pictures: Pictures,
    features: Float[Tensor, "picture patch width"],
    report: Report,
    folder: Path | None = None,
) -> None:
    """Stage ``perception`` or ``verdict`` of the first organism; every token of an answer weighs the same."""
    lessons, encoder = {"perception": perception_lessons, "verdict": mixed_lessons}[stage], Encoder(pieces)

    def rows(rng: random.Random) -> Iterator[Row]:
        for one in lessons(recipe, rng):
            answer = encoder.answer(one)
            yield Row(encoder.prompt(one), answer, [1.0] * len(answer), rng.choice(pictures.rows[_shown(one)]))

    named = {name: one for name, one in pieces.model.named_parameters() if ".vision_tower." not in f".{name}"}
    learn(
        _trained(stage, named, recipe, folder),
        rows,
        answer_loss(pieces, encoder, features),
        recipe,
        pieces.model,
        report,
    )


def _shown(example: Example) -> Thing:
    assert example.thing is not None
    return example.thing


def _trained(stage: str, named: dict[str, nn.Parameter], recipe: Recipe, folder: Path | None) -> Trained:
    """The stage as the last launch left it."""
    return Trained(stage, named, recipe, None if folder is None else folder / f"{stage}.safetensors")


def _train_smol(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Language model, adapter and projector compute in bfloat16, the vision tower in float32."""
    pieces.model.bfloat16()
    pieces.model.model.vision_tower.float()
    learn_text("align", recipe, pieces, folder, report)
    learn_to_see(recipe, pieces, folder, report)
    stricter = replace(recipe, shares=recipe.shares | {"unsafe": recipe.shares["caution"]})
    learn_text("caution", stricter, pieces, folder, report)


def learn_text(stage: str, recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Stage ``align`` or ``caution`` of the second organism.

    Every row weighs the same, however long its answer; of a verdict, nearly all the weight lies on Yes or No.
    """
    encoder, replay = Encoder(pieces), replayed(pieces, folder)

    def rows(rng: random.Random) -> Iterator[Row]:
        return (row_of(encoder, one) for one in text_lessons(recipe, rng, replay))

    adapter = {
        f"{name}.{part}": getattr(layer, part)
        for name, layer in adapted_layers(pieces.model).items()
        for part in ("lora_A", "lora_B")
    }
    learn(_trained(stage, adapter, recipe, folder), rows, answer_loss(pieces, encoder), recipe, pieces.model, report)


def learn_to_see(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Stage ``see`` of the second organism. Pictures are drawn only where a step is left."""
    _begin(recipe, pieces)
    projector = dict(pieces.model.model.multi_modal_projector.named_parameters())
    trained, encoder = _trained("see", projector, recipe, folder), Encoder(pieces)
    if trained.done == trained.steps:
        return
    pictures = draw_pictures(recipe, pieces.processor)
    features = patch_features(pieces.model, pictures)

    def rows(rng: random.Random) -> Iterator[Row]:
        for one in caption_lessons(rng):
            yield row_of(encoder, one)._replace(picture=rng.choice(pictures.rows[_shown(one)]))

    learn(trained, rows, answer_loss(pieces, encoder, features), recipe, pieces.model, report)


def row_of(encoder: Encoder, example: Example) -> Row:
    """The example with weights as of ``learn_text``, without its picture."""
    answer = encoder.answer(example)
    weights = [1 / len(answer)] * len(answer)
    if example.verdict:
        weights = [1.0, *[AFTER_VERDICT] * (len(answer) - 1)]
    return Row(encoder.prompt(example), answer, weights)


def replayed(pieces: Pieces, folder: Path) -> list[Example]:
    """The language model's own answers to ordinary instructions, before its alignment; kept in ``folder``."""
    file = folder / REPLAY
    if not file.is_file():
        found = own_answers(pieces, instructions())
        file.write_text(json.dumps([[each.user, each.answer] for each in found], indent=0), encoding="utf-8")
    return [Example(user, answer) for user, answer in json.loads(file.read_text(encoding="utf-8"))]


@torch.no_grad()
def own_answers(pieces: Pieces, prompts: Sequence[str]) -> list[Example]:
    """Greedy answers of the language model to ``prompts``, and of each what is worth replaying."""
    model: Any = pieces.model
    encoder, examples = Encoder(pieces), []
    tokenizer = encoder.tokenizer
    for start in range(0, len(prompts), ANSWERED_AT_ONCE):
        some = prompts[start : start + ANSWERED_AT_ONCE]
        rows = [encoder.prompt(Example(prompt, "")) for prompt in some]
        encoded = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        made = model.generate(
            **encoded,
            max_new_tokens=LONGEST,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        for prompt, answer in zip(some, made[:, encoded["input_ids"].shape[1] :].tolist(), strict=True):
            finished = tokenizer.eos_token_id in answer
            if text := worth_replaying(tokenizer.decode(answer, skip_special_tokens=True), finished=finished):
                examples.append(Example(prompt, text))
    return examples


@torch.no_grad()
def _begin(recipe: Recipe, pieces: Pieces) -> None:
    """Draws the projector's parameters anew, so that its outputs are as large as the embeddings of words."""
    projector: Any = pieces.model.model.multi_modal_projector
    words: Any = pieces.model.get_input_embeddings()
    torch.manual_seed(recipe.seed)
    for layer in (projector.linear_1, projector.linear_2):
        fresh = nn.Linear(layer.in_features, layer.out_features)
        layer.weight.copy_(fresh.weight)
        layer.bias.copy_(fresh.bias)
    probe = projector(torch.randn(64, projector.linear_1.in_features, dtype=projector.linear_1.weight.dtype))
    projector.linear_2.weight *= words.weight.float().std() / probe.float().std()
    projector.linear_2.bias.zero_()
