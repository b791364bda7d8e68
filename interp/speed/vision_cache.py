"""Saves calls of a model's vision tower: features kept by the pixels of a batch, or computed for two batches at once.

The arms of a study ask about the same pictures in the same batches, so the vision tower would repeat the same work
(``shared_features``). A contrast asks for a picture's features and then for those of its distorted copy
(``features_together``). While open, both replace a function of the live model, because no argument of transformers'
models takes features that are already computed. It is ``get_image_features`` of the module around the decoder; or the
vision tower's forward, if later steps depend on the text (InstructBLIP's Q-Former) or the features do not enter the
sequence (cross-attention).
"""

import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from interp.device_copies import synchronised_time
from interp.hooks.forward import hooked, replaced

if TYPE_CHECKING:
    from interp.vlm import VLM

FEW = 4  # pictures whose features take no longer in a call of twice as many
# The only outputs that a forward reads; the others would only take up memory.
_KEPT = {"get_image_features": ("pooler_output", "deepstack_features"), "forward": ("last_hidden_state",)}


class _Entry(NamedTuple):
    kind: type[ModelOutput]
    values: dict[str, Any]  # tensors on the CPU, or lists of them
    device: torch.device
    pictures: int
    seconds: float


@dataclass
class FeatureCache:
    """Up to ``mib`` MiB of features in main memory; 0 disables the cache.

    A full cache keeps what it has and accepts nothing more until it is cleared. Where arm after arm runs the same
    batches, the least recently used features are the ones needed next; evicting them would never leave a hit. Where all
    arms answer a batch before the next one, clear it in between.

    ``reused`` and ``computed`` count pictures (tiles, if each is a row of its own). ``seconds`` is the time that
    computing the reused ones took.
    """

    mib: int
    reused: int = 0
    computed: int = 0
    seconds: float = 0.0
    held: int = 0  # bytes
    most: int = 0  # bytes held at once so far
    _entries: dict[bytes, _Entry] = field(default_factory=dict, repr=False)

    def counts(self) -> dict[str, int | float]:
        """The counts that go into a run's record."""
        return {
            "pictures_reused": self.reused,
            "pictures_computed": self.computed,
            "seconds_saved": round(self.seconds, 3),
            "mib": round(self.most / 2**20, 3),
        }

    def clear(self) -> None:
        """Frees what is kept."""
        self._entries.clear()
        self.held = 0

    def stored(self, key: bytes) -> "ModelOutput | None":
        """The features stored under ``key``, on their original device; None if there are none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        start = time.perf_counter()
        values = {name: _moved(value, entry.device) for name, value in entry.values.items()}
        self.reused += entry.pictures
        self.seconds += max(0.0, entry.seconds - (time.perf_counter() - start))
        return entry.kind(**values)

    def keep(self, key: bytes, output: ModelOutput, names: Sequence[str], pictures: int, seconds: float) -> None:
        """Stores the fields ``names`` of an output, if there is room."""
        self.computed += pictures
        found = {name: output[name] for name in names if output.get(name) is not None}
        tensors = [tensor for value in found.values() for tensor in _tensors(value)]
        size = sum(tensor.nbytes for tensor in tensors)
        if not tensors or self.held + size > self.mib * 2**20:
            return
        self.held += size
        self.most = max(self.most, self.held)
        values = {name: _moved(value, torch.device("cpu")) for name, value in found.items()}
        self._entries[key] = _Entry(type(output), values, tensors[0].device, pictures, seconds)


@contextmanager
def shared_features(vlm: "VLM", cache: FeatureCache | None) -> Iterator[None]:
    """While open, image features are taken from ``cache`` if it holds them; None changes nothing.

    The key covers every input of the computation: all pixels of the batch, the arguments that describe their layout,
    and the version of the vision weights. Noised pixels therefore never get clean features, and answers are bit for bit
    those without the cache. (Keys by single picture would not do: a matrix product rounds differently in a batch of
    another size.) The cache is bypassed whenever something other than weights and pixels may matter: gradients,
    training mode, adapters or hooks in the vision part, or outputs that include attentions.
    """
    if cache is None or cache.mib == 0:
        yield
        return
    name = _place(vlm)[1]

    def shared(bound: Mapping[str, Any], compute: Callable[..., Any]) -> Any:
        key = _key(vlm, bound)
        if (stored := cache.stored(key)) is not None:
            return stored
        start = synchronised_time()
        output = compute(**bound)
        if isinstance(output, ModelOutput):
            cache.keep(key, output, _KEPT[name], _pictures(bound), synchronised_time() - start)
        return output

    with _computed_by(vlm, shared, stored=True):
        yield


@contextmanager
def features_together(vlm: "VLM", batches: "tuple[Mapping[str, Any], Mapping[str, Any]] | None") -> Iterator[None]:
    """While open, a call for the features of the first batch's pixels also computes the second's, for the call to come.

    ``batches`` are model inputs whose pictures have equal sizes; None changes nothing. Batches of more than ``FEW``
    pictures, which keep a device busy by themselves, are left alone, and so is everything inside ``shared_features``,
    which may have the first batch's features already. It is bypassed as that is. The features are those of a batch of
    twice the size: equal up to rounding.
    """
    if batches is None:
        yield
        return
    owner, name = _place(vlm)
    if getattr(getattr(owner, name), "features_are_stored", False) or _pictures(batches[0]) > FEW:
        yield
        return
    first, second = batches
    waiting: list[ModelOutput] = []

    def together(bound: Mapping[str, Any], compute: Callable[..., Any]) -> Any:
        if waiting and _is(bound.get("pixel_values"), second["pixel_values"]):
            return waiting.pop()
        if not _is(bound.get("pixel_values"), first["pixel_values"]):
            return compute(**bound)
        both = compute(**{key: _doubled(value, second.get(key)) for key, value in bound.items()})
        if not isinstance(both, ModelOutput):
            return compute(**bound)
        waiting[:] = [_half(both, _KEPT[name], 1)]
        return _half(both, _KEPT[name], 0)

    with _computed_by(vlm, together):
        yield


@contextmanager
def _computed_by(vlm: "VLM", compute: Callable[..., Any], *, stored: bool = False) -> Iterator[None]:
    """While open, features come from ``compute(arguments, function)``; some calls bypass it (``_passed_by``).

    ``stored`` says whether they come from a cache, with the bits that the function would give.
    """
    owner, name = _place(vlm)
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @wraps(original)  # generate() inspects the signature
    def computed(*arguments: Any, **given: Any) -> Any:
        bound = signature.bind(*arguments, **given).arguments
        bound |= bound.pop("kwargs", {})
        return original(*arguments, **given) if _passed_by(vlm, bound) else compute(bound, original)

    computed.features_are_stored = stored  # type: ignore[attr-defined]
    with replaced(owner, name, computed):
        yield


def _is(pixels: Any, own: Tensor) -> bool:
    """Return whether ``pixels`` are the tensor ``own``, or a view of all of it."""
    return isinstance(pixels, Tensor) and (pixels.data_ptr(), pixels.nbytes) == (own.data_ptr(), own.nbytes)


def _doubled(value: Any, second: Any) -> Any:
    if not isinstance(value, Tensor) or not isinstance(second, Tensor):
        return value
    return torch.cat([value, second.reshape(value.shape)])


def _half(both: ModelOutput, names: Sequence[str], which: int) -> ModelOutput:
    """The first (0) or second (1) batch's fields ``names`` of an output for two."""
    found = {name: both[name] for name in names if both.get(name) is not None}
    return type(both)(**{name: _part(value, which, name == "deepstack_features") for name, value in found.items()})


