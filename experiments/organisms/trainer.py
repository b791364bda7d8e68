"""The trainer of both organisms: one loop over stages; killed at any step, it goes on from its last save.

A stage is its parameters, an endless stream of ``Row``s and a loss. What is trained is kept in float32 beside what
computes.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from experiments.organisms.architecture import IMAGE_TOKEN, Pieces
from experiments.organisms.examples import Example
from experiments.organisms.recipe import Recipe

IGNORED = -100
SAVED_EVERY = 40  # steps
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
        longest = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask, labels, weights = torch.zeros_like(ids), torch.full_like(ids, IGNORED), torch.zeros(ids.shape)
        for index, row in enumerate(rows):
            begin, end = len(row.prompt), len(row.prompt) + len(row.answer)
            ids[index, :end] = torch.tensor(row.prompt + row.answer)
            mask[index, :end] = 1
            labels[index, begin:end] = torch.tensor(row.answer)
            weights[index, begin:end] = torch.tensor(row.weights)
        return Batch(ids, mask, labels, weights / weights.sum(), torch.tensor([row.picture for row in rows]))


def batches(rows: Iterator[Row], recipe: Recipe, rng: random.Random, begin: int, steps: int) -> Iterator[list[Row]]:
    """The rows of steps ``begin`` … ``steps`` of an endless stream, which is drawn from its start."""
    for group in range(0, steps, recipe.together):
        some = list(islice(rows, recipe.together * recipe.batch_size))
        if recipe.together > 1:
            some.sort(key=lambda row: len(row.prompt + row.answer))
        parts = [some[start : start + recipe.batch_size] for start in range(0, len(some), recipe.batch_size)]
        rng.shuffle(parts)
        yield from (part for step, part in enumerate(parts, group) if begin <= step < steps)


class Trained:
    """The parameters of a stage under training: AdamW on float32 masters, and its state in ``file`` (None: nowhere).

    The learning rate rises over the recipe's warm-up, and falls to 0 along a cosine.
    """

    def __init__(self, stage: str, named: dict[str, nn.Parameter], recipe: Recipe, file: Path | None) -> None:
        self.stage, self.named, self.file = stage, named, file
        self.lr, self.steps = recipe.lr[stage], recipe.steps[stage]
        self.warmup = min(recipe.warmup, max(1, self.steps // 10))
        self.masters = {name: parameter.detach().float().clone() for name, parameter in named.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.masters.values()), lr=self.lr, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        self.done = 0
        if file is not None and file.is_file():
            self._read(file)

    def step(self, loss: Tensor) -> float:
        """One update by the gradient of ``loss``."""
        grads = torch.autograd.grad(loss, list(self.named.values()), allow_unused=True)
        for master, grad in zip(self.masters.values(), grads, strict=True):
            master.grad = None if grad is None else grad.float()
        nn.utils.clip_grad_norm_(list(self.masters.values()), 1.0)
        factor = min(1.0, (self.done + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * self.done / self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
        self.optimizer.step()
        self.done += 1
        self._hand_on()
        if self.file is not None and (self.done % SAVED_EVERY == 0 or self.done == self.steps):
            self._save(self.file)
        return float(loss.detach())

    def _hand_on(self) -> None:
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(self.masters[name])

    def _save(self, file: Path) -> None:
        state = {f"value.{name}": master for name, master in self.masters.items()}
        if self.done < self.steps:
            for name, master in self.masters.items():
                if moments := self.optimizer.state.get(master):  # none of a parameter that the loss does not use
                    state |= {f"first.{name}": moments["exp_avg"], f"second.{name}": moments["exp_avg_sq"]}
        partial = file.with_suffix(".partial")
        save_file(state, partial, metadata={"done": str(self.done)})
        partial.replace(file)

    def _read(self, file: Path) -> None:
        with safe_open(file, framework="pt") as opened:
            self.done = int(opened.metadata()["done"])
        state = load_file(file)
        for name, master in self.masters.items():
            master.copy_(state[f"value.{name}"])
            if f"first.{name}" in state:
                self.optimizer.state[master] = {
                    "step": torch.tensor(float(self.done)),
                    "exp_avg": state[f"first.{name}"],
                    "exp_avg_sq": state[f"second.{name}"],
                }
        self._hand_on()


def learn(
    trained: Trained,
    rows: Callable[[random.Random], Iterator[Row]],
    loss: Callable[[list[Row]], Tensor],
    recipe: Recipe,
    model: nn.Module,
    report: Report,
) -> None:
    """Takes the steps that are left; of ``model`` only the stage's parameters require gradients from here on."""
    model.requires_grad_(False)
    for parameter in trained.named.values():
        parameter.requires_grad_(True)
    rng = random.Random(f"{recipe.organism}:{trained.stage}:{recipe.seed}")
    stream = rows(random.Random(f"{recipe.organism}:{trained.stage}:{recipe.seed}:rows"))
    for some in batches(stream, recipe, rng, trained.done, trained.steps):
        found = trained.step(loss(some))
        report(trained.stage, trained.done - 1, trained.steps, found)


def answer_loss(
    pieces: Pieces, encoder: Encoder, features: Float[Tensor, "picture patch width"] | None = None
) -> Callable[[list[Row]], Tensor]:
    """Weighted cross-entropy of the answers' tokens; only their positions go through the head.

    With ``features``, what the frozen vision tower makes of every picture, each row has one.
    """
    model = pieces.model

    def loss(rows: list[Row]) -> Tensor:
        batch = encoder.batch(rows)
        embedded = model.get_input_embeddings()(batch.input_ids)
        if features is not None:
            projected = model.model.multi_modal_projector(features[batch.pictures].to(embedded.dtype)).flatten(0, 1)
            embedded = embedded.masked_scatter((batch.input_ids == model.config.image_token_id)[..., None], projected)
        hidden = model.model.language_model(
            inputs_embeds=embedded, attention_mask=batch.attention_mask, use_cache=False
        ).last_hidden_state
        wanted = batch.labels[:, 1:] != IGNORED
        scores = model.lm_head(hidden[:, :-1][wanted])
        each = nn.functional.cross_entropy(scores.float(), batch.labels[:, 1:][wanted], reduction="none")
        return (each * batch.weights[:, 1:][wanted]).sum()

    return loss


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
