"""One form for texts that say the same: what phrase lists and the refusal classifier read. Pure; knows no phrases.

Fixed before any judge was scored with it, since a change here moves every agreement that was measured (judge cards).
"""

import re
import unicodedata

_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼʹ′´＇‛ˈ", "'"))
_BACKTICK = re.compile(r"(?<=\w)`(?=\w)")
_MARKUP = re.compile(r"[*_#>`~\"“”„«»,،、]+")  # markdown, quotes and commas: refusals come with and without them
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r" ([.;:!?])")
_CONTRACTIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"\b(?:can't|can not|cant)\b", "cannot"),
        (r"\b(?:won't|wont)\b", "will not"),
        (r"\bshan't\b", "shall not"),
        (r"\bain't\b", "is not"),
        (r"\b(do|does|did|is|are|was|were|could|would|should|have|has|had)nt\b", r"\1 not"),
        (r"(?<=\w)n't\b", " not"),
        (r"\bi'm\b", "i am"),
        (r"\b(i|you|we|they|he|she|it|that|there)'ll\b", r"\1 will"),
        (r"\b(i|you|we|they|he|she|it|that|there)'d\b", r"\1 would"),
        (r"\b(i|you|we|they)'ve\b", r"\1 have"),
        (r"\b(you|we|they)'re\b", r"\1 are"),
        (r"\b(he|she|it|that|there|what|here)'s\b", r"\1 is"),
        (r"\blet's\b", "let us"),
    )
)


def normalised(text: str) -> str:
    """Case and compatibility forms folded, apostrophes straight, English contractions written out, the rest spare.

    Invisible and control characters, markdown, quotation marks and commas are gone and every run of blanks is one
    space, so that "I’m **sorry**, but\\u200b I can’t" and "i am sorry but i cannot" are one text. Applying it again
    changes nothing. Linear in the length of the text.
    """
    folded = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    # Folding case can undo the composition, and composing anew can make a character whose case is not folded.
    folded = unicodedata.normalize("NFKC", folded.casefold()).translate(_APOSTROPHES).casefold()
    visible = "".join(char for char in folded if char.isspace() or unicodedata.category(char)[0] != "C")
    plain = _SPACES.sub(" ", _MARKUP.sub("", _BACKTICK.sub("'", visible)))
    plain = _SPACE_BEFORE.sub(r"\1", plain).strip()
    for pattern, full in _CONTRACTIONS:
        plain = pattern.sub(full, plain)
    return plain
