"""The KV cache by either of its names: transformers 5.24 renamed ``past_key_values`` to ``cache``."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from interp.cache_names import NAMES, cache_in


class Output(OrderedDict[str, Any]):
    """What a forward of transformers 5.24 gives: whoever asks it for the old name gets a warning."""

    def get(self, key: str, default: Any = None) -> Any:
        assert key != "past_key_values", "this prints a warning"
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        assert key != "past_key_values", "this prints a warning"
        return super().__getitem__(key)

    @property
    def past_key_values(self) -> Any:
        raise AssertionError("this prints a warning")


@pytest.mark.parametrize("name", NAMES)
def test_either_name_is_found(name: str) -> None:
    cache = DynamicCache()
    assert cache_in({name: cache, "use_cache": True}) is cache
    assert cache_in(type("Own", (), {name: cache})()) is cache
    assert cache_in({name: None}) is None
    assert cache_in((torch.zeros(1),)) is None


def test_no_output_is_asked_for_the_old_name() -> None:
    cache = DynamicCache()
    assert cache_in(Output(logits=1, cache=cache)) is cache
    assert cache_in(Output(logits=1)) is None
