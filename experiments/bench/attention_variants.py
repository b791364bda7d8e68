"""One forward pass under four ways of reading its attention, each measured in a child process or in this one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float

from experiments.bench.harness import Child, meter_for, result_of, timed
from experiments.bench.models import prompt_of, sized
from interp.attention.record import Queries, Record, record_attention
from interp.errors import UserError
from interp.segments import Segments, segment
from interp.vlm import VLM

MAPPED = tuple(range(-7, 1))  # steps whose whole rows are kept: the verdict and the seven before it


@dataclass(frozen=True)
class AttentionSetting:
    """Which model and where: all that a child process needs to build the same one."""

    size: str
    device: str
    longest: int
    seed: int


class SeenAttention(NamedTuple):
    """The attention that a variant returned, in float32; ``rows`` are those of ``MAPPED``."""

    masses: Float[np.ndarray, "layer head query segment"]
    rows: Float[np.ndarray, "layer head mapped key"] | None


class ForwardReading(NamedTuple):
    """One forward: its seconds, its peak in bytes above the model itself, and what it saw if that was asked for."""

    seconds: float
    peak: int
    seen: SeenAttention | None


class ForwardRunner(Protocol):
    """Runs a variant on a prompt of a given length in tokens, here or elsewhere."""

    def read(self, variant: str, tokens: int, *, keep: bool) -> ForwardReading:
        """``keep``: also hand back what the variant saw."""
        ...


class EncodedPrompt(NamedTuple):
    """One encoded prompt."""

    encoded: Mapping[str, Any]
    segments: Segments


def _native(vlm: VLM, inputs: EncodedPrompt) -> None:
    _forward(vlm, inputs)


def _mass(vlm: VLM, inputs: EncodedPrompt) -> Record:
    with record_attention(vlm, queries=Queries.ALL, segments=inputs.segments) as record:
        _forward(vlm, inputs)
    return record


def _maps(vlm: VLM, inputs: EncodedPrompt) -> Record:
    with record_attention(vlm, queries=Queries.ALL, maps=MAPPED, segments=inputs.segments) as record:
        _forward(vlm, inputs)
    return record


def _eager(vlm: VLM, inputs: EncodedPrompt) -> tuple[torch.Tensor, ...]:
    with _eager_attention(vlm):
        return _forward(vlm, inputs, output_attentions=True).attentions


VARIANTS: dict[str, Callable[[VLM, EncodedPrompt], Any]] = {
    "native": _native,
    "mass": _mass,
    "maps": _maps,
    "eager": _eager,
}


def _forward(vlm: VLM, inputs: EncodedPrompt, **options: Any) -> Any:
    """The prompt as ``generate()`` begins: with a cache, and logits of the last position alone."""
    with torch.no_grad():
        return vlm.model(**inputs.encoded, logits_to_keep=1, **options)


@contextmanager
def _eager_attention(vlm: VLM) -> Iterator[None]:
    """The whole model as if loaded with ``attn_implementation="eager"``."""
    vlm.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        vlm.model.set_attn_implementation("sdpa")


def _seen(result: Any, inputs: EncodedPrompt) -> SeenAttention | None:
    if isinstance(result, Record):
        (piece,) = result.pieces
        rows = [attention.weights.numpy() for attention in result.maps]
        return SeenAttention(piece.mass[:, 0].numpy(), np.stack(rows, axis=2) if rows else None)
    if isinstance(result, tuple):
        masses, rows = [], []
        for weights in result:
            layer = weights[0].float()
            indicator = inputs.segments.indicator(0, layer.shape[-1])[0].to(layer.device)
            masses.append(einsum(layer, indicator, "head query key, key segment -> head query segment").cpu().numpy())
            rows.append(layer[:, -len(MAPPED) :].cpu().numpy())
        return SeenAttention(np.stack(masses), np.stack(rows))
    return None


class LocalRunner:
    """The model in this process. On a CPU its peaks are a variant's own only if it is asked for no other variant."""

    def __init__(self, setting: AttentionSetting) -> None:
        device = torch.device(setting.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.vlm = sized(setting.size, longest=setting.longest, device=device, dtype=dtype, seed=setting.seed)
        self.seed = setting.seed
        self.inputs: dict[int, EncodedPrompt] = {}
        self.meter = meter_for(device)

    def read(self, variant: str, tokens: int, *, keep: bool) -> ForwardReading:
        """See ``ForwardRunner``."""
        inputs = self._inputs(tokens)
        results: list[Any] = []
        work = timed(lambda: results.append(VARIANTS[variant](self.vlm, inputs)), synchronise=self.meter.synchronise)
        self.meter.start()
        try:
            seconds = work()
        except torch.OutOfMemoryError as error:
            raise UserError(no_memory(variant, tokens)) from error
        peak = self.meter.peak()
        return ForwardReading(seconds, peak, _seen(results.pop(), inputs) if keep else None)

    def _inputs(self, tokens: int) -> EncodedPrompt:
        if tokens not in self.inputs:
            prompts = [prompt_of(self.vlm, tokens, seed=self.seed)]
            encoded = self.vlm.encode(prompts)
            self.inputs[tokens] = EncodedPrompt(encoded, segment(self.vlm, prompts, encoded))
        return self.inputs[tokens]


class ChildRunners:
    """A process for each variant, all with the same model; a context manager. One works at a time."""

    def __init__(self, setting: AttentionSetting) -> None:
        self._setting = setting
        self._stack = ExitStack()
        self._children = {name: self._stack.enter_context(Child()) for name in VARIANTS}

    def __enter__(self) -> "ChildRunners":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def warm_up(self, tokens: int) -> None:
        """Builds all models at once and runs each variant once, so that no first time is measured."""
        waiting = {
            name: child.submit(_read, self._setting, name, tokens, False) for name, child in self._children.items()
        }
        for name, future in waiting.items():
            result_of(future, no_memory(name, tokens))

    def read(self, variant: str, tokens: int, *, keep: bool) -> ForwardReading:
        """See ``ForwardRunner``."""
        waiting = self._children[variant].submit(_read, self._setting, variant, tokens, keep)
        return result_of(waiting, no_memory(variant, tokens))


def no_memory(variant: str, tokens: int) -> str:
    """The error message for a variant that ran out of memory."""
    return (
        f"{variant} attention over {tokens} tokens did not end, most likely for want of memory; leave this length out "
        "with task.lengths=[...] or choose a smaller task.size"
    )


@lru_cache(maxsize=1)
def _runner(setting: AttentionSetting) -> LocalRunner:
    return LocalRunner(setting)


def _read(setting: AttentionSetting, variant: str, tokens: int, keep: bool) -> ForwardReading:
    return _runner(setting).read(variant, tokens, keep=keep)


def largest_error(seen: "dict[str, SeenAttention]") -> float:
    """The largest absolute difference of a mass or a map's weight from eager attention."""
    eager, maps = seen["eager"], seen["maps"]
    assert eager.rows is not None
    assert maps.rows is not None
    errors = [abs(seen[name].masses - eager.masses).max() for name in ("mass", "maps")]
    return float(max(*errors, abs(maps.rows - eager.rows).max()))
