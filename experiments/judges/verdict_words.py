"""Yes and No in the languages that have a phrase list (``phrases/<tag>.yaml``), read at the beginning of an answer.

A short rule beside the English one (``yes_no.anchored``), for translated questions. Small word lists from general
knowledge; no labelled answers in these languages were at hand, so its error is not measured.
"""

import functools
import re

from experiments.judges.normalise import normalised
from experiments.judges.phrases import phrases
from experiments.outcomes import Verdict

_ENGLISH = re.compile(r"[\W_]*(?P<word>yes|no)\s*(?:[,.!:;\n–—-]|\Z)", re.IGNORECASE)
_LEADING = "¡¿'([-–— "


def first_word(response: str, language: str) -> Verdict:
    """Yes or No if the answer begins with a word for it, alone or before more words; NO_VERDICT for everything else.

    What only looks like one ("是否", "no obstante", "non seulement") is none. An English Yes or No counts where a
    stop or comma follows, for models slip into English.

    Raises:
        UserError: no list for this language.
    """
    listed = phrases(language)
    text = normalised(response).lstrip(_LEADING)
    if _beginning(listed.written["neither"], listed.spaced).match(text):
        return Verdict.NO_VERDICT
    words = listed.written["affirmative"] + listed.written["negative"]
    if found := _beginning(words, listed.spaced).match(text):
        return Verdict.YES if found[0] in listed.written["affirmative"] else Verdict.NO
    if english := _ENGLISH.match(response):
        return Verdict(english["word"].lower())
    return Verdict.NO_VERDICT


@functools.cache
def _beginning(words: tuple[str, ...], spaced: bool) -> re.Pattern[str]:
    """Any of the words, the longest first: the "不" that begins "不安全" is not the word that was said."""
    joined = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    end = r"(?![^\W_])" if spaced else ""
    return re.compile(f"(?:{joined}){end}" if joined else r"(?!)")
