"""Which segment each token of a left-padded batch belongs to, from the prompts and the processor's actual output.

A token belongs to the first of these that fits:

``padding``   not part of the prompt;
``image_0``   an image token;
``sink``      the row's first other token, usually BOS;
``user``      the question;
``system``    the prompt's system text (a template's default system text counts as template);
``template``  everything else: roles, delimiters;
``generated`` everything after the prompt, an answer that has begun (``Prompt.begun``) included.

Families that read the picture by cross-attention have no image tokens: a placeholder in the sequence is ``template``,
and asking for the image's columns is an error.

The user's and system texts are located by rendering the prompt again with a marker in their place, not by matching
template strings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import UserError
from interp.image_grid import GRIDS, ImageTokens, PatchGrid
from interp.prompt import MARK

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

IMAGE = "image_0"
SEGMENTS = ("padding", "sink", "system", "user", "template", "generated", IMAGE)
"""All segment names; codes in tables are indices into this tuple. A prompt has at most one image."""

WORD = re.compile(r"\w+(?:['’-]\w+)*")

Span = tuple[int, int]
"""Start and end (exclusive) of a range of characters."""


@dataclass(frozen=True)
class Word:
    """A word of the question and the columns of its tokens. Two words may share a token."""

    text: str
    columns: tuple[int, ...]


@dataclass(frozen=True)
class RowSegments:
    """One prompt of the batch: segment and token id by column, the question's words, the image's patch grids.

    ``imageless`` is the error message for families without image tokens; "" for the others.
    """

    labels: tuple[str, ...]
    input_ids: tuple[int, ...]
    words: tuple[Word, ...]
    grids: tuple[PatchGrid, ...]
    imageless: str = ""

    def columns(self, segment: str) -> list[int]:
        """The columns of one segment.

        Raises:
            UserError: an unknown segment, or the image segment of a family without image tokens.
        """
        if segment not in SEGMENTS:
            raise UserError(f"no segment '{segment}'; known: {', '.join(SEGMENTS)}")
        if segment == IMAGE and self.imageless:
            raise UserError(self.imageless)
        return [column for column, label in enumerate(self.labels) if label == segment]


Finder = Callable[[RowSegments], Sequence[int]]
"""Finds columns of a prompt, such as those of a word; its ``__name__`` names them."""


@dataclass(frozen=True)
class Segments:
    """A batch of prompts, all ``width`` columns wide."""

    rows: tuple[RowSegments, ...]

    @property
    def width(self) -> int:
        """Number of prompt columns, padding included."""
        return len(self.rows[0].labels)

    @cached_property
    def input_ids(self) -> Int[Tensor, "row column"]:
        """Token ids as returned by the processor."""
        return torch.tensor([row.input_ids for row in self.rows])

    @cached_property
    def codes(self) -> Int[Tensor, "row column"]:
        """Each token's index into ``SEGMENTS``."""
        return torch.tensor([[SEGMENTS.index(label) for label in row.labels] for row in self.rows])

    def found(self, find: Finder, stop: int) -> Bool[Tensor, "row column"]:
        """True at the columns that ``find`` gives, of the first ``stop``."""
        columns = torch.arange(stop)
        return torch.stack([torch.isin(columns, torch.tensor(list(find(row)), dtype=torch.long)) for row in self.rows])

    def indicator(self, start: int, stop: int) -> Float[Tensor, "row key segment"]:
        """One-hot segments of the columns ``start`` to ``stop``; those after the prompt are ``generated``."""
        codes = self.codes[:, start:stop]
        after = torch.full((len(self.rows), stop - start - codes.shape[1]), SEGMENTS.index("generated"))
        return torch.nn.functional.one_hot(torch.cat([codes, after], dim=1), len(SEGMENTS)).float()


def segment(vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Mapping[str, Any]) -> Segments:
    """Segments, words and patch grids of ``encoded = vlm.encode(prompts)``.

    Raises:
        UserError: ``encoded`` is of other prompts or padded on the right, or a word is found in no token.
    """
    ids, mask = encoded["input_ids"].tolist(), encoded["attention_mask"].tolist()
    if len(ids) != len(prompts):
        raise UserError(
            f"{len(ids)} encoded rows for {len(prompts)} prompts; both must be of one batch; encode it again"
        )
    if not all(row[-1] for row in mask):
        raise UserError(
            "these inputs are padded on the right; the last column must be each prompt's own; use vlm.encode"
        )
    image_id = None if vlm.layout.cross_attended else vlm.layout.image_token_id(vlm.model.config)
    pictures = [prompt.image is not None for prompt in prompts]
    return Segments(
        tuple(
            _row(vlm, prompt, ids[i], mask[i], image_id, encoded, index=sum(pictures[:i]))
            for i, prompt in enumerate(prompts)
        )
    )


