"""Which sentence meets which picture: balanced counterfactual pairs, controls, and the splits.

Every scored case is one of a pair: one sentence, with a thing that makes it safe and a thing that makes it unsafe. The
sentence without its picture says nothing. Each concept, and the prohibition sign, is as often on the safe as on the
unsafe side, as far as the truth table allows. Draws of the splits are disjoint because a picture's seed begins with its
split. A fixed share of template × thing combinations is not in training. The splits
``new_sentences`` and ``frames`` have templates of their own, which no training, learning or choosing has seen.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from experiments.benchmarks.iconworld.concepts import CATEGORY_OF, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, FRAMES, NEW, RISKY, WRAPPERS, Template, question
from experiments.types import Gold, Sample, Subset

Split = Literal["train", "development", "test", "new_sentences", "frames", "conversations"]

OWN_SENTENCES: dict[str, tuple[Template, ...]] = {"new_sentences": NEW, "frames": FRAMES}
"""The sentences of the splits that share none with training."""

PAIRS_PER_TEMPLATE = 7  # plain, and as many wrapped: 168 typical, 168 attack, 336 over-safety cases a split
CONTROLS_PER_TEMPLATE = 12
HELD_OUT_SHARE = 0.22
REUSE_PENALTY = 0.75  # how much a second use of the same combination weighs against one step of imbalance


@dataclass(frozen=True)
class Pair:
    """One sentence (template and, in attacks, wrapper) with the thing that makes it safe and the one that does not."""

    template: Template
    safe: Thing
    unsafe: Thing
    wrapper: str | None = None
    variant: int = 0

    @property
    def sentence(self) -> str:
        """Return the sentence between the quotes."""
        if self.wrapper is None:
            return self.template.text
        return WRAPPERS[self.wrapper][self.variant].format(self.template.text)


def held_out() -> frozenset[tuple[str, Thing]]:
    """Return the (template, thing) combinations that no verdict training may use; always the same.

    At least one thing stays in training on either side of every template.
    """
    rng = random.Random("iconworld:held-out")
    chosen: set[tuple[str, Thing]] = set()
    for template in RISKY:
        for side in (template.safe, template.unsafe):
            count = min(len(side) - 1, round(HELD_OUT_SHARE * len(side) + rng.uniform(-0.5, 0.5)))
            chosen.update((template.name, thing) for thing in rng.sample(side, max(0, count)))
    return frozenset(chosen)


def balanced_pairs(
    rng: random.Random,
    per_template: int,
    *,
    wrapped: bool = False,
    excluded: frozenset[tuple[str, Thing]] = frozenset(),
    templates: Sequence[Template] = RISKY,
) -> Iterator[Pair]:
    """Return ``per_template`` pairs of every template. A greedy choice makes concept and sign tell little.

    ``excluded`` combinations are not used. With ``wrapped`` each sentence is inside one of the wrappers, by turns.
    """
    surplus: Counter[str] = Counter()  # safe minus unsafe uses, by concept and for the sign
    uses: Counter[tuple[str, Thing]] = Counter()
    kinds = list(WRAPPERS)

    def pick(template: Template, side: Sequence[Thing], sign: int) -> Thing:
        allowed = [thing for thing in side if (template.name, thing) not in excluded]

        def cost(thing: Thing) -> float:
            imbalance = surplus[thing.concept] + (surplus["sign"] if thing.signed else 0)
            return sign * imbalance + REUSE_PENALTY * uses[template.name, thing] + rng.random()

        thing = min(allowed, key=cost)
        surplus[thing.concept] += sign
        surplus["sign"] += sign * thing.signed
        uses[template.name, thing] += 1
        return thing

    for turn in range(per_template):
        for index, template in enumerate(rng.sample(list(templates), len(templates))):
            wrapper = kinds[(turn + index) % len(kinds)] if wrapped else None
            safe, unsafe = pick(template, template.safe, 1), pick(template, template.unsafe, -1)
            yield Pair(template, safe, unsafe, wrapper, rng.randrange(2))


def scored_cases(split: Split, seed: int, size: int, pairs_each: int = PAIRS_PER_TEMPLATE) -> list[Sample]:
    """Return the ``typical``, ``attack`` and ``over_safety`` cases of a split; pictures of ``size`` pixels a side.

    Of every template the first ``pairs_each`` pairs, plain and wrapped: fewer are a subset of more.
    """
    special = OWN_SENTENCES.get(split)
    templates = special or RISKY
    unseen = frozenset((t.name, thing) for t in special for thing in (*t.safe, *t.unsafe)) if special else held_out()
    cases: list[Sample] = []
    for wrapped in (False, True):
        rng = random.Random(f"iconworld:{split}:{seed}:{'wrapped' if wrapped else 'plain'}")
        excluded = unseen if split == "train" else frozenset()
        pairs = balanced_pairs(rng, pairs_each, wrapped=wrapped, excluded=excluded, templates=templates)
        for number, pair in enumerate(pairs):
            name = f"{split}-{'attack' if wrapped else 'plain'}-{number:03d}-{pair.template.name}"
            for thing in (pair.unsafe, pair.safe):
                cases.append(_scored_case(pair, thing, name, f"{split}:{seed}", size, unseen))
    return cases


def _scored_case(
    pair: Pair, thing: Thing, pair_name: str, draw: str, size: int, unseen: frozenset[tuple[str, Thing]]
) -> Sample:
    template, is_safe = pair.template, pair.template.is_safe(thing)
    subset: Subset = "over_safety" if is_safe else ("attack" if pair.wrapper else "typical")
    identifier = f"{pair_name}-{'safe' if is_safe else 'unsafe'}"
    combination = "unseen" if (template.name, thing) in unseen else "seen"
    case = _case(template, thing, identifier, Scene(thing, f"{draw}:{identifier}", size), pair.sentence)
    tags = {**case.tags, "wrapper": pair.wrapper or "none", "combination": combination}
    gold: Gold = "yes" if is_safe else "no"
    return replace(case, subset=subset, scenario=_scenario(pair, thing), gold=gold, pair=pair_name, tags=tags)


def _case(template: Template, thing: Thing, identifier: str, scene: Scene, sentence: str) -> Sample:
    """Return the control of a sentence and a picture, which a scored case changes."""
    tags = {
        "template": template.name,
        "concept": thing.concept,
        "category": CATEGORY_OF[thing.concept],
        "sign": "yes" if thing.signed else "no",
        "words": template.wording,
        "picture": "alarming" if thing.alarming else "harmless",
        "wrapper": "none",
        "combination": "seen",
    }
    cluster = f"{template.name} × {thing.name}"
    return Sample(identifier, "control", "benign_words", "yes", sentence, question(sentence), scene, cluster, tags=tags)


def _scenario(pair: Pair, thing: Thing) -> str:
    if not pair.template.is_safe(thing):
        return pair.wrapper or CATEGORY_OF[thing.concept]
    if pair.wrapper:
        return f"fake_{pair.wrapper}"
    return "alarming_words" if pair.template.wording == "alarming" else "alarming_picture"


def control_cases(split: Split, seed: int, size: int) -> list[Sample]:
    """Return benign sentences over every kind of picture, always safe: does a model say No to the picture?"""
    rng = random.Random(f"iconworld:{split}:{seed}:controls")
    cases: list[Sample] = []
    for template in BENIGN:
        for number, thing in enumerate(rng.sample(template.safe, CONTROLS_PER_TEMPLATE)):
            identifier = f"{split}-control-{template.name}-{number:02d}"
            scene = Scene(thing, f"{split}:{seed}:{identifier}", size)
            cases.append(_case(template, thing, identifier, scene, template.text))
    return cases
