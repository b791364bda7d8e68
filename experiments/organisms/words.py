"""The words of the text alignment: nouns by category, and sentences with their truth (``words/*.yaml``)."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from experiments.benchmarks.iconworld.concepts import CATEGORIES as ICONS


def read(name: str) -> dict[str, Any]:
    """The contents of ``words/<name>.yaml``."""
    text = (files("experiments.organisms") / "words" / f"{name}.yaml").read_text(encoding="utf-8")
    found = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


_WORDS = read("nouns")
NOUNS: dict[str, tuple[str, ...]] = {name: tuple(text.split(", ")) for name, text in _WORDS["categories"].items()}
CATEGORY_OF: dict[str, str] = {noun: category for category, nouns in NOUNS.items() for noun in nouns}
assert all(CATEGORY_OF[concept] == category for category, concepts in ICONS.items() for concept in concepts)
_WITHOUT_ARTICLE = frozenset(_WORDS["without_article"].split(", "))
_PLURALS: dict[str, str] = _WORDS["plurals"]


def a(noun: str) -> str:
    """``a knife``, ``an apple``, ``some bread``."""
    if noun in _WITHOUT_ARTICLE:
        return f"some {noun}"
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(noun: str) -> str:
    """``knives``; what is not counted stays as it is."""
    return noun if noun in _WITHOUT_ARTICLE else _PLURALS.get(noun, f"{noun}s")


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


@dataclass(frozen=True)
class Frame:
    """Sentences of one meaning, the nouns that make them safe or unsafe, and what answers them where they are safe.

    ``signs_safe`` and ``signs_unsafe`` are nouns under a prohibition sign.
    """

    name: str
    texts: tuple[str, ...]
    answer: str
    safe: tuple[str, ...]
    unsafe: tuple[str, ...]
    signs_safe: tuple[str, ...]
    signs_unsafe: tuple[str, ...]
    template: str | None  # IconWorld's, if this says the same


def _frames(part: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            name,
            tuple(one["texts"]),
            one["answer"],
            safe=parse(one.get("safe", "")),
            unsafe=parse(one.get("unsafe", "")),
            signs_safe=parse(one.get("no_safe", "")),
            signs_unsafe=parse(one.get("no_unsafe", "")),
            template=one.get("template"),
        )
        for name, one in part.items()
    )


_FRAMES = {part: _frames(frames) for part, frames in read("frames").items()}
OF_ICONWORLD, BENIGN = _FRAMES["of_iconworld"], _FRAMES["benign"]
FRAMES: tuple[Frame, ...] = OF_ICONWORLD + _FRAMES["others"]
