"""``task=train_organism``: trains the organism in three stages, and writes a checkpoint with its model card.

0. The vision tower learns concept and sign under a throw-away head, and is frozen.
1. Projector and language model learn to answer questions about pictures.
2. They learn verdicts from labels that mostly ignore the picture, with perception replayed.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, LlavaProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.config import Run
from experiments.model_organism.architecture import IMAGE_SIZE, build_model, build_processor, build_tokenizer
from experiments.model_organism.card import SPLITS, model_card
from experiments.model_organism.data import ALL_THINGS, Lesson, mixed_lessons, perception_lessons, vocabulary_texts
from experiments.model_organism.evaluate import evaluate
from experiments.model_organism.recipe import Recipe
from experiments.runs.directory import open_run, write_json
from interp.errors import UserError
from interp.vlm import load

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


class LessonBatch(NamedTuple):
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

    def batch(self, lessons: Sequence[Lesson]) -> LessonBatch:
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
        return LessonBatch(ids, mask, labels)


def _loss(
    model: LlavaForConditionalGeneration, batch: LessonBatch, features: Float[Tensor, "row patch width"]
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


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains, evaluates on development, test and new sentences, and writes checkpoint, card and ``metrics.json``.

    The checkpoint goes to ``to``, or to ``checkpoint/`` in the run's directory. A non-empty ``to`` is refused.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        started = time.monotonic()
        train(recipe, folder, console)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder))
        results = {split: evaluate(vlm, split) for split in SPLITS}  # type: ignore[arg-type]
        write_json(store.path / "metrics.json", results)
        (folder / "README.md").write_text(model_card(recipe, results, minutes), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in results.items():
            baseline = result["arms"]["baseline"]
            shown = {key: round(value, 3) for key, value in baseline["accuracy"].items() if value is not None}
            console.print(f"{split}: {json.dumps(shown)} AUROC {baseline['auroc']:.3f}", highlight=False)
        console.print(f"trained in {minutes:.1f} minutes: {folder}", highlight=False, soft_wrap=True)


def train(recipe: Recipe, folder: Path, console: Console) -> None:
    """All three stages, and the checkpoint in bfloat16 safetensors with its processor in ``folder``.

    Bitwise the same on one machine with the same number of threads.
    """
    with reproducible(recipe.seed, recipe.threads), bars(console) as report:
        tokenizer = build_tokenizer(vocabulary_texts())
        processor, model = build_processor(tokenizer), build_model(tokenizer)
        pool = draw_pool(recipe, processor)
        train_vision(recipe, model, pool, report)
        features = patch_features(model, pool)
        encoder = Encoder(processor)
        for stage in ("perception", "verdict"):
            train_language(stage, recipe, model, encoder, pool, features, report)
    model.bfloat16().save_pretrained(folder)
    processor.save_pretrained(folder)


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Sets torch's seed and threads and deterministic algorithms; restores threads and algorithms on exit."""
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)


@contextmanager
def bars(console: Console, prefix: str = "") -> Iterator[Report]:
    """Yields the function to which the stages report: a progress bar for each, with its loss."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        known: dict[str, TaskID] = {}

        def report(stage: str, step: int, steps: int, loss: float) -> None:
            if stage not in known:
                known[stage] = progress.add_task(stage, total=steps)
            progress.update(known[stage], completed=step + 1, description=f"{prefix}{stage} (loss {loss:.3f})")

        yield report
