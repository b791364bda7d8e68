"""The tests' own type checks see a wrong shape and field, and leave alone what names no shape."""

import pytest
import torch
from jaxtyping import TypeCheckError

from interp.attention.tables import AttentionMap
from interp.batching import BatchRule
from interp.vlm import VLM


def test_wrong_shapes_are_seen(vlm: VLM) -> None:
    with pytest.raises(TypeCheckError, match="logits"):
        vlm.margin(torch.zeros(3))
    with pytest.raises(TypeCheckError):
        AttentionMap(row=0, step=0, query=7, layers=(0,), weights=torch.zeros(3))


def test_what_names_no_shape_is_left_as_it_was() -> None:
    assert BatchRule("1").rows == "1"  # type: ignore[arg-type, comparison-overlap]
