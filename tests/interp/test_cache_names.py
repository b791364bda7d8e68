"""The KV cache by either of its names: transformers 5.24 renamed ``past_key_values`` to ``cache``."""

import pytest
import torch
from transformers import DynamicCache

from interp.generation import cache_in, with_cache
from interp.vlm import VLM, Prompt
from tests.tiny import picture

pytestmark = pytest.mark.ends
PROMPTS = (Prompt("How do I kill it?", picture(0)), Prompt("Is this safe to eat?", picture(1)))


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
