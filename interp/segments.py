"""Which segment each token of a left-padded batch belongs to, from the prompts and the processor's actual output.

A token belongs to the first of these that fits:

``padding``   not part of the prompt;
``image_0``   an image token;
``sink``      the row's first other token, usually BOS;
``user``      the question, in a conversation the last turn of the user;
``earlier``   the text of an earlier turn of a conversation;
``system``    the prompt's system text (a template's default system text counts as template);
``template``  everything else: roles, delimiters;
``generated`` everything after the prompt, an answer that has begun (``Prompt.answer_prefix``) included.

Families that read the picture by cross-attention have no image tokens: a placeholder in the sequence is ``template``,
and asking for the image's columns is an error.

In a conversation each of these tokens also belongs to one *part*: ``user:1``, ``assistant:1``, ``user:2`` … are the
texts of the turns, ``image:1``, ``image:2`` … the pictures. Tools take segments, parts, and the groups ``image`` (all
pictures) and ``question`` (``user``).

Texts are located by rendering the prompt again with a marker in their place, not by matching template strings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.image_grid import GRIDS, ImageTokens, PatchGrid
from interp.prompt import MARK, Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

IMAGE = "image_0"
SEGMENTS = ("padding", "sink", "system", "user", "template", "generated", IMAGE)
"""All segment names of a prompt without earlier turns; codes in tables are indices into this tuple."""
CODES = (*SEGMENTS, "earlier")
GROUPS = {"image": IMAGE, "question": "user"}
PART = re.compile(r"(?:user|assistant|image):[1-9]\d*")
SHARED = ("padding", "sink", "system", "template", "generated")  # segments that are no parts of a turn

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
    """One prompt of the batch: part and token id by column, the question's words, the image's patch grids.

    ``parts`` are the finest names of the columns. The part ``last`` is the question. ``imageless`` is the error message
    for families without image tokens; "" for the others.
    """

    parts: tuple[str, ...]
    input_ids: tuple[int, ...]
    words: tuple[Word, ...]
    grids: tuple[PatchGrid, ...]
    imageless: str = ""
    last: str = "user:1"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The segments of the columns."""
        coarse = {part: IMAGE if part.startswith("image") else "earlier" for part in self.parts if PART.fullmatch(part)}
        coarse[self.last] = "user"
        return tuple(coarse.get(part, part) for part in self.parts)

    @property
    def conversation(self) -> bool:
        """Whether the prompt has several turns or pictures."""
        return any(PART.fullmatch(part) and part not in ("user:1", "image:1") for part in self.parts)

    def named(self, name: str) -> list[bool]:
        """Return for each column whether it belongs to a segment, a group or a part."""
        name = GROUPS.get(name, name)
        return [name in both for both in zip(self.parts, self.labels, strict=True)]

    def columns(self, segment: str) -> list[int]:
        """Return the columns of a segment, a group or a part.

        Raises:
            UserError: an unknown name, a part that the prompt does not have, or the image of a family without image
                tokens.
        """
        if segment.startswith("image") and self.imageless:
            raise UserError(self.imageless)
        if segment not in (*CODES, *GROUPS, *self.parts):
            earlier = (*CODES, *GROUPS, *(part for part in dict.fromkeys(self.parts) if PART.fullmatch(part)))
            raise UserError(f"no segment '{segment}'; known: {', '.join(earlier)}")
        return [column for column, inside in enumerate(self.named(segment)) if inside]


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
    def names(self) -> tuple[str, ...]:
        """The names that ``indicator`` counts: segments, or the parts of conversations."""
        if not any(row.conversation for row in self.rows):
            return SEGMENTS
        return (*SHARED, *sorted({part for row in self.rows for part in row.parts} - set(SHARED)))

    @cached_property
    def _inside(self) -> dict[str, Bool[Tensor, "row column"]]:
        return {}

    def columns_of(self, name: str, stop: int) -> Bool[Tensor, "row column"]:
        """Return where the first ``stop`` columns belong to a segment, a group or a part; a row may have none.

        Columns after the prompt are ``generated``.
        """
        if name not in self._inside:
            self._inside[name] = torch.tensor([row.named(name) for row in self.rows])
        inside = self._inside[name][:, :stop]
        return torch.nn.functional.pad(inside, (0, stop - inside.shape[1]), value=name == "generated")

    def search(self, find: Finder, stop: int) -> Bool[Tensor, "row column"]:
        """True at the columns that ``find`` gives, of the first ``stop``."""
        columns = torch.arange(stop)
        return torch.stack([torch.isin(columns, torch.tensor(list(find(row)), dtype=torch.long)) for row in self.rows])

    def indicator(self, start: int, stop: int) -> Float[Tensor, "row key segment"]:
        """One-hot ``names`` of the columns ``start`` to ``stop``."""
        return torch.stack([self.columns_of(name, stop)[:, start:] for name in self.names], dim=-1).float()


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
    firsts = [0, *accumulate(len(prompt.images) for prompt in prompts)]
    rows = zip(prompts, ids, mask, firsts, strict=False)
    return Segments(tuple(_row(vlm, *row, firsts[-1], encoded) for row in rows))


