"""A digest of what decides, besides the weights, how a model answers: configuration, processor, template, end tokens.

The classes are transformers', and write other settings in another version. So a digest names the minor version that it
was made in, and only two of the same version are compared.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

LENGTH = 12  # hex digits
FORM = ".2"  # of the digest: two of other forms are not compared
# What files say of themselves, of the library that wrote them, or of how they were loaded, and not of what they do.
ASIDE = frozenset(
    (
        *("processor_class", "image_processor_type", "transformers_version", "name_or_path", "_name_or_path"),
        *("architectures", "dtype", "torch_dtype", "use_cache", "quantization_config"),
    )
)
LAST_CALL = ("padding", "truncation")  # of the tokenizer's own state
PLAIN = (bool, int, float, str, list, tuple, type(None))


def configuration_digest(config: Any) -> str:
    """A digest of a transformers configuration, without the dtype that the weights were loaded in."""
    return _digest(_settings(config.to_diff_dict()))


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of vocabulary, merges, normalisation and special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a slow tokenizer: its vocabulary
        state: Any = [sorted(tokenizer.get_vocab().items()), str(tokenizer.special_tokens_map)]
    else:
        state = {name: value for name, value in json.loads(backend.to_str()).items() if name not in LAST_CALL}
        state["special"] = str(tokenizer.special_tokens_map)
    return _digest(state)


def tokenizers_of(processor: Any) -> dict[str, Any]:
    """The processor's tokenizers by attribute: InstructBLIP has a second one for its Q-Former."""
    return {name: part for name, part in vars(processor).items() if hasattr(part, "get_vocab")}


def preprocessing_digest(processor: Any, *, digests: Mapping[str, str], ends: set[int]) -> str:
    """``sha256:``, 12 hex digits of what ``processor`` does, and the version of transformers ("sha256:3f…@5.23").

    The class of an image processor counts: PIL and torchvision scale pictures to other pixels.

    Args:
        known: digests of what is not read here: of the configuration, and of ``tokenizers_of(processor)``.
        ends: the tokens that end an answer.
    """
    parts = {
        name: [type(part).__name__, _settings(part.to_dict())] if hasattr(part, "to_dict") else _settings(part)
        for name, part in vars(processor).items()
        if name not in digests and (isinstance(part, PLAIN) or hasattr(part, "to_dict"))
    }
    library = ".".join(version("transformers").split(".")[:2])
    return f"sha256:{_digest([dict(digests), sorted(ends), str(processor.chat_template), parts])}@{library}{FORM}"


def is_other(recorded: str | None, here: str) -> bool:
    """Whether two digests tell two models apart; one that is not known or is of another version does not."""
    return bool(recorded) and recorded != here and str(recorded).partition("@")[2] == here.partition("@")[2]


def _settings(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {str(name): _settings(value) for name, value in given.items() if name not in ASIDE}
    return [_settings(each) for each in given] if isinstance(given, list | tuple) else given


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:LENGTH]


def pixel_inputs(inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that hold pixels: floating-point tensors that are no mask."""
    floats = (name for name, value in inputs.items() if getattr(value, "is_floating_point", bool)())
    return sorted(name for name in floats if not name.endswith("mask"))
