"""Attention masses and maps as tidy tables, and statistics of them.

There are more image tokens than text tokens, and the first token is an attention sink. Report a raw share of attention
together with the share without the sink and the share per token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import UserError
from interp.image_grid import PatchGrid
from interp.segments import SEGMENTS, RowSegments

COLUMNS = ("row", "step", "query", "layer", "head", "segment", "tokens", "mass")


@dataclass(frozen=True)
class Masses:
    """The masses of one forward.

    ``real`` is False for queries to leave out (padding, rows whose answer has ended). ``tokens`` are counts by segment.
    ``imageless``: the family has no image tokens, so their mass is missing in tables instead of 0.
    """

    mass: Float[Tensor, "layer row head query segment"]
    layers: tuple[int, ...]
    columns: tuple[int, ...]
    width: int  # columns of the prompts
    first_row: int
    tokens: Float[Tensor, "row segment"]
    real: Bool[Tensor, "row query"]
    imageless: bool = False
    names: tuple[str, ...] = SEGMENTS


@dataclass(frozen=True)
class AttentionMap:
    """All attention of one query. ``weights`` sum to 1 over the batch's columns up to the newest."""

    row: int
    step: int
    query: int  # column in the batch
    layers: tuple[int, ...]
    weights: Float[Tensor, "layer head column"]


def mass_table(pieces: Iterable[Masses]) -> pd.DataFrame:
    """Long table with ``COLUMNS``, without padding queries."""
    tables = [_table(piece) for piece in pieces]
    if tables:
        return pd.concat(tables, ignore_index=True)
    return pd.DataFrame({name: [] for name in COLUMNS})


def _table(piece: Masses) -> pd.DataFrame:
    rows, queries = np.nonzero(piece.real.numpy())
    mass = piece.mass.numpy()[:, rows, :, queries]  # query layer head segment: numpy moves paired indices to the front
    if piece.imageless:
        mass = np.where([name.startswith("image") for name in piece.names], np.nan, mass).astype(mass.dtype)
    column, names = np.asarray(piece.columns)[queries], list(piece.names)

    def along(axes: str, values: Any, kind: type[np.integer]) -> np.ndarray:
        """``values`` along one or two of the axes q(uery), l(ayer), h(ead), s(egment), for each number of the mass."""
        current = np.asarray(values, kind).reshape(
            [mass.shape[i] if axis in axes else 1 for i, axis in enumerate("qlhs")]
        )
        return np.broadcast_to(current, mass.shape).reshape(-1)

    return pd.DataFrame(
        {
            "row": along("q", rows + piece.first_row, np.int32),
            "step": along("q", column - piece.width + 1, np.int32),
            "query": along("q", column, np.int32),
            "layer": along("l", piece.layers, np.int16),
            "head": along("h", range(mass.shape[2]), np.int16),
            "segment": pd.Categorical.from_codes(along("s", range(mass.shape[3]), np.int8), categories=names),
            "tokens": along("qs", piece.tokens.numpy()[rows], np.int32),
            "mass": mass.reshape(-1),
        }
    )


def normalised(masses: pd.DataFrame) -> pd.DataFrame:
    """Add ``mass_without_sink`` and ``mass_per_token`` to the table.

    The first is the share of the attention that is not on the sink, missing for the sink itself. The second is the raw
    mass divided by the segment's number of tokens, missing if it has none.
    """
    keys = ["row", "step", "layer", "head"]
    sink = masses.loc[masses["segment"] == "sink", [*keys, "mass"]].rename(columns={"mass": "sink"})
    table = masses.merge(sink, on=keys, how="left", validate="many_to_one")
    left = (1 - table.pop("sink").fillna(0)).where(lambda rest: rest > 0)
    table["mass_without_sink"] = (table["mass"] / left).where(table["segment"] != "sink")
    table["mass_per_token"] = table["mass"] / table["tokens"].where(table["tokens"] > 0)
    return table


def image_share(masses: pd.DataFrame, *, without_sink: bool = True) -> pd.DataFrame:
    """``share`` by row, step and layer: mass on the image (0 to 1), mean over heads, by default without the sink.

    Missing if the family has no image tokens (cross-attention).
    """
    table = normalised(masses)
    value = "mass_without_sink" if without_sink else "mass"
    images = table[table["segment"].str.startswith("image")]
    heads = images.groupby(["row", "step", "layer", "head"])[value].sum(min_count=1)
    return heads.groupby(level=["row", "step", "layer"]).mean().rename("share").reset_index()


def weights_of(
    attention: AttentionMap, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Float[Tensor, " column"]:
    """Return the map's weights, averaged over the given layers and heads (default: all).

    Raises:
        UserError: a layer or head that is not in the map.
    """
    every, all_heads = attention.layers, range(attention.weights.shape[1])
    for name, chosen, there in (("layer", layers, every), ("head", heads, all_heads)):
        if unknown := [number for number in chosen or () if number not in there]:
            raise UserError(f"no {name} {unknown[0]} in this map; known: {', '.join(map(str, there))}")
    by_layer = attention.weights[[every.index(layer) for layer in (every if layers is None else layers)]]
    return by_layer[:, list(all_heads if heads is None else heads)].mean((0, 1))


def patch_map(weights: Float[Tensor, " column"], grid: PatchGrid) -> Float[Tensor, "height width"]:
    """Return the weights of the image tokens, arranged as ``grid``."""
    return weights[grid.columns]


def word_masses(weights: Float[Tensor, " column"], row: RowSegments) -> pd.DataFrame:
    """``mass`` on the tokens of each word of the question, in reading order."""
    mass = [float(weights[torch.tensor(word.columns)].sum()) for word in row.words]
    return pd.DataFrame({"word": [word.text for word in row.words], "mass": mass})