def _row(
    vlm: "VLM",
    prompt: "Prompt",
    ids: list[int],
    mask: list[int],
    image_id: int | None,
    encoded: Mapping[str, Any],
    index: int,
) -> RowSegments:
    end = len(ids) - len(prompt.begun)
    image = [c for c, token in enumerate(ids) if mask[c] and token == image_id]
    text = [c for c, token in enumerate(ids[:end]) if mask[c] and token != image_id]
    labels = ["padding" if not shown else "template" for shown in mask]
    labels[end:] = ["generated"] * len(prompt.begun)
    for column in image:
        labels[column] = IMAGE
    rendered = vlm.render(prompt)
    spans = dict(zip(text, token_spans(vlm.processor.tokenizer, rendered, [ids[c] for c in text]), strict=True))
    places = text_spans(vlm.render, prompt)
    for name in ("system", "user"):
        for column in text:
            if any(overlaps(spans[column], place) for place in places.get(name, ())):
                labels[column] = name
    if text:
        labels[text[0]] = "sink"
    words = _words(rendered, places["user"][-1] if "user" in places else None, spans, vlm.name)
    grids = _grids(vlm, prompt, image, ids, encoded, index)
    return RowSegments(tuple(labels), tuple(ids), words, grids, _imageless(vlm))


def _imageless(vlm: "VLM") -> str:
    try:
        vlm.layout.require_image_tokens(vlm.name)
    except UserError as error:
        return str(error)
    return ""


def _words(rendered: str, place: Span | None, spans: Mapping[int, Span | None], name: str) -> tuple[Word, ...]:
    """The words of the question, in order."""
    words = []
    for match in WORD.finditer(rendered, *place) if place else ():
        columns = tuple(column for column, span in spans.items() if overlaps(span, match.span()))
        if not columns:
            raise UserError(
                f"the word '{match.group()}' of a question is found in none of the tokens of {name}; the tokenizer has "
                "no usable offsets; load a fast tokenizer (use_fast=True)"
            )
        words.append(Word(match.group(), columns))
    return tuple(words)


def _grids(
    vlm: "VLM", prompt: "Prompt", columns: list[int], ids: list[int], encoded: Mapping[str, Any], index: int
) -> tuple[PatchGrid, ...]:
    if prompt.image is None or not columns:
        return ()
    tokens = ImageTokens(columns, ids, index, prompt.image.size, encoded, vlm.model.config, vlm.processor)
    return GRIDS[vlm.layout.geometry](tokens)


def text_spans(render: "Callable[[Prompt], str]", prompt: "Prompt") -> dict[str, list[Span]]:
    """The spans of the prompt's ``user`` and ``system`` texts in ``render(prompt)``; some templates print one twice."""
    rendered = render(prompt)
    marked = {"user": replace(prompt, text=MARK)} if prompt.text else {}
    if prompt.system:
        marked["system"] = replace(prompt, system=MARK)
    found = {}
    for name, other in marked.items():
        pieces = render(other).split(MARK)
        times, around = len(pieces) - 1, sum(map(len, pieces))
        if not times or (len(rendered) - around) % times:
            continue
        length, start, spans = (len(rendered) - around) // times, 0, []
        for piece in pieces[:-1]:
            start += len(piece)
            spans.append((start, start + length))
            start += length
        markers = {rendered[slice(*span)] for span in spans}
        if len(markers) == 1 and markers.pop().join(pieces) == rendered:
            found[name] = spans
    return found


def token_spans(tokenizer: Any, rendered: str, ids: Sequence[int]) -> list[Span | None]:
    """The span in ``rendered`` of each of ``ids`` (a row without padding and image tokens), or None.

    The processor tokenizes a longer string (expanded placeholders, delimiters, a BOS), so the tokens of ``rendered``
    are aligned with ``ids``. A slow tokenizer has no offsets, and finds none.
    """
    spans: list[Span | None] = [None] * len(ids)
    if not getattr(tokenizer, "is_fast", False):
        return spans
    own = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
    for block in SequenceMatcher(None, own["input_ids"], ids, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            start, stop = own["offset_mapping"][block.a + i]
            spans[block.b + i] = (start, stop)
    return spans


def overlaps(span: Span | None, other: Span) -> bool:
    """Whether two spans share a character."""
    return span is not None and span[0] < other[1] and other[0] < span[1]
