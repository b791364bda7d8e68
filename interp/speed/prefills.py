"""Prefills shared by content: the same prompts, asked again in other ways, are read once.

    store = PrefillStore()
    with shared_prefills(vlm, store):
        Baseline().generate(vlm, prompts, max_new_tokens=8)
        ConstantShift(1.0).generate(vlm, prompts, max_new_tokens=8)  # chooses from the logits that were read above
    print(store.computed, store.reused)

A prefill is the forward of a batch of prompts: its KV cache, and the logits of the first answer token. With a
picture it is most of a verdict's cost. ``generate`` stays whole; where it would read the prompts, it gets a copy of
what was kept for the same inputs, the same weights and the same kind of branch. Nothing is computed otherwise, so
answers and margins have the same bits. A forward that is recorded, edited, adapted or differentiated is neither kept
nor replaced.
"""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import ModelOutput

from interp.cache_names import NAMES, cache_in
from interp.hooks.attention import is_intercepted
from interp.hooks.forward import hooked, replaced
from interp.pictures import pixels
from interp.speed.vision_cache import add_inputs, add_weights, keeps_features, synchronised_time

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

ASKED = ("input_ids", "generation_config", "model_kwargs")  # the parameters of the method that reads prompts
GROWING = (DynamicLayer, DynamicSlidingWindowLayer)  # whose steps make new tensors and leave the old ones alone
MADE_OF_INPUTS = (*NAMES, "mm_encoder_outputs", "inputs_embeds")  # by generate, before the prefill
PLAIN = bool | int | float | str | None | torch.dtype  # inputs that are what they print
HEAD = "interp.output_head"  # its hooks make the head's logits float32, for every answer alike
_OPEN: ContextVar["PrefillStore | None"] = ContextVar("prefills", default=None)


@dataclass
class _Entry:
    output: Any
    seconds: float
    size: int  # bytes
    uses: int = 1


@dataclass
class PrefillStore:
    """Prefills that were read while ``shared_prefills`` is open.

    ``computed`` and ``reused`` count prompts: those that were read, and those that were not because they had been.
    ``seconds`` is what reading the reused ones took. ``off`` is why nothing is shared, "" if something may be.

    Call ``turn`` between ways of asking: what is read from then on replaces what earlier ways have read, but for the
    prefill that was used most, so that few of them are held at once.
    """

    computed: int = 0
    reused: int = 0
    seconds: float = 0.0
    off: str = ""
    most: int | None = None  # bytes held at most, once memory has run out
    _vlm: "VLM | None" = None
    _entries: dict[bytes, _Entry] = field(default_factory=dict, repr=False)
    _own: set[bytes] = field(default_factory=set, repr=False)  # those used since the last turn
    _encoded: dict[Any, Any] = field(default_factory=dict, repr=False)  # what prompts were made into

    @property
    def held(self) -> int:
        """Bytes of keys and values that are kept."""
        return sum(entry.size for entry in self._entries.values())

    def counts(self) -> dict[str, int | float]:
        """The counts that go into a run's record."""
        return {"prefills": self.computed, "prefills_reused": self.reused, "prefill_seconds_saved": self.seconds}

    def turn(self) -> None:
        """Begins another way of asking."""
        self._own.clear()

    def clear(self) -> None:
        """Frees what is kept: at the end of a batch."""
        self._entries.clear()
        self._own.clear()
        self._encoded.clear()

    def give_way(self) -> bool:
        """Frees what is kept because memory has run out, and keeps at most half as much from then on.

        False where nothing was kept.
        """
        if not self._entries:
            return False
        self.most = self.held // 2
        self.clear()
        return True

    def once(self, branch: str, inputs: Mapping[str, Any], read: Callable[[], Any]) -> tuple[Any, bool]:
        """What ``read`` gives for ``inputs``, or a copy of what it gave before; and whether it is a copy.

        Prefills of another ``branch`` are apart: it forms positions and masks in another way, and may round otherwise.
        """
        rows = len(next(value for value in inputs.values() if isinstance(value, Tensor)))
        key = None if self._altered() else self._key(branch, inputs)
        entry = None if key is None else self._entries.get(key)
        if entry is not None and key is not None:
            entry.uses += 1
            self._own.add(key)
            self.reused += rows
            self.seconds += entry.seconds
            return _copied(entry.output), True
        if key is not None:
            self._make_room()
        begun = synchronised_time()
        output = read()
        self.computed += rows
        if key is not None and (caches := _caches(output)):
            size = sum(map(_size, caches))
            if self.most is None or self.held + size <= self.most:
                self._entries[key] = _Entry(_copied(output), synchronised_time() - begun, size)
                self._own.add(key)
        return output, False

    def _make_room(self) -> None:
        """Frees what this way of asking has not used, but for the prefill that was used most."""
        most = max(self._entries, key=lambda key: self._entries[key].uses, default=None)
        for key in [key for key in self._entries if key != most and key not in self._own]:
            del self._entries[key]

    def _altered(self) -> bool:
        """Whether something other than inputs and weights may matter to a forward, or somebody looks at it."""
        assert self._vlm is not None
        model = self._vlm.model
        return is_intercepted(model) or model.training or torch.is_grad_enabled() or any(map(_changed, model.modules()))

    def _key(self, branch: str, inputs: Mapping[str, Any]) -> bytes | None:
        """A digest of all that decides a prefill; None where an input is of a kind that is not known."""
        assert self._vlm is not None
        if not all(isinstance(value, Tensor | PLAIN) for value in inputs.values()):
            return None
        head = self._vlm.layout.module(self._vlm.model, "lm_head")
        digest = hashlib.sha256(f"{branch} {len(head._forward_pre_hooks)} {len(head._forward_hooks)}".encode())
        add_weights(digest, self._vlm.model.parameters())
        add_inputs(digest, inputs)
        return digest.digest()


