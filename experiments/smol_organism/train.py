"""Trains the second organism in three stages; killed at any step, it goes on from its last save.

A. *Alignment*: the adapter learns verdicts, answers and refusals from text alone (``alignment``).
B. *Seeing*: the projector learns to answer what is in the picture (``seeing``), all else frozen. No
   picture ever meets a question of safety.
C. *Caution*: stage A goes on for a little with more unsafe examples, which sets how strict the model is.

Language model and adapter compute in bfloat16; what is trained is kept in float32 beside it.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from experiments.benchmarks.iconworld.concepts import Thing
from experiments.model_organism.recipe import Recipe as PictureRecipe
from experiments.model_organism.train import IGNORED, Report, draw_pool, patch_features
from experiments.smol_organism.alignment import Alignment, Example
from experiments.smol_organism.architecture import Pieces
from experiments.smol_organism.recipe import Recipe
from experiments.smol_organism.replay import instructions, own_answers
from experiments.smol_organism.seeing import example
from interp.checkpoints.lora import adapted_layers

TOGETHER = 4  # batches drawn at once and sorted by length, so that little is padded
WARM = 20  # steps
SAVED_EVERY = 40  # steps
REPLAY = "replay.json"
POOL_SEED = 1000  # pictures of this training are none of the first organism's

AFTER_VERDICT = 0.05  # weight of the tokens after a verdict's first, which follow from it


class Row(NamedTuple):
    """Token ids of one example, and the row of its picture in the pool (-1: none)."""

    prompt: list[int]
    answer: list[int]
    picture: int = -1
    verdict: bool = False


class Batch(NamedTuple):
    """Right-padded rows; labels are ``IGNORED`` outside the answers; ``pictures`` are rows of the pool.

    Every row weighs the same, however long its answer; of a verdict, nearly all the weight lies on Yes or No.
    """

    input_ids: Int[Tensor, "row token"]
    attention_mask: Int[Tensor, "row token"]
    labels: Int[Tensor, "row token"]
    weights: Float[Tensor, "row token"]
    pictures: Int[Tensor, " row"]


class Encoder:
    """Examples → token ids, by the processor's chat template."""

    def __init__(self, pieces: Pieces) -> None:
        self.tokenizer, self.processor = pieces.processor.tokenizer, pieces.processor
        self.image_tokens = pieces.model.config.image_seq_length

    def prompt(self, text: str, *, picture: bool = False) -> list[int]:
        """The ids of one user turn, up to where the answer begins."""
        content = [{"type": "image"}] if picture else []
        messages: list[Any] = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
        filled = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        return self._ids(filled.replace("<image>", "<image>" * self.image_tokens))

    def answer(self, text: str) -> list[int]:
        """The ids of an answer with its end."""
        return [*self._ids(text), self.tokenizer.eos_token_id]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """See ``Batch``."""
        longest = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        weights = torch.zeros(ids.shape)
        for index, row in enumerate(rows):
            begin, end = len(row.prompt), len(row.prompt) + len(row.answer)
            ids[index, :end] = torch.tensor(row.prompt + row.answer)
            mask[index, :end] = 1
            labels[index, begin:end] = torch.tensor(row.answer)
            weights[index, begin:end] = AFTER_VERDICT if row.verdict else 1 / len(row.answer)
            if row.verdict:
                weights[index, begin] = 1
        return Batch(ids, mask, labels, weights / len(rows), torch.tensor([row.picture for row in rows]))


def batches(draw: Callable[[random.Random], Row], recipe: Recipe, stage: str, begin: int, steps: int) -> Iterator[Any]:
    """The rows of steps ``begin`` … ``steps``; each depends on stage, seed and step alone."""
    for group in range(begin - begin % TOGETHER, steps, TOGETHER):
        rng = random.Random(f"smol_organism:{stage}:{recipe.seed}:{group}")
        rows = sorted(
            (draw(rng) for _ in range(TOGETHER * recipe.batch_size)), key=lambda row: len(row.prompt + row.answer)
        )
        parts = [rows[start : start + recipe.batch_size] for start in range(0, len(rows), recipe.batch_size)]
        rng.shuffle(parts)
        yield from (part for step, part in enumerate(parts, group) if begin <= step < steps)


