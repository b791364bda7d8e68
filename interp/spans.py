"""Which characters of the rendered prompt each token stands for, and which characters are the person's own words.

Works from the rendered prompt and the tokenizer, never from template strings: the words are found by rendering the same
prompt with a mark in their place. Knows nothing of images beyond "these columns are no text".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.vlm import Prompt

Span = tuple[int, int]
"""First and one-past-last character."""

MARK = "\ue000"  # private use: no template, tokenizer or person writes it


def text_spans(render: "Callable[[Prompt], str]", prompt: "Prompt") -> dict[str, Span]:
    """Where the prompt's ``user`` and ``system`` texts lie in ``render(prompt)``; one that it lacks is left out."""
    rendered = render(prompt)
    marked = {"user": replace(prompt, text=MARK)} if prompt.text else {}
    if prompt.system:
        marked["system"] = replace(prompt, system=MARK)
    found = {}
    for name, other in marked.items():
        before, _, after = render(other).partition(MARK)
        if rendered.startswith(before) and rendered.endswith(after):
            found[name] = (len(before), len(rendered) - len(after))
    return found


def token_spans(tokenizer: Any, rendered: str, ids: Sequence[int]) -> list[Span | None]:
    """For each of ``ids`` (a row without padding and image tokens) its characters in ``rendered``, None if it has none.

    The processor tokenizes a longer string (placeholders expanded, delimiters, a BOS put in), so the tokens of
    ``rendered`` are aligned with ``ids`` rather than taken for them. A tokenizer without offsets is read back token by
    token.
    """
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
        return _aligned(encoded["input_ids"], encoded["offset_mapping"], ids)
    return _read_back(tokenizer, rendered, ids)


def _aligned(own: Sequence[int], offsets: Sequence[Span], ids: Sequence[int]) -> list[Span | None]:
    spans: list[Span | None] = [None] * len(ids)
    for block in SequenceMatcher(None, own, ids, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            start, stop = offsets[block.a + i]
            spans[block.b + i] = (start, stop)
    return spans


def _read_back(tokenizer: Any, rendered: str, ids: Sequence[int]) -> list[Span | None]:
    """Decodes ever longer beginnings of ``ids``; what each token adds is aligned with ``rendered``, spaces aside."""
    places = [i for i, character in enumerate(rendered) if not character.isspace()]
    pieces: list[str] = []
    owners: list[int] = []
    text = ""
    for i in range(len(ids)):
        longer = "".join(tokenizer.decode(list(ids[: i + 1]), skip_special_tokens=False).split())
        pieces.extend(longer[len(text) :])
        owners.extend([i] * max(len(longer) - len(text), 0))
        text = longer
    spans: list[Span | None] = [None] * len(ids)
    letters = [rendered[i] for i in places]
    for block in SequenceMatcher(None, letters, pieces, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            place, owner = places[block.a + i], owners[block.b + i]
            start, stop = spans[owner] or (place, place)
            spans[owner] = (min(start, place), max(stop, place + 1))
    return spans


def overlaps(span: Span | None, other: Span) -> bool:
    """Whether two spans share a character."""
    return span is not None and span[0] < other[1] and other[0] < span[1]
