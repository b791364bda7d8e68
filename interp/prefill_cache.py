"""Read the same prompts once: prefills that several calls of ``VLM.generate`` share.

    vlm.prefill_cache = PrefillCache()
    Baseline().generate(vlm, prompts, max_new_tokens=8)
    ConstantShift(1.0).generate(vlm, prompts, max_new_tokens=8)  # chooses from the logits that were read above
    print(vlm.prefill_cache.computed, vlm.prefill_cache.reused)
    vlm.prefill_cache = None

A prefill is the forward of a batch of prompts: its KV cache, and the logits of the first answer token. With a picture
it is most of a verdict's cost. ``VLM.generate`` asks the cache before it reads prompts. It gets a copy of the prefill
of the same inputs, weights and kind of branch. Answers and margins have the same bits as without the cache. A forward
that is recorded, edited, adapted or differentiated is neither stored nor replaced.
"""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import ModelOutput

from interp.generation import NAMES, cache_in
from interp.hooks.attention import is_intercepted
from interp.hooks.forward import hooked

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

PARAMETERS = ("input_ids", "generation_config", "model_kwargs")  # of the method of transformers that reads prompts
GROWING = (DynamicLayer, DynamicSlidingWindowLayer)  # a step makes new tensors and leaves the old tensors as they are
MADE_OF_INPUTS = (*NAMES, "mm_encoder_outputs", "inputs_embeds")  # by generate, before the prefill
PLAIN = bool | int | float | str | None | torch.dtype  # inputs that are what they print
HEAD = "interp.output_head"  # its hooks make the head's logits float32, for every answer alike
OTHER_DECODING = {"custom_generate", "streamer", "assistant_model", "prefill_chunk_size", "return_dict_in_generate"}


@dataclass
class _Entry:
    output: Any
    size: int  # bytes
    uses: int = 1


