"""The KV cache's name in a forward: ``cache`` from transformers 5.24 on, ``past_key_values`` before."""

from collections.abc import Mapping
from functools import cache as once
from typing import Any

NAMES = ("cache", "past_key_values")


def cache_in(values: Any) -> Any:
    """The KV cache among a forward's arguments (a mapping) or in its output (an object); None where there is none."""
    # Its items, since a transformers output that is asked for the old name warns on the terminal.
    given = dict(values.items()) if isinstance(values, Mapping) else None
    for name in NAMES:
        cache = getattr(values, name, None) if given is None else given.get(name)
        if cache is not None:
            return cache
    return None


@once
def cache_name() -> str:
    """What the installed transformers calls it."""
    from transformers.generation import utils

    return "cache" if "cache" in getattr(utils, "ALL_CACHE_NAMES", ()) else "past_key_values"


def with_cache(cache: Any) -> dict[str, Any]:
    """The cache as an argument of a forward."""
    return {cache_name(): cache}
