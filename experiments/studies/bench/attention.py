"""``task=bench_attention``: the cost of recording attention, compared with a plain forward and with eager attention.

Random weights: time and memory depend on the shape of a model. Imports neither torch nor transformers.
"""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.config import Run
from experiments.studies.bench.harness import PLAIN, Bench, Job, Variants
from experiments.studies.bench.models import model_of, prompt_of

if TYPE_CHECKING:
    from interp.vlm import VLM

LIMITS = {"verdict": 1.10, "all queries": 1.25}  # on a GPU


@dataclass(frozen=True)
class AttentionBench(Bench):
    """The task. ``sizes`` name models, ``lengths`` prompts in tokens, picture included."""

    sizes: list[str] = field(default_factory=lambda: ["cpu"])
    lengths: list[int] = field(default_factory=lambda: [640, 1024, 2048])
    numbers: ClassVar = "lengths"

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return a prompt of each length by model."""
        limits = {} if device == "cpu" else LIMITS
        return [
            Job(f"{size}, {tokens} tokens", partial(variants, size, tokens, device, run.seed), limits)
            for size in self.sizes
            for tokens in self.lengths
        ]


def variants(size: str, tokens: int, device: str, seed: int) -> Variants:
    """Return a plain forward, recorded forwards, and a forward with eager attention."""
    from interp.segments import segment

    vlm = _model(size, device, seed)
    prompts = [prompt_of(vlm, tokens, seed=seed)]
    encoded = vlm.encode(prompts)
    recorded = partial(_recorded, vlm, encoded, segment(vlm, prompts, encoded))
    return {
        PLAIN: partial(_forward, vlm, encoded),
        "verdict": partial(recorded, queries="VERDICT"),
        "all queries": partial(recorded, queries="ALL"),
        "eager": partial(_eager, vlm, encoded),
    }


_model = lru_cache(maxsize=1)(model_of)


def _forward(vlm: "VLM", encoded: Any, **options: Any) -> Any:
    """Read the prompt as ``generate`` does: with a cache, and with logits of the last position only."""
    import torch

    with torch.no_grad():
        return vlm.model(**encoded, logits_to_keep=1, **options)


def _recorded(vlm: "VLM", encoded: Any, segments: Any, *, queries: str) -> Any:
    from interp.attention.record import Queries, record_attention

    with record_attention(vlm, queries=Queries[queries], segments=segments) as record:
        _forward(vlm, encoded)
    return record


def _eager(vlm: "VLM", encoded: Any) -> Any:
    vlm.model.set_attn_implementation("eager")
    try:
        return _forward(vlm, encoded, output_attentions=True).attentions
    finally:
        vlm.model.set_attn_implementation("sdpa")