@contextmanager
def shared_prefills(vlm: "VLM", store: PrefillStore | None) -> Iterator[None]:
    """While open, prompts that ``vlm`` has read before are taken from ``store``; None changes nothing.

    Where this version of transformers, or the model, reads prompts in a way that is not known here, nothing is shared
    and ``store.off`` says why. What is kept is freed in the end.
    """
    if store is None:
        yield
        return
    store.off = why_not(vlm)
    if store.off:
        yield
        return
    prefill = vlm.speaker._prefill

    def reading(input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], **more: Any) -> Any:
        def read() -> Any:
            return prefill(input_ids, generation_config, model_kwargs, **more)

        config, cache, given = generation_config, cache_in(model_kwargs), vlm.generating_from
        if (
            config.prefill_chunk_size is not None
            or config.return_dict_in_generate
            or not _empty(cache)
            or given is None
        ):
            return read()
        passed = {name: value for name, value in model_kwargs.items() if name not in MADE_OF_INPUTS}
        output, copied = store.once("generate", {**passed, **more, **given, "input_ids": input_ids}, read)
        for hook in vlm.speaker._forward_hooks.values() if copied else ():
            if getattr(hook, "only_listens", False):
                hook(vlm.speaker, (), output)
        return output

    process = vlm._processed

    def processing(prompts: Sequence["Prompt"]) -> Any:
        """Inputs of the same words and pictures (by their pixels) are made once; each caller gets a mapping."""
        key = tuple((prompt.text, prompt.system, pixels(prompt.image)) for prompt in prompts)
        if key not in store._encoded:
            store._encoded[key] = process(prompts)
        return copy.copy(store._encoded[key])

    token, store._vlm = _OPEN.set(store), vlm
    try:
        with replaced(vlm.speaker, "_prefill", reading), replaced(vlm, "_processed", processing):
            yield
    finally:
        _OPEN.reset(token)
        store._vlm = None
        store.clear()


def why_not(vlm: "VLM") -> str:
    """Why prefills of ``vlm`` cannot be shared, as a sentence; "" if they can."""
    prefill = getattr(type(vlm.speaker), "_prefill", None)
    if prefill is not None and tuple(inspect.signature(prefill).parameters)[1:4] == ASKED:
        return ""
    return (
        f"prompts of {vlm.name} are read once for each arm: transformers {transformers.__version__} reads them in a "
        "way that is not known here; with 5.23 an arm takes over what another has read"
    )


def shares_prefills(vlm: "VLM") -> bool:
    """Whether a block of ``shared_prefills`` is open for this model, and shares."""
    store = _OPEN.get()
    return store is not None and store._vlm is not None and store._vlm.speaker is vlm.speaker


def prefilled(speaker: Any, inputs: Mapping[str, Any], read: Callable[[], Any]) -> Any:
    """What ``read`` gives for ``inputs``: a prefill of ``speaker`` that does not run in ``generate``, shared likewise.

    It returns a tuple with the cache in it. Tensors are copied, dictionaries are copied without what is in them.
    """
    store = _OPEN.get()
    if store is None or store._vlm is None or store._vlm.speaker is not speaker:
        return read()
    return store.once("second branch", inputs, read)[0]


def _changed(module: Any) -> bool:
    """Whether a module's forward is not its own: an adapter, a hook, or another function in its place."""
    if hasattr(module, "get_base_layer") or hooked(module, but=(HEAD,)):
        return True
    # accelerate sets a forward on modules that it places, and the shared features on the vision tower.
    return "forward" in vars(module) and not hasattr(module, "_hf_hook") and not keeps_features(module)


def _empty(cache: Any) -> bool:
    return cache is None or (type(cache) is DynamicCache and not cache.offloading and not cache.get_seq_length())


def _caches(output: Any) -> list[DynamicCache]:
    """The cache in an output, in a list; empty where it is of a kind that cannot be copied, or not there."""
    values = output.values() if isinstance(output, ModelOutput) else output
    found = [value for value in values if isinstance(value, Cache)]
    known = [cache for cache in found if type(cache) is DynamicCache]
    return known if len(known) == len(found) == 1 else []


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    if isinstance(value, Tensor):
        return value.clone()
    found: Any = copy.copy(value)
    if isinstance(value, DynamicCache):
        # Recurrent states are written to in place.
        found.layers = [copy.copy(one) if type(one) in GROWING else copy.deepcopy(one) for one in value.layers]
    elif isinstance(value, ModelOutput):
        found["logits"] = value["logits"][:, -1:].clone()  # the other columns would only take up memory
        for name, each in value.items():
            if isinstance(each, DynamicCache):
                found[name] = _copied(each)
    return found


def _size(cache: DynamicCache) -> int:
    tensors = [value for layer in cache.layers for value in vars(layer).values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
