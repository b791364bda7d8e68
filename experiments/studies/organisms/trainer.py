"""The trainer of both organisms: one loop for every stage; killed, it goes on with the stage that was cut off.

A stage is its parameters, an endless stream of ``Row``s and a loss. What is trained is kept in float32 beside what
computes.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from experiments.studies.organisms.architecture import IMAGE_TOKEN, Pieces
from experiments.studies.organisms.recipe import Example, Recipe

IGNORED = -100
Report = Callable[[str, int, int, float], None]  # stage, step, steps, loss


class Row(NamedTuple):
    """Token ids of one example, the weight of each token of its answer, and the row of its picture (-1: none)."""

    prompt: list[int]
    answer: list[int]
    weights: list[float]
    picture: int = -1


class Batch(NamedTuple):
    """Right-padded rows; labels are ``IGNORED`` outside the answers, whose weights sum to 1; rows of pictures."""

    input_ids: Int[Tensor, "row token"]
    attention_mask: Int[Tensor, "row token"]
    labels: Int[Tensor, "row token"]
    weights: Float[Tensor, "row token"]
    pictures: Int[Tensor, " row"]


class Encoder:
    """Examples → token ids, by the processor's chat template; every distinct prompt is rendered once."""

    def __init__(self, pieces: Pieces) -> None:
        self.tokenizer, self.processor = pieces.processor.tokenizer, pieces.processor
        self.image_tokens = IMAGE_TOKEN * pieces.model.config.image_seq_length
        self.known: dict[tuple[str, str | None, bool], list[int]] = {}

    def prompt(self, example: Example) -> list[int]:
        """The ids of system text and user turn, up to where the answer begins."""
        key = (example.user, example.system, example.thing is not None)
        if key not in self.known:
            content = [{"type": "image"}] if example.thing is not None else []
            messages: list[Any] = [{"role": "user", "content": [*content, {"type": "text", "text": example.user}]}]
            if example.system is not None:
                messages.insert(0, {"role": "system", "content": [{"type": "text", "text": example.system}]})
            text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
            self.known[key] = self._ids(text.replace(IMAGE_TOKEN, self.image_tokens))
        return self.known[key]

    def answer(self, example: Example) -> list[int]:
        """The ids of the answer with its end."""
        return [*self._ids(example.answer), self.tokenizer.eos_token_id]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Pads on the right, as training does; evaluation pads on the left."""
        ids = _padded([row.prompt + row.answer for row in rows], self.tokenizer.pad_token_id)
        mask = _padded([[1] * len(row.prompt + row.answer) for row in rows], 0)
        labels = _padded([[IGNORED] * len(row.prompt) + row.answer for row in rows], IGNORED)
        weights = _padded([[0.0] * len(row.prompt) + row.weights for row in rows], 0.0)
        return Batch(ids, mask, labels, weights / weights.sum(), torch.tensor([row.picture for row in rows]))


def _padded(rows: Sequence[list[Any]], value: float) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def batches(rows: Iterator[Row], recipe: Recipe, rng: random.Random, steps: int) -> Iterator[list[Row]]:
    """The rows of each of ``steps`` steps from an endless stream."""
    for group in range(0, steps, recipe.together):
        some = list(islice(rows, recipe.together * recipe.batch_size))
        if recipe.together > 1:
            some.sort(key=lambda row: len(row.prompt + row.answer))
        parts = [some[start : start + recipe.batch_size] for start in range(0, len(some), recipe.batch_size)]
        rng.shuffle(parts)
        yield from parts[: steps - group]


@dataclass(frozen=True)
class Trainer:
    """What is trained, and by what recipe. ``folder`` keeps the stages that are done (None: none is kept)."""

    recipe: Recipe
    pieces: Pieces
    report: Report
    folder: Path | None = None

    @cached_property
    def encoder(self) -> Encoder:
        """The processor's, whose prompts all stages share."""
        return Encoder(self.pieces)

    def file(self, stage: str) -> Path | None:
        """Where the parameters of the finished stage are kept."""
        return None if self.folder is None else self.folder / f"{stage}.safetensors"

    def learn(
        self,
        stage: str,
        named: dict[str, nn.Parameter],
        rows: Callable[[random.Random], Iterator[Row]],
        loss: Callable[[list[Row]], Tensor],
    ) -> None:
        """Trains the parameters ``named`` by AdamW on float32 masters, or reads them where the stage is done.

        The learning rate rises over the recipe's warm-up, and falls to 0 along a cosine. Of the model only ``named``
        requires gradients from here on.
        """
        recipe, file, steps = self.recipe, self.file(stage), self.recipe.steps[stage]
        if file is not None and file.is_file():
            _hand_on(load_file(file), named)
            return
        self.pieces.model.requires_grad_(False)
        for parameter in named.values():
            parameter.requires_grad_(True)
        masters = {name: parameter.detach().float().clone() for name, parameter in named.items()}
        optimizer = torch.optim.AdamW(
            list(masters.values()), lr=recipe.lr[stage], weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        warmup = min(recipe.warmup, max(1, steps // 10))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        seed = f"{recipe.organism}:{stage}:{recipe.seed}"
        stream = batches(rows(random.Random(f"{seed}:rows")), recipe, random.Random(seed), steps)
        for step, some in enumerate(stream):
            value = loss(some)
            grads = torch.autograd.grad(value, list(named.values()), allow_unused=True)
            for master, grad in zip(masters.values(), grads, strict=True):
                master.grad = None if grad is None else grad.float()
            nn.utils.clip_grad_norm_(list(masters.values()), 1.0)
            optimizer.step()
            schedule.step()
            _hand_on(masters, named)
            self.report(stage, step, steps, float(value.detach()))
        if file is not None:
            partial = file.with_suffix(".partial")
            save_file(masters, partial)
            partial.replace(file)

    def answer_loss(
        self, features: Float[Tensor, "picture patch width"] | None = None
    ) -> Callable[[list[Row]], Tensor]:
        """Weighted cross-entropy of the answers' tokens; only their positions go through the head.

        With ``features``, what the frozen vision tower makes of every picture, each row has one.
        """
        model = self.pieces.model

        def loss(rows: list[Row]) -> Tensor:
            batch = self.encoder.batch(rows)
            embedded = model.get_input_embeddings()(batch.input_ids)
            if features is not None:
                projected = model.model.multi_modal_projector(features[batch.pictures].to(embedded.dtype)).flatten(0, 1)
                here = (batch.input_ids == model.config.image_token_id)[..., None]
                embedded = embedded.masked_scatter(here, projected)
            hidden = model.model.language_model(
                inputs_embeds=embedded, attention_mask=batch.attention_mask, use_cache=False
            ).last_hidden_state
            wanted = batch.labels[:, 1:] != IGNORED
            scores = model.lm_head(hidden[:, :-1][wanted])
            each = nn.functional.cross_entropy(scores.float(), batch.labels[:, 1:][wanted], reduction="none")
            return (each * batch.weights[:, 1:][wanted]).sum()

        return loss


@torch.no_grad()
def _hand_on(masters: dict[str, Tensor], named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        parameter.copy_(masters[name])


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
