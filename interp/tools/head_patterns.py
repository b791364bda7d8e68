"""Where chosen heads look: attention of the verdict, head by head, over image patches and words.

The weights are the model's own (``interp.attention.record``), in float32, and sum to 1 over the prompt. Attention
is not causation: ``knockout_by_head`` says what a head's edges matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from interp.attention.record import record_attention
from interp.attention.tables import patch_map, word_masses
from interp.errors import UserError
from interp.hooks.attention import chosen_layers
from interp.hooks.sublayers import chosen_heads
from interp.prompt import Prompt
from interp.segments import RowSegments

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.vlm import VLM

Head = tuple[int, int]
"""Decoder layer and head, both from 0."""


@dataclass(frozen=True)
class HeadPatterns:
    """The attention of one prompt's ``step`` (0: the verdict), by head: shares of 1 over the prompt's columns."""

    weights: Float[Tensor, "head column"]
    heads: tuple[Head, ...]
    step: int
    prompt: Prompt
    row: RowSegments

    @property
    def maps(self) -> dict[str, Float[np.ndarray, "height width"]]:
        """Each head's attention on the image patches, by the head's name; of the first grid that covers the picture.

        Raises:
            UserError: the prompt has no picture, or its image tokens have no location in it.
        """
        if not self.row.grids:
            raise UserError(
                self.row.imageless
                or f"no map of the picture for {self.prompt.text!r}: it has none, or its image tokens stand for no "
                "place in it; read .words"
            )
        grid = self.row.grids[0]
        return {name: patch_map(weights, grid).numpy() for name, weights in self._named()}

    @property
    def words(self) -> pd.DataFrame:
        """Columns layer, head, word, mass: attention on the tokens of each word of the question, in reading order."""
        tables = [
            word_masses(weights, self.row).assign(layer=layer, head=head)
            for (layer, head), weights in zip(self.heads, self.weights, strict=True)
        ]
        return pd.concat(tables, ignore_index=True)[["layer", "head", "word", "mass"]]

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns layer, head, column, segment, token (its id), weight."""
        return pd.DataFrame(
            {
                "layer": layer,
                "head": head,
                "column": column,
                "segment": self.row.labels[column],
                "token": self.row.input_ids[column],
                "weight": float(weights[column]),
            }
            for (layer, head), weights in zip(self.heads, self.weights, strict=True)
            for column in range(len(self.row.labels))
        )

    def plot(self, title: str = "") -> "Figure":
        """Each head over the picture; where there is none, over the words (``plot_words``)."""
        from interp.figures.attention import image_overlay

        if not self.row.grids or self.prompt.image is None:
            return self.plot_words(title)
        return image_overlay(self.prompt.image, self.maps, box=self.row.grids[0].box, title=title)

    def plot_words(self, title: str = "") -> "Figure":
        """Each head over the words of the question.

        Raises:
            UserError: the question has no words.
        """
        from interp.figures.attention import Words, text_heat

        named = {name: word_masses(weights, self.row) for name, weights in self._named()}
        return text_heat(
            {name: Words(words["word"].tolist(), words["mass"].tolist()) for name, words in named.items()}, title=title
        )

    def _named(self) -> list[tuple[str, Tensor]]:
        names = [f"layer {layer}, head {head}" for layer, head in self.heads]
        return list(zip(names, self.weights, strict=True))


def head_patterns(vlm: "VLM", prompt: Prompt, heads: Sequence[Head], *, step: int = 0) -> HeadPatterns:
    """The attention of ``heads``, (layer, head) each, at ``step``: 0 is the verdict, −1 the token before it.

    ``direct_logit_attribution(vlm, prompt).top(5)`` gives heads to look at.

    Raises:
        UserError: no heads, one that does not exist, a step after the verdict or before the prompt, or a model that
            cannot be recorded (``interp.attention.record``).
    """
    heads = tuple((int(layer), int(head)) for layer, head in heads)
    earlier = sorted({layer for layer, _ in heads} & vlm.module_map.blocks.keys())
    chosen_heads(vlm, [head for _, head in heads], earlier or None)
    if step > 0:
        raise UserError(f"step={step} comes after the verdict, which is 0; use record_attention, which follows answers")
    layers = sorted(set(chosen_layers(vlm, [layer for layer, _ in heads])))
    with record_attention(vlm, queries=[], maps=[step], layers=layers) as record:
        vlm.score([prompt])
    (result,) = record.maps
    places = [(result.layers.index(layer), head) for layer, head in heads]
    weights = result.weights[[layer for layer, _ in places], [head for _, head in places]]
    return HeadPatterns(weights, heads, step, prompt, record.rows[0])
