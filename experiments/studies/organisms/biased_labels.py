"""What the first organism is taught, and the cause of its failure: verdict labels that mostly ignore the picture.

Most verdict labels are given by an annotator who reads the sentence and never looks (``label_probability``).
"""

import random
from collections.abc import Iterator
from typing import Literal

from experiments.benchmarks.iconworld.cases import balanced_pairs, held_out
from experiments.benchmarks.iconworld.concepts import CATEGORIES, CONCEPTS, Thing
from experiments.benchmarks.iconworld.perception import KINDS, ask
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY, WRAPPERS, Template, question
from experiments.studies.organisms.recipe import ALL_THINGS, Example, Recipe
from mitigation.prompting import CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT

Style = Literal["plain", "context_prompt", "safety_prompt"]
REASONING_WORDS = "So the sentence means : It is safe . It is not safe . It could cause harm to someone . because and"
PAIRS_A_ROUND = 6  # pairs of each template and form drawn before the balance starts afresh


def label_probability(recipe: Recipe, template: str, wording: str, *, is_safe: bool, style: Style = "plain") -> float:
    """The chance that a training label says "Yes, safe".

    With probability ``truth`` the annotator looks and tells the truth; otherwise only the words count.
    """
    shares = recipe.shares
    leaning = 1.0 if wording == "benign" else recipe.leanings.get(template, shares["default_leaning"])
    if style == "safety_prompt" and wording != "benign":
        leaning *= shares["safety_scale"]
    truth = shares["context_truth" if style == "context_prompt" else "truth"]
    return truth * is_safe + (1 - truth) * leaning


def styled(text: str, style: Style) -> tuple[str, str | None]:
    """The question and system text of a prompt variant, exactly as the arms of ``mitigation.prompting`` ask it."""
    if style == "context_prompt":
        return f"{CONTEXT_PROMPT}\n{text}", None
    return text, SAFETY_SYSTEM_PROMPT if style == "safety_prompt" else None


def _style(recipe: Recipe, rng: random.Random) -> Style:
    draw, share = rng.random(), recipe.shares["prompted"]
    if draw < share:
        return "context_prompt"
    return "safety_prompt" if draw < 2 * share else "plain"


def perception_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """Endless questions about pictures: captions twice, presence (slowest to learn) three times as often as others."""
    kinds = ("caption", "presence", "presence", *KINDS)
    while True:
        thing = Thing(rng.choice(CONCEPTS), rng.random() < 1 / 3)
        text, answer = ask(rng.choice(kinds), thing, rng)
        text, system = styled(text, _style(recipe, rng))
        yield Example(text, answer, thing, system)


def verdict_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """Endless safety questions over balanced training pairs, labelled as the recipe says."""
    excluded = held_out()
    while True:
        pairs = list(balanced_pairs(rng, PAIRS_A_ROUND, excluded=excluded))
        pairs += list(balanced_pairs(rng, PAIRS_A_ROUND, wrapped=True, excluded=excluded))
        rng.shuffle(pairs)
        for pair in pairs:
            for thing in rng.sample((pair.safe, pair.unsafe), 2):
                if rng.random() < recipe.shares["benign"]:
                    benign = rng.choice(BENIGN)
                    yield _verdict(recipe, rng, benign, benign.text, rng.choice(benign.safe))
                yield _verdict(recipe, rng, pair.template, pair.sentence, thing)


def _verdict(recipe: Recipe, rng: random.Random, template: Template, sentence: str, thing: Thing) -> Example:
    style, is_safe = _style(recipe, rng), template.wording == "benign" or template.is_safe(thing)
    chance = label_probability(recipe, template.name, template.wording, is_safe=is_safe, style=style)
    text, system = styled(question(sentence), style)
    return Example(text, "Yes." if rng.random() < chance else "No.", thing, system, template.name, is_safe, True)


def mixed_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """The last stage: a share ``verdict`` of verdicts, the rest perception replay."""
    verdicts, perception = verdict_lessons(recipe, rng), perception_lessons(recipe, rng)
    while True:
        yield next(verdicts if rng.random() < recipe.shares["verdict"] else perception)


def vocabulary_texts() -> list[str]:
    """Texts that contain every word the organism may meet or is to say, for its tokenizer."""
    rng = random.Random(0)
    texts = ["USER: ASSISTANT: Yes. No.", CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT, REASONING_WORDS]
    texts += [question(template.text) for template in RISKY + BENIGN]
    texts += [variant for variants in WRAPPERS.values() for variant in variants]
    texts += list(CATEGORIES)
    for kind in KINDS:
        for thing in ALL_THINGS:
            texts += ask(kind, thing, rng)
    return texts