@dataclass
class PrefillCache:
    """Prefills of one batch of prompts, for ``VLM.prefill_cache``.

    Call ``next_method`` before each method. New prefills then replace the prefills of earlier methods, except for the
    prefill that was used most. So the cache holds few of them at once. Call ``clear`` after each batch.

    Attributes:
        computed: prompts that were read.
        reused: prompts that were not read again.
        seconds: time that the reading of the reused prompts took.
        off: why the model in use shares no prefills; "" if it shares them.
        limit: most bytes to hold; set after memory has run out.
    """

    computed: int = 0
    reused: int = 0
    off: str = ""
    limit: int | None = None
    _entries: dict[bytes, _Entry] = field(default_factory=dict, repr=False)
    _recent: set[bytes] = field(default_factory=set, repr=False)  # keys used since the last ``next_method``
    _encoded: dict[Any, Any] = field(default_factory=dict, repr=False)  # the processor's outputs by prompts

    @property
    def held(self) -> int:
        """Bytes of keys and values in the cache."""
        return sum(entry.size for entry in self._entries.values())

    def next_method(self) -> None:
        """Let the prefills of the next method replace the prefills of earlier methods."""
        self._recent.clear()

    def clear(self) -> None:
        """Free all prefills and inputs."""
        self._entries.clear()
        self._recent.clear()
        self._encoded.clear()

    def give_way(self) -> bool:
        """Free all prefills because memory has run out, and hold at most half as much from then on.

        Returns:
            False if the cache was empty.
        """
        if not self._entries:
            return False
        self.limit = self.held // 2
        self.clear()
        return True

    @contextmanager
    def used_by(self, vlm: "VLM") -> Iterator[None]:
        """Set ``vlm.prefill_cache`` while open, and free the cache in the end."""
        self.off = unsupported(vlm)
        vlm.prefill_cache = None if self.off else self
        try:
            yield
        finally:
            vlm.prefill_cache = None
            self.clear()

    def encoded(self, prompts: Sequence["Prompt"], process: Callable[[Sequence["Prompt"]], Any]) -> Any:
        """Return a new mapping with the inputs of ``prompts``; process the same words and pixels once."""
        key = tuple(prompt.content for prompt in prompts)
        if key not in self._encoded:
            self._encoded[key] = process(prompts)
        return copy.copy(self._encoded[key])

    def decoding(self, vlm: "VLM", batch: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the option of ``model.generate`` that takes the prefill of ``batch`` from this cache.

        Returns:
            No option if the call decodes in another way, or if ``unsupported(vlm)``.
        """
        if unsupported(vlm) or any(options.get(name) for name in OTHER_DECODING):
            return {}

        def decode(
            model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
            **model_kwargs: Any,
        ) -> Any:  # fmt: skip
            def prefill(input_ids: Tensor, config: Any, kwargs: dict[str, Any], **more: Any) -> Any:
                def run() -> Any:
                    return model._prefill(input_ids, config, kwargs, **more)

                if not _empty(cache_in(kwargs)):
                    return run()
                passed = {name: value for name, value in kwargs.items() if name not in MADE_OF_INPUTS}
                inputs = {**passed, **more, **batch, "input_ids": input_ids}
                output, copied = self._read(vlm, "generate", inputs, run)
                for hook in model._forward_hooks.values() if copied else ():
                    if getattr(hook, "only_listens", False):
                        hook(model, (), output)
                return output

            sample = type(model)._sample
            return sample(
                _WithPrefill(model, prefill), input_ids, logits_processor, stopping_criteria, generation_config,
                **model_kwargs,
            )  # fmt: skip

        return {"custom_generate": decode}

    def second_branch(self, vlm: "VLM", inputs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """Return the result of ``run`` for ``inputs``, a prefill outside ``generate``, or a copy of an earlier result.

        The result is a tuple that holds the KV cache. Dictionaries in it are copied without their values.
        """
        return self._read(vlm, "second branch", inputs, run)[0]

    def _read(self, vlm: "VLM", branch: str, inputs: Mapping[str, Any], run: Callable[[], Any]) -> tuple[Any, bool]:
        """Return the result of ``run`` or a copy of an earlier result for ``inputs``, and whether it is a copy.

        Kinds of ``branch`` share nothing: they form positions and masks in other ways, and may round otherwise.
        """
        rows = len(next(value for value in inputs.values() if isinstance(value, Tensor)))
        key = None if altered(vlm.model) else _key(vlm, branch, inputs)
        entry = None if key is None else self._entries.get(key)
        if entry is not None and key is not None:
            entry.uses += 1
            self._recent.add(key)
            self.reused += rows
            return _copied(entry.output), True
        if key is not None:
            self._make_room()
        output = run()
        self.computed += rows
        size = _size(output)
        if key is not None and size and (self.limit is None or self.held + size <= self.limit):
            self._entries[key] = _Entry(_copied(output), size)
            self._recent.add(key)
        return output, False

    def _make_room(self) -> None:
        """Free the prefills of earlier methods, except for the prefill that was used most."""
        most = max(self._entries, key=lambda key: self._entries[key].uses, default=None)
        for key in [key for key in self._entries if key != most and key not in self._recent]:
            del self._entries[key]


class _WithPrefill:
    """The model as the decoding loop of transformers sees it, with another function that reads the prompts."""

    def __init__(self, model: Any, prefill: Callable[..., Any]) -> None:
        self._model, self._prefill = model, prefill

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def unsupported(vlm: "VLM") -> str:
    """Return as a sentence why prefills of ``vlm`` cannot be shared; "" if they can."""
    prefill = getattr(type(vlm.speaker), "_prefill", None)
    if prefill is not None and tuple(inspect.signature(prefill).parameters)[1:4] == PARAMETERS:
        return ""
    return (
        f"each arm reads the prompts of {vlm.name} again: transformers {transformers.__version__} reads prompts in an "
        "unknown way. Install transformers 5.23 to read them once."
    )


def altered(model: Any) -> bool:
    """Return whether something other than inputs and weights may matter to a forward, or is watching it."""
    return is_intercepted(model) or model.training or torch.is_grad_enabled() or any(map(_changed, model.modules()))


def _changed(module: Any) -> bool:
    """Return whether a module has an adapter, a hook, or another function in place of its forward."""
    if hasattr(module, "get_base_layer") or hooked(module, but=(HEAD,)):
        return True
    # accelerate sets a forward on modules that it places.
    return "forward" in vars(module) and not hasattr(module, "_hf_hook")


def _key(vlm: "VLM", branch: str, inputs: Mapping[str, Any]) -> bytes | None:
    """Return a digest of all that decides a prefill; None if an input is of an unknown kind."""
    if not all(isinstance(value, Tensor | PLAIN) for value in inputs.values()):
        return None
    head = vlm.module_map.module(vlm.model, "lm_head")
    digest = hashlib.sha256(f"{branch} {len(head._forward_pre_hooks)} {len(head._forward_hooks)}".encode())
    _add_weights(digest, vlm.model.parameters())
    _add_inputs(digest, inputs)
    return digest.digest()


def _add_weights(digest: Any, weights: Iterable[Tensor]) -> None:
    """Add the pointer and version of each weight to a digest. Writing to a weight changes its version."""
    for weight in weights:
        digest.update(b"%d %d " % (weight.data_ptr(), 0 if weight.is_inference() else weight._version))


def _add_inputs(digest: Any, inputs: Mapping[str, Any]) -> None:
    """Add the names and values of inputs to a digest: the bytes of a tensor, the text of any other value."""
    for name, value in sorted(inputs.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)} {value.device}".encode())
            digest.update(value.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())


def _empty(cache: Any) -> bool:
    return cache is None or (type(cache) is DynamicCache and not cache.offloading and not cache.get_seq_length())


def _size(output: Any) -> int:
    """Return the bytes of an output's KV cache; 0 if it has none that can be copied."""
    values = output.values() if isinstance(output, ModelOutput) else output
    caches = [value for value in values if isinstance(value, Cache)]
    if len(caches) != 1 or type(caches[0]) is not DynamicCache:
        return 0
    return sum(each.nbytes for layer in caches[0].layers for each in vars(layer).values() if isinstance(each, Tensor))


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    if isinstance(value, Tensor):
        return value.clone()
    result: Any = copy.copy(value)
    if isinstance(value, DynamicCache):
        # Recurrent states are written to in place.
        result.layers = [copy.copy(each) if type(each) in GROWING else copy.deepcopy(each) for each in value.layers]
    elif isinstance(value, ModelOutput):
        result["logits"] = value["logits"][:, -1:].clone()  # the other columns would only take up memory
        for name, each in value.items():
            if isinstance(each, DynamicCache):
                result[name] = _copied(each)
    return result
