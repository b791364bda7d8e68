"""Thought and answer of a model that thinks first, told apart in what it wrote. Text alone; imports no torch.

A thought stands between a pair of ``MARKS``. The template may have written the opening mark already, so a closing mark
without one ends a thought too. The last closing mark counts: a thought may quote it, and a model may think twice.
"""

import re
from typing import NamedTuple

MARKS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"),
)  # fmt: skip
_OPENED = re.compile(rf"[\s\ufeff]*(?:{'|'.join(re.escape(opening) for opening, _ in MARKS)})", re.IGNORECASE)
_CLOSED = re.compile("|".join(re.escape(closing) for _, closing in MARKS), re.IGNORECASE)


class Spoken(NamedTuple):
    """What a model wrote: its thought with its marks, its answer, and whether the thought was closed.

    A thought that was cut off leaves an empty answer.
    """

    thought: str
    answer: str
    finished: bool


def split(text: str) -> Spoken:
    """Thought and answer of a text; thought + answer is the text, and one without marks is all answer."""
    end = 0
    for closing in _CLOSED.finditer(text):
        end = closing.end()
    if _OPENED.match(text, end):
        return Spoken(text, "", finished=False)
    return Spoken(text[:end], text[end:], finished=True)
