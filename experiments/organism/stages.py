"""The training itself, in three stages. Knows nothing of configuration files, reports or verdict rules.

0. The vision tower learns concept and sign under a throw-away head, and is frozen.
1. Projector and language model learn to answer questions about pictures.
2. They learn verdicts from labels that mostly ignore the picture, with perception replayed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, LlavaProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.organism.architecture import IMAGE_SIZE
from experiments.organism.lessons import ALL_THINGS, Lesson, mixed_lessons, perception_lessons
from experiments.organism.recipe import Recipe

IGNORED = -100
Report = Callable[[str, int, int, float], None]  # stage, step, steps, loss


class Pool(NamedTuple):
    """Training pictures by thing: pixels [thing image 3 side side] as the processor makes them."""

    pixels: Float[Tensor, "image channel height width"]
    things: list[Thing]
    rows: dict[Thing, range]


def _render(scenes: Sequence[Scene]) -> Float[np.ndarray, "image height width channel"]:
    return np.stack([np.asarray(scene.render()) for scene in scenes])


def draw_pool(recipe: Recipe, processor: LlavaProcessor) -> Pool:
    """Draws ``images_per_thing`` training pictures of every thing and runs them through the processor."""
    things = [thing for thing in ALL_THINGS for _ in range(recipe.images_per_thing)]
    scenes = [Scene(thing, f"train:{recipe.seed}:pool-{index}") for index, thing in enumerate(things)]
    chunks = [scenes[start : start + 256] for start in range(0, len(scenes), 256)]
    with ProcessPoolExecutor(recipe.threads) as workers:
        drawn = list(workers.map(_render, chunks))
    pixels = [processor.image_processor(list(chunk), return_tensors="pt")["pixel_values"] for chunk in drawn]
    per = recipe.images_per_thing
    rows = {thing: range(index * per, (index + 1) * per) for index, thing in enumerate(ALL_THINGS)}
    return Pool(torch.cat(pixels), things, rows)


def _scheduled(parameters: Iterator[nn.Parameter], lr: float, steps: int) -> tuple[Any, Any]:
    """AdamW with a short warm-up and a cosine to zero."""
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    warm = min(50, max(1, steps // 10))

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / warm) * 0.5 * (1 + np.cos(np.pi * min(1.0, step / steps)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _step(loss: Tensor, optimizer: Any, scheduler: Any, parameters: list[nn.Parameter]) -> float:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    scheduler.step()
    return float(loss.detach())


def train_vision(recipe: Recipe, model: LlavaForConditionalGeneration, pool: Pool, report: Report) -> None:
    """Stage 0: concept and sign from the mean of the patch features, in place."""
    tower = model.model.vision_tower
    width = tower.config.hidden_size
    head = nn.Linear(width, len(CONCEPTS) + 1)
    parameters = [*tower.parameters(), *head.parameters()]
    optimizer, scheduler = _scheduled(iter(parameters), recipe.vision_lr, recipe.vision_steps)
    concept = torch.tensor([CONCEPTS.index(thing.concept) for thing in pool.things])
    signed = torch.tensor([float(thing.signed) for thing in pool.things])
    generator = torch.Generator().manual_seed(recipe.seed)
    for step in range(recipe.vision_steps):
        rows = torch.randint(len(pool.things), (recipe.batch_size,), generator=generator)
        scores = head(reduce(_patches(model, pool.pixels[rows]), "image patch width -> image width", "mean"))
        loss = nn.functional.cross_entropy(scores[:, :-1], concept[rows])
        loss = loss + nn.functional.binary_cross_entropy_with_logits(scores[:, -1], signed[rows])
        report("vision", step, recipe.vision_steps, _step(loss, optimizer, scheduler, parameters))
    tower.requires_grad_(False)


def _patches(
    model: LlavaForConditionalGeneration, pixels: Float[Tensor, "image channel height width"]
) -> Float[Tensor, "image patch width"]:
    """The patch features that the projector reads: the last layer, without the class token."""
    return model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


def patch_features(
    model: LlavaForConditionalGeneration, pool: Pool, batch: int = 256
) -> Float[Tensor, "image patch width"]:
    """All of the pool's patch features from the frozen tower."""
    with torch.no_grad():
        return torch.cat([_patches(model, chunk) for chunk in pool.pixels.split(batch)])


class Batch(NamedTuple):
    """Right-padded training rows; labels are ``IGNORED`` outside the answers."""

    input_ids: Int[Tensor, "row token"]
    attention_mask: Int[Tensor, "row token"]
    labels: Int[Tensor, "row token"]


class Encoder:
    """Lessons → token rows, through the processor's chat template; every distinct prompt is rendered once."""

    def __init__(self, processor: LlavaProcessor) -> None:
        self.processor = processor
        self.image_tokens = "<image>" * (IMAGE_SIZE // processor.patch_size) ** 2
        self.prompts: dict[tuple[str, str | None], list[int]] = {}
        self.answers: dict[str, list[int]] = {}

    def _prompt(self, lesson: Lesson) -> list[int]:
        key = (lesson.question, lesson.system)
        if key not in self.prompts:
            content = [{"type": "image"}, {"type": "text", "text": lesson.question}]
            messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
            if lesson.system is not None:
                messages.insert(0, {"role": "system", "content": [{"type": "text", "text": lesson.system}]})
            text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
            self.prompts[key] = self._ids(text.replace("<image>", self.image_tokens))
        return self.prompts[key]

    def _ids(self, text: str) -> list[int]:
        return self.processor.tokenizer.encode(text, add_special_tokens=False)

    def batch(self, lessons: Sequence[Lesson]) -> Batch:
        """Pads on the right, as training does; evaluation pads on the left."""
        rows = []
        for lesson in lessons:
            answer = self.answers.setdefault(
                lesson.answer, [*self._ids(lesson.answer), self.processor.tokenizer.eos_token_id]
            )
            rows.append((self._prompt(lesson), answer))
        longest = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((len(rows), longest), self.processor.tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            mask[row, :end] = 1
            labels[row, len(prompt) : end] = torch.tensor(answer)
        return Batch(ids, mask, labels)


def _loss(
    model: LlavaForConditionalGeneration, batch: Batch, features: Float[Tensor, "row patch width"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy over answer tokens; only their positions go through the head."""
    projected: Any = list(
        model.model.multi_modal_projector(features)
    )  # a list of images, as get_image_features gives it
    hidden = model.model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        mm_encoder_outputs={"image": BaseModelOutputWithPooling(pooler_output=projected)},
    ).last_hidden_state
    wanted = batch.labels[:, 1:] != IGNORED
    return nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][wanted]), batch.labels[:, 1:][wanted])


def train_language(
    name: str,
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    encoder: Encoder,
    pool: Pool,
    features: Float[Tensor, "image patch width"],
    report: Report,
) -> None:
    """Stage 1 (``perception``) or 2 (``verdict``), in place; the vision tower stays as it is."""
    rng = random.Random(f"{name}:{recipe.seed}")
    verdict = name == "verdict"
    lessons = (mixed_lessons if verdict else perception_lessons)(recipe, rng)
    steps = recipe.verdict_steps if verdict else recipe.perception_steps
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, scheduler = _scheduled(iter(parameters), recipe.verdict_lr if verdict else recipe.perception_lr, steps)
    for step in range(steps):
        chosen = [next(lessons) for _ in range(recipe.batch_size)]
        rows = torch.tensor([rng.choice(pool.rows[lesson.thing]) for lesson in chosen])
        loss = _loss(model, encoder.batch(chosen), features[rows])
        report(name, step, steps, _step(loss, optimizer, scheduler, parameters))
