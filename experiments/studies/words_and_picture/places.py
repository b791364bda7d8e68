"""Words of prompts by their columns: "this" beside the picture, the noun in words; states read and put there, and edges
of attention from the picture, or what is said of the thing, to "this" and on.

Layers here are decoder layers from 0, and their states those after the layer: point layer + 1 of the residual stream
(``interp.hooks.residual``).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from experiments.benchmarks.iconworld.concepts import definite
from experiments.benchmarks.iconworld.sentences import PREFIX
from experiments.evaluation.attention_log import prompts_of
from experiments.studies.words_and_picture.conditions import NAMED, POINTING, POINTS, QUESTION, in_words, thing_of
from experiments.studies.words_and_picture.readings import PLACES
from experiments.types import Sample
from interp.device_copies import to_device, to_host
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.segments import WORD, RowSegments, segment
from interp.speed.unchanged import Prefix
from interp.tools.knockout import Edge, End, knockout

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM


_OPENS = {WORD.findall(question)[0] for question in (PREFIX, QUESTION)}  # the first word of the question


@dataclass(frozen=True)
class Placed:
    """A prompt, and by its number (0: the first) and letters one word of it, whose last token is meant."""

    prompt: "Prompt"
    number: int
    word: str


def that_point(samples: Sequence[Sample]) -> list[Sample]:
    """The scored cases whose request says "this", once."""
    return [one for one in samples if one.subset != "control" and len(POINTS.findall(one.text)) == 1]


def pointed_at(samples: Sequence[Sample]) -> list[Placed]:
    """The cases with their pictures, at "this"."""
    return _placed(samples, [_this(sample).end() for sample in samples])


def pointed_at_in_words(samples: Sequence[Sample]) -> list[Placed]:
    """The cases in words, pointing ("There is a cockroach."), at "this"."""
    return _placed(in_words(samples)[POINTING], [_this(sample).end() for sample in samples])


def named(samples: Sequence[Sample]) -> list[Placed]:
    """The cases in words, at the last token of what stands where "this" stood."""
    ends = [_this(sample).start() + len(definite(thing_of(sample))) for sample in samples]
    return _placed(in_words(samples)[NAMED], ends)


def _placed(asked: Sequence[Sample], ends: Sequence[int]) -> list[Placed]:
    """The words that end at these characters of the requests."""
    found = []
    for prompt, sample, end in zip(prompts_of(asked), asked, ends, strict=True):
        words = WORD.findall(prompt.text[: prompt.text.rindex(sample.text) + end])
        found.append(Placed(prompt, len(words) - 1, words[-1]))
    return found


class Read(NamedTuple):
    """Margins, and the states at each prompt's word and at its verdict; float32 on the CPU."""

    margins: Float[Tensor, " row"]
    states: Float[Tensor, "place layer row width"]


def read(vlm: "VLM", placed: Sequence[Placed], layers: Sequence[int], *, cut: Sequence[Edge] = ()) -> Read:
    """The margins, and the states after each of ``layers``, with the edges of ``cut`` cut in all layers."""
    points = [layer + 1 for layer in layers]

    def measure(some: list[int]) -> Float[Tensor, "row value"]:
        prompts, encoded, (rows, columns) = _batch(vlm, [placed[index] for index in some])
        found: dict[int, Tensor] = {}

        def keep(here: LayerStates) -> None:
            device = here.hidden.device
            at_word = here.hidden[to_device(rows, device), to_device(columns, device)]
            found[here.layer] = torch.stack([at_word, here.hidden[:, -1]], dim=1).float()

        with ExitStack() as stack:
            if cut:
                stack.enter_context(knockout(vlm, cut, segments=segment(vlm, prompts, encoded)))
            stack.enter_context(edit_residual(vlm, keep, layers=points))
            margins = vlm.score(prompts, encoded=encoded)
        states = torch.stack(to_host([found[point] for point in points]), dim=2)
        return torch.cat([margins[:, None], states.flatten(1)], dim=1)

    found = vlm.batches.measured([one.prompt for one in placed], measure)
    states = rearrange(
        found[:, 1:], "row (place layer width) -> place layer row width", place=len(PLACES), layer=len(layers)
    )
    return Read(found[:, 0], states)


