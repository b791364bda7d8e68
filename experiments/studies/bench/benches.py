"""``task=bench_attention`` and ``task=bench_vcd``: what recording attention costs, and contrastive decoding.

Recording is compared with a plain forward and with eager attention. Contrastive decoding is compared with plain
decoding and with a loop of two forwards. Most models have random weights, since time and memory depend on the shape.
The answers of the bundled organism show what a branch saves if it is left out after a certain token. Imports neither
torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.studies.bench.harness import PLAIN, Bench, Job, Variants
from experiments.studies.bench.models import ORGANISM_SIZE, model_of, prompt_of
from interp.prompt import Prompt
from mitigation.method import Baseline
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM

RECORDED = {"verdict": 1.10, "all queries": 1.25}  # on a GPU


@dataclass(frozen=True)
class AttentionBench(Bench):
    """The task. ``sizes`` name models, ``lengths`` prompts in tokens, picture included."""

    sizes: list[str] = field(default_factory=lambda: ["cpu"])
    lengths: list[int] = field(default_factory=lambda: [640, 1024, 2048])
    numbers: ClassVar = "lengths"

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return a prompt of each length by model."""
        limits = {} if device == "cpu" else RECORDED
        return [
            Job(f"{size}, {tokens} tokens", partial(attention_variants, size, tokens, device, run.seed), limits)
            for size in self.sizes
            for tokens in self.lengths
        ]


def attention_variants(size: str, tokens: int, device: str, seed: int) -> Variants:
    """Return a plain forward, recorded forwards, and a forward with eager attention."""
    from interp.segments import segment

    vlm = _loaded(size, device, seed)
    prompts = [prompt_of(vlm, tokens, seed=seed)]
    encoded = vlm.encode(prompts)
    recorded = partial(_recorded, vlm, encoded, segment(vlm, prompts, encoded))
    return {
        PLAIN: partial(_forward, vlm, encoded),
        "verdict": partial(recorded, queries="VERDICT"),
        "all queries": partial(recorded, queries="ALL"),
        "eager": partial(_eager, vlm, encoded),
    }


_loaded = lru_cache(maxsize=1)(model_of)


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


PAIRED, SEQUENTIAL = VCD(branch="paired"), VCD(branch="sequential")
# Size → tokens of a prompt and of a whole answer. The organism is asked cases of IconWorld, and ends its answers.
TOKENS = {ORGANISM_SIZE: (0, 24), "cpu": (28, 8), "7b": (700, 32), "7b_qwen": (1500, 32)}
LIMITS = {f"{size}, {n} × 32": {"paired": most} for size in ("7b", "7b_qwen") for n, most in ((1, 1.10), (8, 1.35))}


@dataclass(frozen=True)
class VcdBench(Bench):
    """The task. ``sizes`` name models, ``items`` numbers of prompts in a batch."""

    sizes: list[str] = field(default_factory=lambda: [ORGANISM_SIZE, "cpu"])
    items: list[int] = field(default_factory=lambda: [1, 8])
    numbers: ClassVar = "items"

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return batches by model: verdicts of one token, and whole answers."""
        return [
            Job(title, partial(decoding_variants, size, items, tokens, device, run.seed), LIMITS.get(title, {}))
            for size in self.sizes
            for items in self.items
            for tokens in (1, TOKENS[size][1])
            for title in [f"{size}, {items} × {tokens}"]
        ]


def decoding_variants(size: str, items: int, tokens: int, device: str, seed: int) -> Variants:
    """Return plain answers, the published loop, and both branches."""
    vlm, batches = _prompts(size, items, device, seed)
    ways: Variants = {PLAIN: Baseline().generate, "paired": PAIRED.generate, "two forwards": two_forwards}
    ways["sequential"] = SEQUENTIAL.generate
    return {name: partial(_answers, way, vlm, batches, tokens) for name, way in ways.items()}


@lru_cache(maxsize=1)
def _prompts(size: str, items: int, device: str, seed: int) -> "tuple[VLM, list[list[Prompt]]]":
    """Return the model, and batches of equal prompts with different noise."""
    vlm = model_of(size, device, seed)
    if size == ORGANISM_SIZE:
        cases = limited(IconWorld().load().samples, 10)
        prompts = [Prompt(case.prompt, open_image(case.image)) for case in cases if case.image]
    else:
        prompts = [prompt_of(vlm, TOKENS[size][0], seed=seed)]
    return vlm, [[replace(prompt, key=str(number)) for number in range(items)] for prompt in prompts]


def _answers(way: Any, vlm: "VLM", batches: Sequence[Sequence[Prompt]], tokens: int) -> list[Any]:
    return [way(vlm, prompts, max_new_tokens=tokens) for prompts in batches]


def two_forwards(vlm: "VLM", prompts: Sequence[Prompt], *, max_new_tokens: int) -> list[list[int]]:
    """Return the tokens of answers by the published loop: for each token a forward with either picture.

    Each branch has its own cache. Prompts have equal lengths, so the loop needs neither masks nor positions.
    """
    import torch

    from interp.generation import cache_in, with_cache
    from mitigation.contrastive.processors import contrast

    answers: list[torch.Tensor] = []
    branches = [dict(clean := vlm.encode(prompts)), dict(SEQUENTIAL.noised(vlm, prompts, clean))]
    ended, ends = torch.zeros(1, device=vlm.device), torch.tensor(sorted(vlm.end_ids), device=vlm.device)
    with torch.no_grad():
        while len(answers) < max_new_tokens and not ended.all():
            logits = []
            for branch in branches:
                output = vlm.model(**branch, use_cache=True, logits_to_keep=1)
                logits.append(output.logits[:, -1].float())
                branch.clear()
                branch |= with_cache(cache_in(output))
            cut = logits[0] < logits[0].amax(dim=-1, keepdim=True) + torch.tensor(SEQUENTIAL.beta).log()
            scores = contrast(*logits, alpha=SEQUENTIAL.alpha).masked_fill(cut, -float("inf"))
            answers.append(scores.argmax(dim=-1, keepdim=True))
            ended = ended + torch.isin(answers[-1], ends)
            for branch in branches:
                branch["input_ids"] = answers[-1]
    return torch.cat(answers, dim=1).tolist()  # type: ignore[no-any-return]
