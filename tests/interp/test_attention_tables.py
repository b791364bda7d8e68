"""Tables and maps over masses: laws that need no model."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.attention.tables import (
    AttentionMap,
    Masses,
    image_share,
    mass_table,
    normalised,
    patch_map,
    weights_of,
)
from interp.attention.tables import word_masses as words_of
from interp.errors import UserError
from interp.image_grid import PatchGrid
from interp.segments import SEGMENTS, RowSegments, Word


def masses(*, layers=(0, 3), rows=2, heads=3, columns=(4, 5), seed=0, first_row=0, real=None):
    """Random shares that sum to one, none of it on padding."""
    draw = np.random.default_rng(seed)
    mass = draw.dirichlet(np.ones(len(SEGMENTS)), (len(layers), rows, heads, len(columns))).astype(np.float32)
    tokens = torch.tensor([[0.0, 1, 4, 5, 6, 0, 9]] * rows)
    return Masses(
        mass=torch.tensor(mass),
        layers=layers,
        columns=columns,
        width=6,
        first_row=first_row,
        tokens=tokens,
        real=torch.ones(rows, len(columns), dtype=torch.bool) if real is None else torch.tensor(real),
    )


def test_each_number_stands_in_its_own_row():
    piece = masses(first_row=10, real=[[True, False], [True, True]])
    table = mass_table([piece])
    assert len(table) == 3 * 2 * 3 * len(SEGMENTS)
    for line in table.itertuples():
        expected = piece.mass[
            piece.layers.index(line.layer), line.row - 10, line.head, piece.columns.index(line.query)
        ][SEGMENTS.index(line.segment)]
        assert line.mass == float(expected)
        assert line.step == line.query - 5
        assert line.tokens == int(piece.tokens[line.row - 10, SEGMENTS.index(line.segment)])
    assert not ((table["row"] == 10) & (table["query"] == 5)).any()


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_what_the_sink_leaves_sums_to_one(seed):
    table = normalised(mass_table([masses(seed=seed)]))
    left = table[table["segment"] != "sink"].groupby(["row", "step", "layer", "head"])["mass_without_sink"].sum()
    assert left.to_numpy() == pytest.approx(1, abs=1e-5)
    assert table.loc[table["segment"] == "sink", "mass_without_sink"].isna().all()
    filled = table[table["tokens"] > 0]
    assert (filled["mass_per_token"] * filled["tokens"]).to_numpy() == pytest.approx(filled["mass"].to_numpy())
    assert table.loc[table["tokens"] == 0, "mass_per_token"].isna().all()


def test_image_share_is_the_mean_over_heads():
    piece = masses()
    image, sink = (piece.mass[..., SEGMENTS.index(name)] for name in ("image_0", "sink"))
    raw = image_share(mass_table([piece]), without_sink=False).set_index(["row", "step", "layer"])["share"]
    left = image_share(mass_table([piece])).set_index(["row", "step", "layer"])["share"]
    assert raw[1, 0, 3] == pytest.approx(float(image[1, 1, :, 1].mean()))
    assert left[1, 0, 3] == pytest.approx(float((image / (1 - sink))[1, 1, :, 1].mean()))
    assert len(raw) == len(left) == 2 * 2 * 2


def a_map():
    weights = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(0))
    return AttentionMap(row=0, step=0, query=7, layers=(0, 3), weights=weights / weights.sum(-1, keepdim=True))


def test_maps_are_averaged_over_what_is_asked():
    found = a_map()
    assert torch.allclose(weights_of(found), found.weights.mean((0, 1)))
    assert torch.allclose(weights_of(found, layers=[3], heads=[1]), found.weights[1, 1])
    with pytest.raises(UserError, match="no layer 1 in this map; known: 0, 3"):
        weights_of(found, layers=[1])
    with pytest.raises(UserError, match="no head 3 in this map; known: 0, 1, 2"):
        weights_of(found, heads=[3])


def test_weights_over_the_picture_and_over_words():
    weights = torch.arange(8.0)
    grid = PatchGrid("base", torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert torch.equal(patch_map(weights, grid), torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    row = RowSegments(("user",) * 8, tuple(range(8)), (Word("kill", (1, 2)), Word("it", (7,))), ())
    table = words_of(weights, row)
    assert table.equals(pd.DataFrame({"word": ["kill", "it"], "mass": [3.0, 7.0]}))
