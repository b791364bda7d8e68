"""What was read of a model's states, kept while parts of one set of prompts are asked about again and again.

    memory = StateMemory(vlm, lambda: prompts)
    with memory.open():
        residuals(vlm, some_of_them)  # reads all of ``prompts``; the next part costs nothing

Methods that learn in folds, and several that learn from the same cases, read the same states: labels, folds and
strengths do not change them. The whole set is read at once, so that a state does not depend on who asked for it first.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interp.hooks.forward import hooked

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

    Read = Callable[[Sequence[Prompt], Sequence[Hashable]], Mapping[Hashable, Tensor]]
    """What is wanted of some prompts, by its name: [row width]."""

_OPEN: ContextVar["StateMemory | None"] = ContextVar("state_memory", default=None)


@dataclass
class StateMemory:
    """Rows in main memory for the prompts that ``prompts`` gives.

    ``prompts`` is called whenever something is read, so that no picture is held in between.
    """

    vlm: "VLM"
    prompts: "Callable[[], Sequence[Prompt]]"
    _known: dict[Hashable, Tensor] = field(default_factory=dict, repr=False)

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, ``residuals`` takes rows from here, for these prompts and this model."""
        token = _OPEN.set(self)
        try:
            yield
        finally:
            _OPEN.reset(token)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {_digest(prompt): place for place, prompt in enumerate(self.prompts())}

    def __len__(self) -> int:
        """Return the number of different prompts."""
        return len(self._places)

    def serves(self, prompts: "Sequence[Prompt]") -> bool:
        """Return whether these are among its prompts, and nothing that could change a state hangs in the model."""
        if any(hooked(module) for module in self.vlm.model.modules()):
            return False
        return all(_digest(prompt) in self._places for prompt in prompts)

    def rows(self, prompts: "Sequence[Prompt]", wanted: Sequence[Hashable], read: "Read") -> Tensor:
        """Return what is wanted of ``prompts``, [wanted row width]."""
        if missing := [name for name in wanted if name not in self._known]:
            self._known |= read(self.prompts(), missing)
        indices = [self._places[_digest(prompt)] for prompt in prompts]
        return torch.stack([self._known[name][indices] for name in wanted])


def memory_for(vlm: "VLM", prompts: "Sequence[Prompt]") -> StateMemory | None:
    """Return the memory that is open, if it serves these prompts of this model."""
    memory = _OPEN.get()
    return memory if memory is not None and memory.vlm is vlm and memory.serves(prompts) else None


def _digest(prompt: "Prompt") -> str:
    return hashlib.sha256(repr((prompt.content, prompt.answer_prefix)).encode()).hexdigest()
