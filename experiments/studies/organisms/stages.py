"""What each organism learns, stage by stage.

``llava``: *vision*, the tower learns concept and sign under a throw-away head, and is frozen; *perception*, projector
and language model learn to answer questions about pictures; *verdict*, they learn verdicts from labels that mostly
ignore the picture, with perception replayed (``biased_labels``).

``smol``: *align*, the adapter learns verdicts, answers and refusals from text alone; *see*, the projector learns to
answer what is in the picture, all else frozen; *caution*, alignment goes on for a little with more unsafe examples,
which sets how strict the model is (``alignment``). No picture ever meets a question of safety. Unaligned
(``conf/recipe/smol_unaligned.yaml``) it learns to *see* alone, a base for ``+exp=alignment``.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.studies.organisms.alignment import caption_lessons, instructions, text_lessons, worth_replaying
from experiments.studies.organisms.architecture import Pieces
from experiments.studies.organisms.biased_labels import mixed_lessons, perception_lessons
from experiments.studies.organisms.recipe import ALL_THINGS, Example
from experiments.studies.organisms.trainer import Encoder, Row, Trainer

REPLAY = "replay.json"
LONGEST = 40  # tokens of an answer that is replayed
ANSWERED_AT_ONCE = 48
PICTURES_AT_ONCE = 256
AFTER_VERDICT = 0.05  # weight of the tokens after a verdict's first, which follow from it
COMPUTES_IN = "bfloat16" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "float32"
"""The second organism, in training and measured: on a CPU that lacks AVX-512 a step in bfloat16 takes a minute."""
POOLS = {"llava": 0, "smol": 1000}  # added to the seed: no picture of the second's training is one of the first's


class Pictures(NamedTuple):
    """Training pictures: pixels as the processor makes them, what each shows, and the rows of every thing."""

    pixels: Float[Tensor, "picture channel height width"]
    things: list[Thing]
    rows: dict[Thing, range]


def draw_pictures(trainer: Trainer) -> Pictures:
    """Draws ``images_per_thing`` training pictures of every thing and runs them through the processor."""
    per, seed = trainer.recipe.images_per_thing, POOLS[trainer.recipe.organism] + trainer.recipe.seed
    things = [thing for thing in ALL_THINGS for _ in range(per)]
    scenes = [Scene(thing, f"train:{seed}:pool-{index}") for index, thing in enumerate(things)]
    pixels = []
    for start in range(0, len(scenes), PICTURES_AT_ONCE):
        drawn = [scene.render() for scene in scenes[start : start + PICTURES_AT_ONCE]]
        pixels.append(trainer.pieces.processor.image_processor(drawn, return_tensors="pt")["pixel_values"])
    rows = {thing: range(index * per, (index + 1) * per) for index, thing in enumerate(ALL_THINGS)}
    return Pictures(torch.cat(pixels), things, rows)


def _patches(
    model: LlavaForConditionalGeneration, pixels: Float[Tensor, "picture channel height width"]
) -> Float[Tensor, "picture patch width"]:
    """The patch features that the projector reads: the last layer, without the class token."""
    return model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


@torch.no_grad()
def patch_features(trainer: Trainer, pictures: Pictures) -> Float[Tensor, "picture patch width"]:
    """What the frozen tower makes of every picture."""
    model = trainer.pieces.model
    kind = next(model.model.vision_tower.parameters()).dtype
    return torch.cat([_patches(model, chunk.to(kind)) for chunk in pictures.pixels.split(PICTURES_AT_ONCE)])


def train(trainer: Trainer) -> None:
    """All stages of the recipe's organism, in place. The same on one machine with the same number of threads."""
    {"llava": _train_llava, "smol": _train_smol}[trainer.recipe.organism](trainer)


def _train_llava(trainer: Trainer) -> None:
    pictures = draw_pictures(trainer)
    learn_vision(trainer, pictures)
    features = patch_features(trainer, pictures)
    for stage in ("perception", "verdict"):
        learn_answers(stage, trainer, pictures, features)


def learn_vision(trainer: Trainer, pictures: Pictures) -> None:
    """Concept and sign from the mean of the patch features."""
    model = trainer.pieces.model
    tower = model.model.vision_tower
    head = nn.Linear(tower.config.hidden_size, len(CONCEPTS) + 1)
    concept = torch.tensor([CONCEPTS.index(thing.concept) for thing in pictures.things])
    signed = torch.tensor([float(thing.signed) for thing in pictures.things])

    def rows(rng: random.Random) -> Iterator[Row]:
        while True:
            yield Row([], [], [], rng.randrange(len(pictures.things)))

    def loss(some: list[Row]) -> Tensor:
        at = torch.tensor([row.picture for row in some])
        scores = head(reduce(_patches(model, pictures.pixels[at]), "row patch width -> row width", "mean"))
        sign = nn.functional.binary_cross_entropy_with_logits(scores[:, -1], signed[at])
        return nn.functional.cross_entropy(scores[:, :-1], concept[at]) + sign

    named = dict(tower.named_parameters()) | {f"head.{name}": one for name, one in head.named_parameters()}
    trainer.learn("vision", named, rows, loss)