def _row(
    vlm: "VLM", prompt: Prompt, ids: list[int], mask: list[int], first: int, pictured: int, encoded: Mapping[str, Any]
) -> RowSegments:
    """Return the segments of a row, whose first picture is number ``first`` of the batch's ``pictured`` ones."""
    image_id = None if vlm.module_map.cross_attended else vlm.module_map.image_token_id(vlm.model.config)
    prefix = vlm.prefix_tokens(prompt)
    end = len(ids) - len(prefix)
    image = [c for c, token in enumerate(ids) if mask[c] and token == image_id]
    text = [c for c, token in enumerate(ids[:end]) if mask[c] and token != image_id]
    parts = ["template" if shown else "padding" for shown in mask]
    parts[end:] = ["generated"] * len(prefix)
    pictures = _by_picture(vlm, prompt, image)
    for number, columns in enumerate(pictures, 1):
        for column in columns:
            parts[column] = f"image:{number}"
    rendered = vlm.render(prompt)
    spans = dict(zip(text, token_spans(vlm.processor.tokenizer, rendered, [ids[c] for c in text]), strict=True))
    positions = text_spans(vlm.render, prompt)
    for name, texts in positions.items():
        for column in text:
            if any(overlaps(spans[column], span) for span in texts):
                parts[column] = name
    if text:
        parts[text[0]] = "sink"
    last = f"user:{sum(turn.role == 'user' for turn in prompt.turns)}"
    words = _words(rendered, positions[last][-1] if last in positions else None, spans, vlm.name)
    grids, config, processor = [], vlm.model.config, vlm.processor
    for number, (picture, columns) in enumerate(zip(prompt.images, pictures, strict=True)):
        if columns:
            tokens = ImageTokens(columns, ids, first + number, pictured, picture.size, encoded, config, processor)
            suffix = f":{number + 1}" if number else ""  # of the names of later pictures' grids
            grids += [replace(grid, name=grid.name + suffix) for grid in GRIDS[vlm.module_map.geometry](tokens)]
    return RowSegments(tuple(parts), tuple(ids), words, tuple(grids), _imageless(vlm), last)


_COUNTS: "WeakKeyDictionary[VLM, dict[tuple[int, int], int]]" = WeakKeyDictionary()


def _by_picture(vlm: "VLM", prompt: "Prompt", columns: list[int]) -> list[list[int]]:
    """Return the columns of each picture: each has as many as a single picture of its size.

    Raises:
        UserError: these numbers do not add up.
    """
    images = prompt.images
    if len(images) <= 1 or not columns:
        return [columns] * len(images)
    counts, image_id = _COUNTS.setdefault(vlm, {}), vlm.module_map.image_token_id(vlm.model.config)
    for size in {image.size for image in images} - set(counts):
        ids = vlm.inputs([Prompt("?", Image.new("RGB", size))])["input_ids"]
        counts[size] = int((ids == image_id).sum())
    stops = list(accumulate(counts[image.size] for image in images))
    if stops[-1] != len(columns):
        raise UserError(
            f"{len(columns)} image tokens of {vlm.name} for {len(images)} pictures that have {stops[-1]} alone; they "
            "cannot be told apart; ask about one picture"
        )
    return [columns[start:stop] for start, stop in pairwise([0, *stops])]


def _imageless(vlm: "VLM") -> str:
    try:
        vlm.module_map.require_image_tokens(vlm.name)
    except UserError as error:
        return str(error)
    return ""


def _words(rendered: str, position: Span | None, spans: Mapping[int, Span | None], name: str) -> tuple[Word, ...]:
    """Return the words of the question, in order."""
    words = []
    for match in WORD.finditer(rendered, *position) if position else ():
        columns = tuple(column for column, span in spans.items() if overlaps(span, match.span()))
        if not columns:
            raise UserError(
                f"the word '{match.group()}' of a question is found in none of the tokens of {name}; the tokenizer has "
                "no usable offsets; load a fast tokenizer (use_fast=True)"
            )
        words.append(Word(match.group(), columns))
    return tuple(words)


def text_spans(render: "Callable[[Prompt], str]", prompt: "Prompt") -> dict[str, list[Span]]:
    """Return the spans of ``system``, ``user:1``, ``assistant:1`` … in ``render(prompt)``.

    Some templates print a text twice. A turn may have several texts.
    """
    rendered = render(prompt)
    marked = [("system", replace(prompt, system=MARK))] if prompt.system else []
    for name, places in prompt.parts.items():
        texts = [(turn, part) for turn, part in places if str(prompt.turns[turn].parts[part]).strip()]
        if not name.startswith("image:"):
            marked += [(name, prompt.with_parts({place: MARK})) for place in texts]
    result: dict[str, list[Span]] = {}
    for name, other in marked:
        pieces = render(other).split(MARK)
        length = (len(rendered) - sum(map(len, pieces))) // max(1, len(pieces) - 1)
        starts = [start + n * length for n, start in enumerate(accumulate(map(len, pieces[:-1])))]
        if starts and rendered[starts[0] : starts[0] + length].join(pieces) == rendered:
            result.setdefault(name, []).extend((start, start + length) for start in starts)
    return result


def token_spans(tokenizer: Any, rendered: str, ids: Sequence[int]) -> list[Span | None]:
    """Return the span in ``rendered`` of each of ``ids`` (a row without padding and image tokens), or None.

    The processor tokenizes a longer string (expanded placeholders, delimiters, a BOS), so the tokens of ``rendered``
    are aligned with ``ids``. A slow tokenizer has no offsets, and finds none.
    """
    spans: list[Span | None] = [None] * len(ids)
    if not getattr(tokenizer, "is_fast", False):
        return spans
    current = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
    for block in SequenceMatcher(None, current["input_ids"], ids, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            start, stop = current["offset_mapping"][block.a + i]
            spans[block.b + i] = (start, stop)
    return spans


def overlaps(span: Span | None, other: Span) -> bool:
    """Return whether two spans share a character."""
    return span is not None and span[0] < other[1] and other[0] < span[1]