class Trained:
    """Parameters of ``modules`` under training: float32 masters beside what computes, AdamW, and its state on disk."""

    def __init__(self, named: dict[str, nn.Parameter], lr: float, steps: int, file: Path) -> None:
        self.named, self.lr, self.steps, self.file = named, lr, steps, file
        self.masters = {name: parameter.detach().float().clone() for name, parameter in named.items()}
        self.optimizer = torch.optim.AdamW(list(self.masters.values()), lr=lr, weight_decay=0.0, betas=(0.9, 0.98))
        self.done = 0
        if file.is_file():
            self._read()

    def step(self, loss: Tensor) -> float:
        """One update by the gradient of ``loss``."""
        grads = torch.autograd.grad(loss, list(self.named.values()))
        for master, grad in zip(self.masters.values(), grads, strict=True):
            master.grad = grad.float()
        nn.utils.clip_grad_norm_(list(self.masters.values()), 1.0)
        factor = min(1.0, (self.done + 1) / WARM) * 0.5 * (1 + math.cos(math.pi * self.done / self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
        self.optimizer.step()
        self.done += 1
        self._hand_on()
        if self.done % SAVED_EVERY == 0 or self.done == self.steps:
            self._save()
        return float(loss.detach())

    def _hand_on(self) -> None:
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(self.masters[name])

    def _save(self) -> None:
        state = {f"value.{name}": master for name, master in self.masters.items()}
        if self.done < self.steps:
            for name, master in self.masters.items():
                kept = self.optimizer.state[master]
                state |= {f"first.{name}": kept["exp_avg"], f"second.{name}": kept["exp_avg_sq"]}
        partial = self.file.with_suffix(".partial")
        save_file(state, partial, metadata={"done": str(self.done)})
        partial.replace(self.file)

    def _read(self) -> None:
        from safetensors import safe_open

        with safe_open(self.file, framework="pt") as opened:
            self.done = int(opened.metadata()["done"])
        state = load_file(self.file)
        for name, master in self.masters.items():
            master.copy_(state[f"value.{name}"])
            if self.done < self.steps:
                self.optimizer.state[master] = {
                    "step": torch.tensor(float(self.done)),
                    "exp_avg": state[f"first.{name}"],
                    "exp_avg_sq": state[f"second.{name}"],
                }
        self._hand_on()


def _loss(model: Any, hidden: Float[Tensor, "row token width"], batch: Batch) -> Tensor:
    """Weighted cross-entropy of the answer tokens; only their positions go through the head."""
    wanted = batch.labels[:, 1:] != IGNORED
    scores = model.lm_head(hidden[:, :-1][wanted])
    each = nn.functional.cross_entropy(scores.float(), batch.labels[:, 1:][wanted], reduction="none")
    return (each * batch.weights[:, 1:][wanted]).sum()


def replayed(pieces: Pieces, folder: Path) -> list[Example]:
    """The language model's own answers to ordinary instructions, before its alignment; kept in ``folder``."""
    file = folder / REPLAY
    if not file.is_file():
        encoder = Encoder(pieces)
        found = own_answers(pieces.model, encoder.tokenizer, instructions(), encoder.prompt)
        file.write_text(json.dumps([[each.user, each.answer] for each in found], indent=0), encoding="utf-8")
    return [Example(user, answer) for user, answer in json.loads(file.read_text(encoding="utf-8"))]


class Seen(NamedTuple):
    """The training pictures: rows of every thing in the pool, and what the frozen tower makes of each."""

    rows: dict[Thing, range]
    features: Float[Tensor, "image patch width"]


def align(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Stage A, in place."""
    _learn(
        "align",
        _trained("align", _adapter(pieces), recipe, folder),
        _text(recipe, pieces, folder),
        recipe,
        pieces,
        report,
    )


def see(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Stage B, in place. Pictures are drawn only where a step is left."""
    _begin(recipe, pieces.model)
    projector = dict(pieces.model.model.multi_modal_projector.named_parameters())
    trained = _trained("see", projector, recipe, folder)
    if trained.done < trained.steps:
        seen = pictures(recipe, pieces)
        _learn("see", trained, _captions(pieces, seen), recipe, pieces, report, seen.features)


def caution(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """Stage C, in place."""
    text = _text(replace(recipe, unsafe_share=recipe.caution_share), pieces, folder)
    _learn("caution", _trained("caution", _adapter(pieces), recipe, folder), text, recipe, pieces, report)


def _text(recipe: Recipe, pieces: Pieces, folder: Path) -> Callable[[random.Random], Row]:
    encoder, alignment = Encoder(pieces), Alignment(recipe, replayed(pieces, folder))

    def draw(rng: random.Random) -> Row:
        one = alignment.draw(rng)
        return Row(encoder.prompt(one.user), encoder.answer(one.answer), verdict=one.verdict)

    return draw


def _captions(pieces: Pieces, seen: Seen) -> Callable[[random.Random], Row]:
    encoder = Encoder(pieces)

    def draw(rng: random.Random) -> Row:
        thing, question, answer = example(rng)
        return Row(encoder.prompt(question, picture=True), encoder.answer(answer), rng.choice(seen.rows[thing]))

    return draw


def _adapter(pieces: Pieces) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{part}": getattr(layer, part)
        for name, layer in adapted_layers(pieces.model).items()
        for part in ("lora_A", "lora_B")
    }


def _trained(stage: str, named: dict[str, nn.Parameter], recipe: Recipe, folder: Path) -> Trained:
    """``named`` as the last launch left it."""
    steps, lr = recipe.schedule(stage)
    return Trained(named, lr, steps, folder / f"{stage}.safetensors")


def _learn(
    stage: str,
    trained: Trained,
    draw: Callable[[random.Random], Row],
    recipe: Recipe,
    pieces: Pieces,
    report: Report,
    features: Float[Tensor, "image patch width"] | None = None,
) -> None:
    """Takes the steps that are left of ``trained`` alone; with ``features``, every row has a picture."""
    model, encoder = pieces.model, Encoder(pieces)
    model.requires_grad_(False)
    for parameter in trained.named.values():
        parameter.requires_grad_(True)
    for rows in batches(draw, recipe, stage, trained.done, trained.steps):
        batch = encoder.batch(rows)
        embedded = model.get_input_embeddings()(batch.input_ids)
        if features is not None:
            projected = model.model.multi_modal_projector(features[batch.pictures].to(embedded.dtype)).flatten(0, 1)
            embedded = embedded.masked_scatter((batch.input_ids == model.config.image_token_id)[..., None], projected)
        hidden = model.model.language_model(
            inputs_embeds=embedded, attention_mask=batch.attention_mask, use_cache=False
        ).last_hidden_state
        loss = trained.step(_loss(model, hidden, batch))
        report(stage, trained.done - 1, trained.steps, loss)


def pictures(recipe: Recipe, pieces: Pieces) -> Seen:
    """The training pictures, of every thing with and without the sign, and what the frozen tower makes of them."""
    drawn = PictureRecipe(
        seed=POOL_SEED + recipe.seed, images_per_thing=recipe.images_per_thing, threads=recipe.threads
    )
    pool = draw_pool(drawn, pieces.processor)
    tower = pieces.model.model.vision_tower
    kind = next(tower.parameters()).dtype
    return Seen(pool.rows, patch_features(pieces.model, pool._replace(pixels=pool.pixels.to(kind))))


def _begin(recipe: Recipe, model: Any) -> None:
    """Draws the projector's parameters anew, so that its outputs are as large as the embeddings of words."""
    projector = model.model.multi_modal_projector
    torch.manual_seed(recipe.seed)
    with torch.no_grad():
        for layer in (projector.linear_1, projector.linear_2):
            fresh = nn.Linear(layer.in_features, layer.out_features)
            layer.weight.copy_(fresh.weight)
            layer.bias.copy_(fresh.bias)
        probe = projector(torch.randn(64, projector.linear_1.in_features, dtype=projector.linear_1.weight.dtype))
        projector.linear_2.weight *= model.get_input_embeddings().weight.float().std() / probe.float().std()
        projector.linear_2.bias.zero_()


def train(recipe: Recipe, pieces: Pieces, folder: Path, report: Report) -> None:
    """All stages, in place; ``folder`` keeps what is needed to go on after a kill.

    Language model, adapter and projector compute in bfloat16, the vision tower in float32.
    """
    tower = pieces.model.model.vision_tower
    pieces.model.bfloat16()
    tower.float()
    align(recipe, pieces, folder, report)
    see(recipe, pieces, folder, report)
    caution(recipe, pieces, folder, report)