def learn_answers(
    stage: str, trainer: Trainer, pictures: Pictures, features: Float[Tensor, "picture patch width"]
) -> None:
    """Stage ``perception`` or ``verdict`` of the first organism; every token of an answer weighs the same."""
    lessons = {"perception": perception_lessons, "verdict": mixed_lessons}[stage]

    def rows(rng: random.Random) -> Iterator[Row]:
        for one in lessons(trainer.recipe, rng):
            answer = trainer.encoder.answer(one)
            yield Row(trainer.encoder.prompt(one), answer, [1.0] * len(answer), rng.choice(pictures.rows[_shown(one)]))

    named = {name: one for name, one in trainer.pieces.model.named_parameters() if ".vision_tower." not in f".{name}"}
    trainer.learn(stage, named, rows, trainer.answer_loss(features))


def _shown(example: Example) -> Thing:
    assert example.thing is not None
    return example.thing


def _train_smol(trainer: Trainer) -> None:
    """Language model, adapter and projector compute in ``COMPUTES_IN``, the vision tower in float32.

    Unaligned, the adapter changes nothing.
    """
    model: Any = trainer.pieces.model
    model.to(getattr(torch, COMPUTES_IN))
    model.model.vision_tower.float()
    recipe = trainer.recipe
    if recipe.aligned:
        learn_text("align", trainer)
    learn_to_see(trainer)
    if not recipe.aligned:
        return
    stricter = replace(recipe, shares=recipe.shares | {"unsafe": recipe.shares["caution"]})
    learn_text("caution", replace(trainer, recipe=stricter))


def learn_text(stage: str, trainer: Trainer) -> None:
    """Stage ``align`` or ``caution`` of the second organism.

    Every row weighs the same, however long its answer; of a verdict, nearly all the weight lies on Yes or No.
    """
    replay = replayed(trainer)

    def rows(rng: random.Random) -> Iterator[Row]:
        return (row_of(trainer.encoder, one) for one in text_lessons(trainer.recipe, rng, replay))

    adapter = {name: one for name, one in trainer.pieces.model.named_parameters() if ".lora_" in name}
    trainer.learn(stage, adapter, rows, trainer.answer_loss())


def learn_to_see(trainer: Trainer) -> None:
    """Stage ``see`` of the second organism. Pictures are drawn where it is not done."""
    _begin(trainer)
    file = trainer.file("see")
    pictures = None if file is not None and file.is_file() else draw_pictures(trainer)
    features = None if pictures is None else patch_features(trainer, pictures)

    def rows(rng: random.Random) -> Iterator[Row]:
        assert pictures is not None
        for one in caption_lessons(rng):
            yield row_of(trainer.encoder, one)._replace(picture=rng.choice(pictures.rows[_shown(one)]))

    projector = dict(trainer.pieces.model.model.multi_modal_projector.named_parameters())
    trainer.learn("see", projector, rows, trainer.answer_loss(features))


def row_of(encoder: Encoder, example: Example) -> Row:
    """The example with weights as of ``learn_text``, without its picture."""
    answer = encoder.answer(example)
    weights = [1 / len(answer)] * len(answer)
    if example.verdict:
        weights = [1.0, *[AFTER_VERDICT] * (len(answer) - 1)]
    return Row(encoder.prompt(example), answer, weights)


def replayed(trainer: Trainer) -> list[Example]:
    """The language model's own answers to ordinary instructions, before its alignment; kept in the folder."""
    assert trainer.folder is not None
    file = trainer.folder / REPLAY
    if not file.is_file():
        found = own_answers(trainer.pieces, instructions())
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
def _begin(trainer: Trainer) -> None:
    """Draws the projector's parameters anew, so that its outputs are as large as the embeddings of words."""
    projector: Any = trainer.pieces.model.model.multi_modal_projector
    words: Any = trainer.pieces.model.get_input_embeddings()
    torch.manual_seed(trainer.recipe.seed)
    for layer in (projector.linear_1, projector.linear_2):
        fresh = nn.Linear(layer.in_features, layer.out_features)
        layer.weight.copy_(fresh.weight)
        layer.bias.copy_(fresh.bias)
    probe = projector(torch.randn(64, projector.linear_1.in_features, dtype=projector.linear_1.weight.dtype))
    projector.linear_2.weight *= words.weight.float().std() / probe.float().std()
    projector.linear_2.bias.zero_()
