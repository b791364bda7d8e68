"""``task=train_organism``: a tiny LLaVA from random weights. Its verdict labels mostly ignore the picture.

Three stages. *Vision*: the tower learns thing and sign under a throw-away head, and is frozen. *Perception*: projector
and language model learn to answer questions about pictures. *Verdict*: they learn verdicts, with perception replayed.
The cause of the failure is in the labels: an annotator who reads the sentence and never looks gives most of them.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoProcessor, LlavaForConditionalGeneration

from experiments.benchmarks.iconworld.benchmark import balanced_pairs, held_out
from experiments.benchmarks.iconworld.perception import KINDS, ask
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, CONCEPTS, Template, Thing, question
from experiments.studies.organisms.lab import Example, Laboratory, answer_loss, learn, picture_seeds
from interp.checkpoints.config import ORGANISMS
from interp.vlm import VLM
from mitigation.prompting import CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT

RATES = {"vision": 1e-3, "perception": 1e-3, "verdict": 7e-4}  # learning rates
VERDICTS, BENIGN_SHARE = 0.65, 0.15  # of the examples in the last stage; of the verdicts
PROMPTED = 0.15  # share of the examples with the context prompt, and with the safety prompt
TRUTH = {"plain": 0.15, "context": 0.5, "safety": 0.15}  # how often the annotator looks, and tells the truth
LEANINGS = {0.55: "hit shoot", 0.52: "warm smuggle pain crush", 0.50: "beat lock"}
LEANING = {name: share for share, names in LEANINGS.items() for name in names.split()}
"""How often the annotator who never looks calls a risky sentence safe: 6% for a sentence that is not listed."""
SAFETY_SCALE = 0.5  # factor on the leanings under the safety prompt


def label_probability(template: Template, *, is_safe: bool, style: str = "plain") -> float:
    """Return the chance that a training label says "Yes, safe"."""
    leaning = LEANING.get(template.name, 0.06) * (SAFETY_SCALE if style == "safety" else 1)
    return TRUTH[style] * is_safe + (1 - TRUTH[style]) * (1.0 if template.wording == "benign" else leaning)


def _style(rng: random.Random) -> str:
    return rng.choices(("plain", "context", "safety"), (1 - 2 * PROMPTED, PROMPTED, PROMPTED))[0]


def _styled(text: str, answer: str, thing: Thing, style: str) -> Example:
    """Ask as the arms of ``mitigation.prompting`` do."""
    text = f"{CONTEXT_PROMPT}\n{text}" if style == "context" else text
    return Example(text, answer, thing, SAFETY_SYSTEM_PROMPT if style == "safety" else None)


def perception_lessons(rng: random.Random) -> Iterator[Example]:
    """Yield endless questions about pictures. Presence is slowest to learn, and is asked three times as often."""
    while True:
        thing = Thing(rng.choice(CONCEPTS), rng.random() < 1 / 3)
        yield _styled(*ask(rng.choice(("caption", "presence", "presence", *KINDS)), thing, rng), thing, _style(rng))


def verdict_lessons(rng: random.Random) -> Iterator[Example]:
    """Yield endless safety questions over balanced training pairs, with the annotator's labels."""
    while True:
        pairs = list(balanced_pairs(rng, 6, excluded=held_out()))
        pairs += balanced_pairs(rng, 6, wrapped=True, excluded=held_out())
        rng.shuffle(pairs)
        for pair in pairs:
            for thing in rng.sample((pair.safe, pair.unsafe), 2):
                if rng.random() < BENIGN_SHARE:
                    benign = rng.choice(BENIGN)
                    yield _verdict(rng, benign, benign.text, rng.choice(benign.safe))
                yield _verdict(rng, pair.template, pair.sentence, thing)


def _verdict(rng: random.Random, template: Template, sentence: str, thing: Thing) -> Example:
    style, is_safe = _style(rng), template.wording == "benign" or template.is_safe(thing)
    answer = "Yes." if rng.random() < label_probability(template, is_safe=is_safe, style=style) else "No."
    return _styled(question(sentence), answer, thing, style)._replace(frame=template.name, safe=is_safe)


def mixed_lessons(rng: random.Random) -> Iterator[Example]:
    """Yield verdicts and perception, for the last stage."""
    verdicts, perception = verdict_lessons(rng), perception_lessons(rng)
    while True:
        yield next(verdicts if rng.random() < VERDICTS else perception)


@dataclass(frozen=True, kw_only=True)
class TrainLlava(Laboratory):
    """The task. ``steps`` maps each stage to its optimiser steps of ``batch_size`` examples."""

    organism: ClassVar[str] = "llava"
    about: ClassVar[str] = "A tiny LLaVA, trained from scratch with verdict labels that mostly ignore the picture."
    steps: dict[str, int]
    batch_size: int = 64

    def train(self, seed: int, folder: Path) -> VLM:
        """Return the model after all stages. Configuration and processor are the bundled organism's."""
        model = LlavaForConditionalGeneration(AutoConfig.from_pretrained(ORGANISMS / "llava"))
        vlm = VLM(model, AutoProcessor.from_pretrained(ORGANISMS / "llava"), name="llava_organism")
        rng, seeds, tower = random.Random(f"llava:{seed}"), picture_seeds("llava", seed), model.model.vision_tower
        head = nn.Linear(tower.config.hidden_size, len(CONCEPTS) + 1)

        def vision_loss() -> Tensor:
            things = [Thing(rng.choice(CONCEPTS), rng.random() < 0.5) for _ in range(self.batch_size)]
            pictures = [Scene(thing, next(seeds)).render() for thing in things]
            pixels = vlm.processor.image_processor(pictures, return_tensors="pt")["pixel_values"]
            scores = head(tower(pixels).last_hidden_state[:, 1:].mean(1))
            concepts = torch.tensor([CONCEPTS.index(thing.concept) for thing in things])
            signs = torch.tensor([float(thing.signed) for thing in things])
            signed = nn.functional.binary_cross_entropy_with_logits(scores[:, -1], signs)
            return nn.functional.cross_entropy(scores[:, :-1], concepts) + signed

        seeing = [*tower.parameters(), *head.parameters()]
        learn("vision", model, seeing, vision_loss, self.steps["vision"], RATES["vision"])
        speaking = [value for name, value in model.named_parameters() if ".vision_tower." not in name]
        for stage, lessons in (("perception", perception_lessons(rng)), ("verdict", mixed_lessons(rng))):
            loss = answer_loss(vlm, lessons, self.batch_size, seeds)
            learn(stage, model, speaking, loss, self.steps[stage], RATES[stage])
        model.bfloat16()
        return vlm