def margins_with(
    vlm: "VLM", placed: Sequence[Placed], states: Float[Tensor, "state layer row width"], layers: Sequence[int]
) -> Float[Tensor, "state layer row"]:
    """The margin of each prompt with the state at its word replaced, one state and layer at a time; NaN where it is.

    What stands before the first of the words is run once where the model allows it, so that margins are those of
    ``read`` up to rounding.
    """

    def margins(some: list[int]) -> Float[Tensor, "row change"]:
        prompts, encoded, (rows, columns) = _batch(vlm, [placed[index] for index in some])
        first = int(columns.min())
        fits = Prefix.fits(vlm, segment(vlm, prompts, encoded), first)
        prefix = Prefix.of(vlm, encoded, columns=first) if fits else None

        def replaced(new: Float[Tensor, "row width"], layer: int) -> Float[Tensor, " row"]:
            def replacement(here: LayerStates) -> Tensor:
                hidden, device = here.hidden.clone(), here.hidden.device
                hidden[to_device(rows, device), to_device(columns - here.start, device)] = new.to(hidden)
                return hidden

            with edit_residual(vlm, replacement, layers=[layer + 1]):
                return vlm.score(prompts, encoded=encoded) if prefix is None else prefix.score()

        here = states[:, :, some]
        return torch.stack([replaced(new, layer) for kind in here for new, layer in zip(kind, layers, strict=True)], 1)

    found = vlm.batches.measured([one.prompt for one in placed], margins)
    return rearrange(found, "row (state layer) -> state layer row", layer=len(layers))


def this(row: RowSegments) -> list[int]:
    """The columns of "this"."""
    return [column for word in row.words if POINTS.fullmatch(word.text) for column in word.columns]


def caption_columns(row: RowSegments) -> list[int]:
    """The columns of what is said before the question: "There is a cockroach."; none where nothing is."""
    opens = next(word.columns[0] for word in row.words if word.text in _OPENS)
    return [column for column in row.columns("user") if column < opens]


def question(row: RowSegments) -> list[int]:
    """The columns of the question and of what it asks about."""
    return sorted(set(row.columns("user")) - set(caption_columns(row)))


def other_words(row: RowSegments) -> list[int]:
    """The columns of the question but for "this"."""
    return sorted(set(question(row)) - set(this(row)))


def onward(source: End) -> list[Edge]:
    """From ``source`` to all that stands behind it."""
    if source == "image":
        return [(source, "user"), (source, "template"), (source, "verdict")]
    return [(source, question), (source, "template"), (source, "verdict")]


def routes(source: End) -> Mapping[str, list[Edge]]:
    """What may be cut between ``source``, "this" and the verdict, by name."""
    return {
        "source → this": [(source, this)],
        "source → verdict": [(source, "verdict")],
        "source → other words": [(source, other_words), (source, "template")],
        "this → verdict": [(this, "verdict")],
        "source → all": onward(source),
    }


def _this(sample: Sample) -> Any:
    return POINTS.search(sample.text)


def _batch(
    vlm: "VLM", placed: Sequence[Placed]
) -> tuple[list["Prompt"], Mapping[str, Any], tuple[Int[Tensor, " row"], Int[Tensor, " row"]]]:
    """The prompts, their inputs, and row and column of each one's word."""
    prompts = [one.prompt for one in placed]
    encoded = vlm.encode(prompts)
    columns = []
    for one, row in zip(placed, segment(vlm, prompts, encoded).rows, strict=True):
        words = row.words
        if one.number >= len(words) or words[one.number].text != one.word:
            raise UserError(
                f"the word {one.word!r} of case {one.prompt.key} is not where it should be in the prompt of "
                f"{vlm.name}; its chat template changes the question; leave task.transplant out"
            )
        columns.append(words[one.number].columns[-1])
    return prompts, encoded, (torch.arange(len(prompts)), torch.tensor(columns))
