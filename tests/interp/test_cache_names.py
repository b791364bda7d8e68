"""The KV cache by either of its names: transformers 5.24 renamed ``past_key_values`` to ``cache``."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from interp.attention.record import Queries, record_attention
from interp.generation import NAMES, cache_in, cache_name, with_cache
from interp.vlm import VLM, Prompt
from tests.tiny import picture

pytestmark = pytest.mark.ends
PROMPTS = (Prompt("How do I kill it?", picture(0)), Prompt("Is this safe to eat?", picture(1)))


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


def renamed(values: Any, name: str) -> dict[str, Any]:
    """The same with the cache by ``name``."""
    return {name if key in NAMES else key: value for key, value in values.items()}


def test_the_installed_transformers_takes_the_name_and_says_nothing(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import generic

    monkeypatch.setattr(generic.logger, "warning_once", pytest.fail)
    inputs = vlm.encode(PROMPTS)
    cache = DynamicCache(config=vlm.model.config.get_text_config())
    with torch.no_grad():
        output = vlm.model(**inputs, **with_cache(cache), use_cache=True)
        assert cache_in(vlm.model(**inputs, use_cache=False)) is None
    assert cache_in(output) is cache
    assert cache.get_seq_length() == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("name", NAMES)
def test_decoding_is_followed_by_either_name(vlm: VLM, name: str) -> None:
    """Hooks before the recorder's give the cache this name; those behind them give the model its own back."""
    outputs: list[Any] = []

    def rename(to: str) -> Any:
        hook = vlm.speaker.register_forward_pre_hook
        return hook(lambda module, args, kwargs: (args, renamed(kwargs, to)), with_kwargs=True)

    def put_away(module: Any, args: Any, output: Any) -> Any:
        outputs.append(output)
        return Output(renamed(output, name)) if name == "cache" else type("Own", (), renamed(output, name))()

    with record_attention(vlm, queries=Queries.ALL) as plain:
        vlm.generate(PROMPTS, max_new_tokens=3)
    handles = [rename(name), vlm.speaker.register_forward_hook(put_away)]
    with record_attention(vlm, queries=Queries.ALL) as record:
        handles += [rename(cache_name()), vlm.speaker.register_forward_hook(lambda *_: outputs.pop())]
        vlm.generate(PROMPTS, max_new_tokens=3)
    for handle in handles:
        handle.remove()
    assert record.masses.equals(plain.masses)
