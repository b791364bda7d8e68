"""Mitigations that have to see labelled cases before they can answer. Knows nothing of benchmarks or splits."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method


@runtime_checkable
class Learned(Protocol):
    """A method's settings before it has learned: a frozen dataclass that imports neither torch nor transformers."""

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "Method":
        """The method as learned from ``prompts``, of which ``safe`` says where Yes is right.

        What was learned is written to ``out``, a safetensors file; the method's ``repr`` names it by a digest of its
        content and not by its place, so that equal runs are equal wherever they are. It must not be judged on the cases
        it has learned from. UserError where these cases cannot teach it, as when one kind is missing.
        """
        ...

    def read(self, out: Path) -> "Method":
        """The method as ``learn`` left it in ``out``; UserError for a file that is not this method's."""
        ...
