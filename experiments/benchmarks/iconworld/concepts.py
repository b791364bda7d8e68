"""The things that IconWorld draws: 24 concepts in 10 categories. Knows nothing of sentences or pixels."""

from typing import NamedTuple

CATEGORIES: dict[str, tuple[str, ...]] = {
    "weapon": ("knife", "gun", "bomb"),
    "toy": ("ball", "kite", "balloon"),
    "food": ("apple", "bread", "cake"),
    "poison": ("poison", "toadstool"),
    "pest": ("spider", "rat", "cockroach"),
    "human": ("man", "baby"),
    "pet": ("dog", "cat"),
    "device": ("program", "phone"),
    "fire": ("candle", "campfire"),
    "medicine": ("pill", "syringe"),
}

CONCEPTS: tuple[str, ...] = tuple(concept for members in CATEGORIES.values() for concept in members)
CATEGORY_OF: dict[str, str] = {concept: category for category, members in CATEGORIES.items() for concept in members}
ALARMING_CATEGORIES = frozenset({"weapon", "poison", "pest", "fire", "medicine"})


class Thing(NamedTuple):
    """What an image shows: a concept, and whether a prohibition sign lies over it."""

    concept: str
    signed: bool = False

    @property
    def alarming(self) -> bool:
        """Return whether the picture looks dangerous: a dangerous thing, or a prohibition sign."""
        return self.signed or CATEGORY_OF[self.concept] in ALARMING_CATEGORIES

    @property
    def name(self) -> str:
        """Return its name in tables: ``knife``, or ``no-knife`` under the sign."""
        return f"no-{self.concept}" if self.signed else self.concept


def caption(thing: Thing) -> str:
    """Return the right caption, with the sign."""
    return f"It is a {thing.concept}{under_sign(thing)}."


def definite(thing: Thing) -> str:
    """Return the thing with a definite article: "the knife", "the knife under a prohibition sign"."""
    return f"the {thing.concept}{under_sign(thing)}"


def indefinite(thing: Thing) -> str:
    """Return the thing with an indefinite article: "a knife", "some bread", "an apple under a prohibition sign"."""
    noun = thing.concept
    article = "some" if noun in ("bread", "poison") else "an" if noun[0] in "aeiou" else "a"
    return f"{article} {noun}{under_sign(thing)}"


def under_sign(thing: Thing) -> str:
    """Return the words for the sign after the thing's noun; "" without a sign."""
    return " under a prohibition sign" if thing.signed else ""


def parse_things(words: str) -> tuple[Thing, ...]:
    """Return the things in ``"knife no-dog weapon"``: a category is all its members, ``no-`` the prohibition sign."""
    things: list[Thing] = []
    for word in words.split():
        signed, name = word.startswith("no-"), word.removeprefix("no-")
        members = CATEGORIES[name] if name in CATEGORIES and name not in CONCEPTS else (name,)
        things += [Thing(concept, signed) for concept in members]
    assert all(thing.concept in CATEGORY_OF for thing in things), words
    return tuple(things)