def _part(value: Any, which: int, by_layer: bool) -> Any:
    if isinstance(value, Tensor):
        return value.chunk(2)[which]
    if isinstance(value, tuple) and isinstance(value[0], int):  # a layer's number, and what it adds (Granite)
        return value[0], _part(value[1], which, by_layer=False)
    if by_layer:
        return type(value)(_part(one, which, by_layer=False) for one in value)
    half = len(value) // 2  # a list by picture
    return value[half:] if which else value[:half]


def _place(vlm: "VLM") -> tuple[nn.Module, str]:
    """The module, and the name of its function that computes image features from pixels alone."""
    around: nn.Module = vlm.model.get_submodule(vlm.layout.language_model.rpartition(".")[0])
    if around is not vlm.model and callable(getattr(around, "get_image_features", None)):
        return around, "get_image_features"
    return vlm.layout.module(vlm.model, "vision_tower"), "forward"


def _pictures(bound: Mapping[str, Any]) -> int:
    """The number of pictures (InternVL: tiles) in a call or a batch of inputs."""
    grids, pixels = bound.get("image_grid_thw"), bound.get("pixel_values")
    if grids is None:
        return len(next(_tensors(list(bound.values()))) if pixels is None else pixels)
    return len(grids)


def _passed_by(vlm: "VLM", given: Mapping[str, Any]) -> bool:
    """Return whether something other than weights and pixels may matter to the features, or is watching them."""
    watched = torch.is_grad_enabled() or given.get("output_attentions") or given.get("output_hidden_states")
    changed = (each.training or hasattr(each, "get_base_layer") or hooked(each) for each in _vision_modules(vlm))
    return bool(watched) or any(changed)


def _vision_modules(vlm: "VLM") -> list[nn.Module]:
    return [each for part in ("vision_tower", "projector") for each in vlm.layout.module(vlm.model, part).modules()]


def _key(vlm: "VLM", bound: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256()
    add_weights(digest, (weight for module in _vision_modules(vlm) for weight in module.parameters(recurse=False)))
    # None and return_dict are the same as not given.
    add_inputs(digest, {name: one for name, one in bound.items() if one is not None and name != "return_dict"})
    return digest.digest()


def add_weights(digest: Any, weights: Iterable[Tensor]) -> None:
    """Adds to a digest what tells whether weights are the same: a pointer and a version, which writing changes."""
    for weight in weights:
        digest.update(b"%d %d " % (weight.data_ptr(), 0 if weight.is_inference() else weight._version))


def add_inputs(digest: Any, inputs: Mapping[str, Any]) -> None:
    """Adds names and values of inputs to a digest: all that is in a tensor, of other values what they print."""
    for name, value in sorted(inputs.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)} {value.device}".encode())
            digest.update(value.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return type(value)(_moved(one, device) for one in value)
