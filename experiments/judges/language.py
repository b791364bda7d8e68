"""The language of an answer, by its script and its most common words. A model may not answer in the request's language.

The common words are from general knowledge. Short answers and languages that are not listed give no result.
"""

import re
import unicodedata
from collections import Counter

SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "HANGUL": "ko",
    "CYRILLIC": "ru",
    "ARABIC": "ar",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "THAI": "th",
    "GREEK": "el",
    "TAMIL": "ta",
}
COMMON = {
    "en": "the of and to is you that it for are with this on be or can not have your i in a",
    "de": "der die das und ist nicht ich sie zu ein eine mit den von für auf es dem kann wie",
    "es": "el la los las de que y no un una es en por con para se su puedo lo como",
    "fr": "le la les des et est une un que je vous ne pas pour dans en du ce qui de",
    "it": "il la che di non è un una per sono con del le si gli in come questo posso e",
    "pt": "o a os as que não é um uma de para com do da em por se posso você e",
    "nl": "de het een en van is niet ik dat je op te zijn voor met kan die aan om in",
}
FEWEST = 3  # common words of a language that decide
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str | None:
    """Return the language of a text ("zh"), or None if it is too short or no listed language is clearly ahead."""
    letters = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha())
    if not letters:
        return None
    script, count = letters.most_common(1)[0]
    if script == "CJK" and letters["HIRAGANA"] + letters["KATAKANA"] > 0.1 * count:
        return "ja"
    if script != "LATIN":
        return SCRIPTS.get(script)
    words = Counter(_WORD.findall(text.lower()))
    counts = sorted(((sum(words[word] for word in set(common.split())), name) for name, common in COMMON.items()))
    (second, _), (first, name) = counts[-2:]
    return name if first >= FEWEST and first > 1.5 * second else None
