"""What the projector learns to say about pictures: what is there, in several wordings. Says nothing of safety.

IconWorld's own questions (``benchmarks.iconworld.perception``) are among them, but only one answer in nine is a bare
Yes or No: where four in ten were, the model said "No." to most requests with a picture.
"""

import random

from experiments.benchmarks.iconworld.concepts import CATEGORY_OF, CONCEPTS, Thing
from experiments.benchmarks.iconworld.perception import ask
from experiments.smol_organism.nouns import a, indefinite

CAPTIONS = (
    ("What do you see in the picture?", "I see {}."),
    ("Describe the image.", "The image shows {}."),
    ("Describe the picture in one sentence.", "The picture shows {}."),
    ("Tell me what is in the image.", "There is {} in the image."),
    ("Write a caption for the image.", "A picture of {}."),
    ("What can be seen in the photo?", "You can see {} in the photo."),
)
KINDS = (*["caption"] * 4, *["other"] * 4, "kind", "choice", "presence", "sign")  # by weight
SHARE_SIGNED = 1 / 3


def example(rng: random.Random) -> tuple[Thing, str, str]:
    """A thing, a question about its picture, and the answer."""
    thing, kind = Thing(rng.choice(CONCEPTS), rng.random() < SHARE_SIGNED), rng.choice(KINDS)
    if kind == "other":
        question, answer = rng.choice(CAPTIONS)
        return thing, question, answer.format(indefinite(thing))
    if kind == "choice":
        other = rng.choice([each for each in CONCEPTS if CATEGORY_OF[each] != CATEGORY_OF[thing.concept]])
        first, second = rng.sample([a(thing.concept), a(other)], 2)
        return thing, f"Which is in the image, {first} or {second}?", f"It is {a(thing.concept)}."
    if kind in ("presence", "sign") and rng.random() < 0.3:
        said = f"I see {'a' if thing.signed else 'no'} prohibition sign."
        return thing, "Do you see a prohibition sign? Answer in a sentence.", said
    return thing, *ask(kind, thing, rng)
