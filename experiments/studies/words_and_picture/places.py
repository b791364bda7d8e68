"""Words of prompts by their columns: "this" beside the picture, the noun in words; states read and put there.

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
from experiments.evaluation.attention_log import prompts_of
from experiments.studies.words_and_picture.conditions import NAMED, POINTING, POINTS, in_words, thing_of
from experiments.studies.words_and_picture.readings import PLACES
from experiments.types import Sample
from interp.device_copies import to_device, to_host
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.segments import WORD, segment
from interp.speed.unchanged import Prefix
from interp.tools.knockout import Edge, knockout

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM


@dataclass(frozen=True)
class Placed:
    """A prompt, and by its number (0: the first) and letters one word of it, whose last token is meant."""

    prompt: "Prompt"
    number: int
    word: str

    @classmethod
    def up_to(cls, prompt: "Prompt", stop: int) -> "Placed":
        """The word that ends at character ``stop`` of the prompt's text."""
        words = WORD.findall(prompt.text[:stop])
        return cls(prompt, len(words) - 1, words[-1])


def that_point(samples: Sequence[Sample]) -> list[Sample]:
    """The scored cases whose request says "this", once."""
    return [one for one in samples if one.subset != "control" and len(POINTS.findall(one.text)) == 1]


def pointed_at(samples: Sequence[Sample]) -> list[Placed]:
    """The cases with their pictures, at "this"."""
    return [
        Placed.up_to(prompt, prompt.text.rindex(sample.text) + _this(sample).end())
        for sample, prompt in zip(samples, prompts_of(samples), strict=True)
    ]


def pointed_at_in_words(samples: Sequence[Sample]) -> list[Placed]:
    """The cases in words, pointing ("There is a cockroach."), at "this"."""
    found = []
    for sample, words in zip(samples, in_words(samples)[POINTING], strict=True):
        (prompt,) = prompts_of([words])
        found.append(Placed.up_to(prompt, prompt.text.rindex(words.text) + _this(sample).end()))
    return found


def named(samples: Sequence[Sample]) -> list[Placed]:
    """The cases in words, at the last token of what stands where "this" stood."""
    found = []
    for sample, words in zip(samples, in_words(samples)[NAMED], strict=True):
        (prompt,) = prompts_of([words])
        stop = prompt.text.rindex(words.text) + _this(sample).start() + len(definite(thing_of(sample)))
        found.append(Placed.up_to(prompt, stop))
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


def others_of(samples: Sequence[Sample]) -> list[int | None]:
    """By case, the place of the other member of its pair; None where it is not among the cases."""
    at = {(sample.pair, sample.gold): place for place, sample in enumerate(samples) if sample.pair}
    return [at.get((sample.pair or "", "no" if sample.gold == "yes" else "yes")) for sample in samples]


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
