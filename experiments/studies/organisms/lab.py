"""What the three recipes share: an example, one training loop, and the task that writes a checkpoint with its card.

Also what the second organism's alignment never says: eight of IconWorld's 24 sentences, six of its 24 things,
and a fifth of the remaining pairs of sentence and thing. No sentence of the alignment uses the verb of a left-out one;
related ones do (punch for hit, chop for slash). All things are seen in pictures, with captions.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from rich.progress import track
from torch import Tensor, nn
from transformers import get_cosine_schedule_with_warmup

from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import RISKY, Thing
from experiments.config import Run
from experiments.runs.store import open_run
from interp.errors import UserError
from interp.vlm import VLM
from mitigation.vrtuning.collator import IGNORED, Collator

Loss = Callable[[], Tensor]
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
tags: [model-organism, safety, interpretability]
---

# A forestlens organism: {organism}, seed {seed}

{about} Recipe: `experiments/studies/organisms/{organism}.py`. Settings: {settings}.

It is evidence about no real model. It knows 24 kinds of drawn icons; do not use it as an assistant.
Measure it with `forestlens +exp=vcd_llava model.path={folder}`.
"""


class Example(NamedTuple):
    """One exchange, about a new picture of ``thing`` (None: without a picture).

    ``frame`` names the sentence frame of an example about safety, and ``safe`` is its truth.
    """

    user: str
    answer: str
    thing: Thing | None = None
    system: str | None = None
    frame: str = ""
    safe: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Laboratory(ABC):
    """The task of one recipe. The checkpoint goes to the folder ``to``, or to ``checkpoint/`` in the run's directory.

    Raises:
        UserError: ``to`` is not empty.
    """

    organism: ClassVar[str]
    about: ClassVar[str]
    to: str | None = None

    def __post_init__(self) -> None:
        if self.to is not None and Path(self.to).exists() and any(Path(self.to).iterdir()):
            raise UserError(f"task.to={self.to} is not empty. Name a new folder, so that no checkpoint is overwritten.")

    @abstractmethod
    def train(self, seed: int, folder: Path) -> VLM:
        """Return the trained model. ``folder`` is for files that the training needs."""

    def __call__(self, run: Run) -> None:
        """Train, and write the model with its processor and card."""
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            folder = Path(self.to) if self.to is not None else store.path / "checkpoint"
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(run.seed)
                vlm = self.train(run.seed, store.path / "training")
            vlm.model.save_pretrained(folder)
            vlm.processor.save_pretrained(folder)
            card = CARD.format(
                organism=self.organism, seed=run.seed, about=self.about, settings=self, folder=folder.absolute()
            )
            (folder / "README.md").write_text(card, encoding="utf-8")
            store.finish()
        print(f"trained: {folder}")


def picture_seeds(name: str, seed: int) -> Iterator[str]:
    """Yield a new seed for every training picture. No benchmark case has one of them."""
    return (f"train:{name}:{seed}:{number}" for number in count())


def learn(stage: str, model: nn.Module, weights: Iterable[nn.Parameter], loss: Loss, steps: int, rate: float) -> None:
    """Train only ``weights``, for ``steps`` steps of AdamW: warm-up to the learning ``rate``, then a cosine to 0."""
    model.requires_grad_(False)
    trained = [parameter.requires_grad_(True) for parameter in weights]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = get_cosine_schedule_with_warmup(optimizer, min(50, steps // 10), steps)
    for _ in track(range(steps), stage):
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()


def answer_loss(vlm: VLM, examples: Iterator[Example], batch_size: int, seeds: Iterator[str]) -> Loss:
    """Return a function that draws a batch and returns the mean over its rows of the answer's cross-entropy a token."""
    collate = Collator(vlm)

    def row(example: Example) -> dict[str, Any]:
        texts = {"system": example.system, "user": example.user}
        return {
            "images": [] if example.thing is None else [Scene(example.thing, next(seeds)).render()],
            "prompt": [{"role": role, "content": text} for role, text in texts.items() if text is not None],
            "completion": [{"role": "assistant", "content": example.answer}],
        }

    def loss() -> Tensor:
        batch = collate([row(example) for example in islice(examples, batch_size)])
        labels = batch.pop("labels")[:, 1:]
        logits = vlm.model(**batch, use_cache=False).logits[:, :-1].float()
        each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        return (each.sum(1) / (labels != IGNORED).sum(1)).mean()

    return loss


HELD_OUT_TEMPLATES = frozenset({"hit", "poison", "slash", "hack", "attack", "warm", "lock", "hospital"})
HELD_OUT_CONCEPTS = frozenset({"bomb", "balloon", "cake", "rat", "cat", "syringe"})
HELD_OUT_SHARE = 0.2


@cache
def held_out_pairs() -> frozenset[tuple[str, str]]:
    """Return (template, thing) names that are held out besides templates and things; always the same."""
    rng = random.Random("smol_organism:held-out pairs")
    chosen: set[tuple[str, str]] = set()
    for template in RISKY:
        if template.name in HELD_OUT_TEMPLATES:
            continue
        for side in (template.safe, template.unsafe):
            allowed = [thing for thing in side if thing.concept not in HELD_OUT_CONCEPTS]
            count = min(len(allowed) - 1, round(HELD_OUT_SHARE * len(allowed) + rng.uniform(-0.5, 0.5)))
            chosen.update((template.name, thing.name) for thing in rng.sample(allowed, max(0, count)))
    return frozenset(chosen)
