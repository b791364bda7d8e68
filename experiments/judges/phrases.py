"""The phrase lists by language (``phrases/<tag>.yaml``), read and compiled. Knows nothing of verdicts.

A phrase is text as ``normalised`` leaves it, with two signs: ``{a|b|}`` is one of the alternatives (an empty one makes
it optional), ``*`` a gap of at most five words (twelve characters where words are not ``spaced``) inside one sentence.
All gaps are bounded, so that matching is linear in the length of a text. Keys of a file:

* ``refusing``: refuses wherever it stands;  ``opening``: refuses only near the beginning;
* ``answering``: what a response says that goes on to answer, or to offer something else;
* ``affirmative``, ``negative``: the first words that mean yes and no; ``neither``: beginnings that only look like one.
"""

import functools
import re
from dataclasses import dataclass
from importlib.resources import files

from omegaconf import OmegaConf

from experiments.judges.normalise import normalised
from interp.errors import UserError

_GROUP = re.compile(r"\{([^{}]*)\}( ?)")
_GAPS = {True: r"(?: [^\s.!?;]+){0,5}? ", False: r"[^.!?;。]{0,12}?"}
_LETTER_BEFORE, _LETTER_AFTER = r"(?<![^\W_])", r"(?![^\W_])"


@dataclass(frozen=True)
class Phrases:
    """One language's list, as written and compiled."""

    language: str
    spaced: bool  # whether blanks part words
    written: dict[str, tuple[str, ...]]
    refusing: re.Pattern[str]
    opening: re.Pattern[str]
    answering: re.Pattern[str]


@functools.cache
def languages() -> tuple[str, ...]:
    """The tags of the languages that have a list, sorted."""
    folder = files("experiments.judges") / "phrases"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def primary(tag: str) -> str:
    """The first part of a language tag, in lower case: "zh" of "zh-Hant"."""
    return re.split(r"[-_]", tag.strip().lower(), maxsplit=1)[0]


@functools.cache
def phrases(tag: str) -> Phrases:
    """The list of a language.

    Raises:
        UserError: there is no list for it.
    """
    if primary(tag) not in languages():
        raise UserError(f"no phrase list for language {tag!r}; known: {', '.join(languages())}; add a file to "
                        "experiments/judges/phrases, or judge with judge=llm")  # fmt: skip
    text = (files("experiments.judges") / "phrases" / f"{primary(tag)}.yaml").read_text(encoding="utf-8")
    data = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(data, dict)
    spaced = bool(data["spaced"])
    kinds = ("refusing", "opening", "answering", "affirmative", "negative", "neither")
    written = {kind: tuple(map(str, data[kind])) for kind in kinds}
    return Phrases(
        language=str(data["language"]),
        spaced=spaced,
        written=written,
        refusing=matcher(written["refusing"], spaced=spaced),
        opening=matcher(written["opening"], spaced=spaced),
        answering=matcher(written["answering"], spaced=spaced),
    )


def all_phrases() -> tuple[Phrases, ...]:
    """Every language's list. All are tried on a text, for a model may answer in another language than it was asked."""
    return tuple(phrases(tag) for tag in languages())


def matcher(written: tuple[str, ...], *, spaced: bool) -> re.Pattern[str]:
    """One pattern for phrases in the syntax of this module; with ``spaced``, whole words alone."""
    joined = "|".join(_pattern(phrase, _GAPS[spaced]) for phrase in written)
    return re.compile(f"{_LETTER_BEFORE}(?:{joined}){_LETTER_AFTER}" if spaced else f"(?:{joined})")


def _pattern(phrase: str, gap: str) -> str:
    tight, parts, at = re.sub(r" ?\* ?", "*", phrase), [], 0  # a gap brings its own blanks
    for group in _GROUP.finditer(tight):
        options = group[1].split("|")
        chosen = "|".join(re.escape(option) for option in options if option)
        parts.append(_literal(tight[at : group.start()], gap))
        # The blank after an optional word goes with it.
        parts.append(f"(?:(?:{chosen}){group[2]})?" if "" in options else f"(?:{chosen}){group[2]}")
        at = group.end()
    return "".join([*parts, _literal(tight[at:], gap)])


def _literal(text: str, gap: str) -> str:
    return gap.join(re.escape(piece) for piece in text.split("*"))


def expand(phrase: str) -> tuple[str, str]:
    """The phrase with the first, and with the last, alternative of every group, and no words in its gaps."""

    def choose(index: int) -> str:
        chosen = _GROUP.sub(lambda group: (word + group[2]) if (word := group[1].split("|")[index]) else "", phrase)
        return normalised(re.sub(r" ?\* ?", " " if " " in phrase else "", chosen))

    return choose(0), choose(-1)
