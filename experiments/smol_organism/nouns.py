"""The nouns of the alignment: some two hundred, by category. IconWorld's concepts are among them.

Categories of IconWorld keep their names and meaning; the others make the rules of ``frames`` about more than its world.
"""

from experiments.benchmarks.iconworld.concepts import CATEGORIES as ICONS
from experiments.benchmarks.iconworld.concepts import Thing, under_sign

_NOUNS: dict[str, str] = {
    "weapon": "knife, gun, bomb, sword, rifle, pistol, dagger, grenade, machete, spear, crossbow, landmine, missile, "
    "shotgun, bayonet, hand axe",
    "toy": "ball, kite, balloon, doll, teddy bear, puzzle, yo-yo, frisbee, toy car, jump rope, board game, "
    "spinning top, rubber duck, toy train, puppet, scooter",
    "food": "apple, bread, cake, banana, pizza, sandwich, carrot, cheese, soup, cookie, salad, orange, potato, pear, "
    "pie, tomato, pancake, sausage, rice, egg, walnut, coconut",
    "poison": "poison, toadstool, bleach, arsenic, cyanide, pesticide, antifreeze, weed killer, drain cleaner, "
    "paint thinner, hemlock, insecticide, ammonia, lye",
    "pest": "spider, rat, cockroach, mosquito, wasp, termite, flea, ant, bedbug, fly, moth, tick, mouse, "
    "maggot, hornet",
    "human": "man, baby, woman, child, boy, girl, neighbour, teacher, student, old lady, grandfather, sister, brother, "
    "colleague, toddler, teenager",
    "pet": "dog, cat, rabbit, hamster, puppy, parrot, goldfish, guinea pig, horse, pony, turtle, canary",
    "device": "program, phone, laptop, computer, tablet, printer, router, television, camera, server, game console",
    "fire": "candle, campfire, torch, fireplace, bonfire, lantern, gas stove, oil lamp",
    "medicine": "pill, syringe, aspirin, cough syrup, antibiotic, vaccine, insulin, painkiller, ointment, inhaler, "
    "vitamin tablet",
    "furniture": "chair, table, sofa, bed, shelf, desk, wardrobe, mirror, bench",
    "vehicle": "car, bicycle, bus, truck, boat, motorcycle, van, tractor",
    "plant": "rose, tree, tulip, bush, fern, sunflower",
    "clothing": "shirt, hat, shoe, jacket, scarf, sock, dress, glove",
    "document": "book, letter, newspaper, diary, map, contract, poem, painting",
    "tool": "hammer, ladder, saw, screwdriver, shovel, drill, broom",
    "place": "bank, church, library, museum, bridge, factory",
}
NOUNS: dict[str, tuple[str, ...]] = {name: tuple(text.split(", ")) for name, text in _NOUNS.items()}
CATEGORY_OF: dict[str, str] = {noun: category for category, nouns in NOUNS.items() for noun in nouns}
assert all(CATEGORY_OF[concept] == category for category, concepts in ICONS.items() for concept in concepts)

_WITHOUT_ARTICLE = frozenset(
    [
        "bread",
        "soup",
        "cheese",
        "rice",
        "poison",
        "bleach",
        "arsenic",
        "cyanide",
        "pesticide",
        "antifreeze",
        "hemlock",
        "insecticide",
        "ammonia",
        "lye",
        "insulin",
        "aspirin",
        "ointment",
    ]
) | {"weed killer", "drain cleaner", "paint thinner", "cough syrup"}
_PLURALS = {
    "knife": "knives",
    "man": "men",
    "woman": "women",
    "child": "children",
    "mouse": "mice",
    "baby": "babies",
    "puppy": "puppies",
    "pony": "ponies",
    "canary": "canaries",
    "fly": "flies",
    "old lady": "old ladies",
    "goldfish": "goldfish",
    "shelf": "shelves",
    "tomato": "tomatoes",
    "potato": "potatoes",
    "diary": "diaries",
    "factory": "factories",
    "library": "libraries",
    "church": "churches",
    "bush": "bushes",
    "bus": "buses",
    "torch": "torches",
    "sandwich": "sandwiches",
    "dress": "dresses",
    "box": "boxes",
}


def a(noun: str) -> str:
    """``a knife``, ``an apple``, ``some bread``."""
    if noun in _WITHOUT_ARTICLE:
        return f"some {noun}"
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def indefinite(thing: Thing) -> str:
    """A drawn thing as something new: ``an apple``, ``a knife under a prohibition sign``."""
    return f"{a(thing.concept)}{under_sign(thing)}"


def plural(noun: str) -> str:
    """``knives``; what is not counted stays as it is."""
    if noun in _WITHOUT_ARTICLE:
        return noun
    return _PLURALS.get(noun, f"{noun}s")


def parse(words: str) -> tuple[str, ...]:
    """``"pest, -moth, old lady"`` → nouns: a category stands for its members, a minus takes one out again."""
    chosen: list[str] = []
    for word in (part.strip() for part in words.split(",") if part.strip()):
        if word.startswith("-"):
            chosen.remove(word.removeprefix("-"))
        elif word in NOUNS:
            chosen += NOUNS[word]
        else:
            assert word in CATEGORY_OF, word
            chosen.append(word)
    return tuple(dict.fromkeys(chosen))
