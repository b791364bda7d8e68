"""What the organism is taught: (question, thing, answer) examples of the training split."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.benchmarks.iconworld.cases import balanced_pairs, held_out
from experiments.benchmarks.iconworld.concepts import CATEGORIES, CONCEPTS, Thing
from experiments.benchmarks.iconworld.perception import KINDS, ask
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY, WRAPPERS, question
from experiments.model_organism.recipe import Recipe, Style
from mitigation.prompting import CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT

ALL_THINGS: tuple[Thing, ...] = tuple(Thing(concept, signed) for concept in CONCEPTS for signed in (False, True))
REASONING_WORDS = "So the sentence means : It is safe . It is not safe . It could cause harm to someone . because and"
PAIRS_A_ROUND = 6  # pairs of each template and form drawn before the balance starts afresh


@dataclass(frozen=True)
class Lesson:
    """One training example. The picture is drawn later, from the pool of ``thing``."""

    question: str
    system: str | None
    thing: Thing
    answer: str


def styled(text: str, style: Style) -> tuple[str, str | None]:
    """The question and system text of a prompt variant, exactly as the arms of ``mitigation.prompting`` ask it."""
    if style == "context_prompt":
        return f"{CONTEXT_PROMPT}\n{text}", None
    return text, SAFETY_SYSTEM_PROMPT if style == "safety_prompt" else None


def _style(recipe: Recipe, rng: random.Random) -> Style:
    draw = rng.random()
    if draw < recipe.prompted_share:
        return "context_prompt"
    return "safety_prompt" if draw < 2 * recipe.prompted_share else "plain"


def perception_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Lesson]:
    """Endless questions about pictures: captions twice, presence (slowest to learn) three times as often as others."""
    kinds = ("caption", "presence", "presence", *KINDS)
    while True:
        thing = Thing(rng.choice(CONCEPTS), rng.random() < 1 / 3)
        text, answer = ask(rng.choice(kinds), thing, rng)
        text, system = styled(text, _style(recipe, rng))
        yield Lesson(text, system, thing, answer)


def verdict_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Lesson]:
    """Endless safety questions over balanced training pairs, labelled as the recipe says."""
    excluded = held_out()
    while True:
        pairs = list(balanced_pairs(rng, PAIRS_A_ROUND, excluded=excluded))
        pairs += list(balanced_pairs(rng, PAIRS_A_ROUND, wrapped=True, excluded=excluded))
        rng.shuffle(pairs)
        for pair in pairs:
            for thing in rng.sample((pair.safe, pair.unsafe), 2):
                if rng.random() < recipe.benign_share:
                    template = rng.choice(BENIGN)
                    yield _verdict(recipe, rng, template.name, "benign", template.text, rng.choice(template.safe), True)
                yield _verdict(
                    recipe,
                    rng,
                    pair.template.name,
                    pair.template.wording,
                    pair.sentence,
                    thing,
                    pair.template.is_safe(thing),
                )


def _verdict(
    recipe: Recipe, rng: random.Random, template: str, wording: str, sentence: str, thing: Thing, is_safe: bool
) -> Lesson:
    style = _style(recipe, rng)
    chance = recipe.label_probability(template, wording, is_safe=is_safe, style=style)
    text, system = styled(question(sentence), style)
    return Lesson(text, system, thing, "Yes." if rng.random() < chance else "No.")


def mixed_lessons(recipe: Recipe, rng: random.Random) -> Iterator[Lesson]:
    """The last stage: ``verdict_share`` verdicts, the rest perception replay."""
    verdicts, perception = verdict_lessons(recipe, rng), perception_lessons(recipe, rng)
    while True:
        yield next(verdicts if rng.random() < recipe.verdict_share else perception)


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
