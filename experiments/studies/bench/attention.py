"""``task=bench_attention``: what it costs to log attention, against the model alone and against eager attention.

Random weights: time and memory depend on a model's shape, not on its weights. Imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.config import Run
from experiments.studies.bench.harness import (
    MEBIBYTE,
    Bench,
    Bound,
    Result,
    Say,
    Setting,
    Turns,
    no_memory,
    peaks,
    repeat,
    runner,
    table,
    timed,
)
from experiments.studies.bench.models import IMAGE_TOKENS, QWEN_TEXT, SHAPES, configured, prompt_of
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM

TEMPLATE_TOKENS = 16  # more than the chat template and one word take
MAPPED = tuple(range(-7, 1))  # steps whose whole rows are kept: the verdict and the seven before it
RATIOS = ("verdict_over_native", "mass_over_native", "maps_over_native", "eager_over_mass")
PEAKED = ("native", "mass", "eager")
BOUNDS = {"verdict_over_native": 1.10, "mass_over_native": 1.25}  # at most, on a GPU, at each length


@dataclass(frozen=True)
class AttentionBench(Bench):
    """The task. ``size`` names a shape, ``lengths`` prompts in tokens, image included.

    Each length is measured at least once in each variant, then again without eager (which is slow, and far from its
    bound).

    Raises:
        UserError: an unknown size, a prompt that has no room for its image, or a 7b size without a GPU.
    """

    size: str = "cpu"
    lengths: list[int] = field(default_factory=lambda: [640, 1024, 2048, 3072])
    repeats: int = 3
    seconds: float = 240.0
    name = "attention"
    about = "attention of a model with random weights: this measures time and memory, not any trained model"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("size", [self.size], IMAGE_TOKENS)
        least = IMAGE_TOKENS[self.size] + TEMPLATE_TOKENS
        if not self.lengths or min(self.lengths) < least:
            raise UserError(
                f"task.lengths={list(self.lengths)}: an image of size {self.size} and the template take {least} "
                "tokens; give at least one length, and none below that"
            )

    def measure(self, run: Run, device: str, say: Say) -> Result:
        """The peaks, shortest prompt first, then the times; the errors are of the first round's results."""
        lengths = sorted(set(self.lengths))
        dtype = "float32" if device == "cpu" else "bfloat16"
        setting = Setting(self.size, dtype, device, self.seed, longest=lengths[-1])
        held = peaks(AttentionRunner, setting, lengths, PEAKED, device, say)
        model = runner(AttentionRunner, setting)
        for variant in VARIANTS:  # so that no first time is measured
            model.once(variant, lengths[0])
        measured = {tokens: Turns(model.timed(tokens, say), once=["eager"]) for tokens in lengths}
        repeat(list(measured.values()), self.repeats, self.seconds)
        rows = [
            {"tokens": tokens, **turns.ratios(RATIOS), "max_error": model.errors[tokens], **added_memory(held[tokens])}
            for tokens, turns in measured.items()
        ]
        metrics = {
            "weights": f"random, seed {self.seed}",
            "shape": asdict(SHAPES[self.size]) if self.size in SHAPES else QWEN_TEXT,
            "image_tokens": IMAGE_TOKENS[self.size],
            "rows": rows,
            "details": [
                {"tokens": tokens, "seconds": turns.rounds, "peak_bytes": held[tokens]}
                for tokens, turns in measured.items()
            ],
        }
        records = [_record(row, measured[row["tokens"]], held[row["tokens"]]) for row in rows]
        shown = table("Logging attention: one forward pass of the prompt", records)
        return Result(metrics, [shown], bounds(self.size, rows, device), [summary(rows[-1])])


def bounds(size: str, rows: Sequence[Mapping[str, Any]], device: str) -> list[Bound]:
    """What recording may cost on a GPU; on a CPU nothing is bounded."""
    if device == "cpu":
        return []
    return [
        Bound(f"{size}, {row['tokens']} tokens: {ratio.replace('_', ' ')}", row[ratio], limit)
        for row in rows
        for ratio, limit in BOUNDS.items()
    ]


def added_memory(held: dict[str, int]) -> dict[str, float | None]:
    """What mass adds to the native peak over what eager adds; None where eager adds nothing."""
    eager = held["eager"] - held["native"]
    return {"mass_memory_over_eager": (held["mass"] - held["native"]) / eager if eager > 0 else None}


def _record(row: dict[str, Any], turns: Turns, held: dict[str, int]) -> dict[str, str]:
    memory = row["mass_memory_over_eager"]
    return {
        "tokens": str(row["tokens"]),
        "rounds": str(len(turns.rounds)),
        "plain (s)": f"{turns.median('native'):.3g}",
        **{name.replace("_over_", "/").replace("native", "plain"): f"{row[name]:.2f}" for name in RATIOS},
        "plain (MiB)": f"{held['native'] / MEBIBYTE:.0f}",
        **{f"+{name} (MiB)": f"{(held[name] - held['native']) / MEBIBYTE:.0f}" for name in ("mass", "eager")},
        "+mass/eager": "–" if memory is None else f"{memory:.1%}",
        "max error": f"{row['max_error']:.0e}",
    }


def summary(row: dict[str, Any]) -> str:
    """The result at one length, as a sentence."""
    return (
        f"At {row['tokens']} tokens a forward pass that logs every query's segment masses takes "
        f"{row['mass_over_native']:.2f} times the native one's time, {row['verdict_over_native']:.2f} with the "
        f"verdict's alone, {row['maps_over_native']:.2f} with maps of 8 queries; eager attention takes "
        f"{row['eager_over_mass']:.1f} times that of the masses. Random weights, one prompt a batch, eager timed once "
        "a length."
    )


def _forward(vlm: "VLM", encoded: Any, segments: Any, **options: Any) -> Any:
    """The prompt as ``generate()`` begins: with a cache, and logits of the last position alone."""
    import torch

    with torch.no_grad():
        return vlm.model(**encoded, logits_to_keep=1, **options)


def _recorded(vlm: "VLM", encoded: Any, segments: Any, *, queries: str, maps: tuple[int, ...] = ()) -> Any:
    from interp.attention.record import Queries, record_attention

    with record_attention(vlm, queries=Queries[queries], maps=maps, segments=segments) as record:
        _forward(vlm, encoded, segments)
    return record


def _eager(vlm: "VLM", encoded: Any, segments: Any) -> Any:
    """The whole model as if loaded with ``attn_implementation="eager"``."""
    vlm.model.set_attn_implementation("eager")
    try:
        return _forward(vlm, encoded, segments, output_attentions=True).attentions
    finally:
        vlm.model.set_attn_implementation("sdpa")


VARIANTS: dict[str, Callable[["VLM", Any, Any], Any]] = {
    "native": _forward,
    "verdict": partial(_recorded, queries="VERDICT"),
    "mass": partial(_recorded, queries="ALL"),
    "maps": partial(_recorded, queries="ALL", maps=MAPPED),
    "eager": _eager,
}


class AttentionRunner:
    """A model with random weights in this process, and prompts for it; a case is a prompt's tokens."""

    def __init__(self, setting: Setting) -> None:
        import torch

        self.device, self.seed = torch.device(setting.device), setting.seed
        self.vlm = setting.build(configured(setting.size))
        self.inputs: dict[int, tuple[Any, Any]] = {}  # prompts, encoded, and what their tokens are
        self.errors: dict[int, float] = {}

    def prepare(self, case: int) -> None:
        """Makes the inputs, where they are not there yet."""
        from interp.segments import segment

        if case not in self.inputs:
            prompts = [prompt_of(self.vlm, case, seed=self.seed)]
            encoded = self.vlm.encode(prompts)
            self.inputs[case] = encoded, segment(self.vlm, prompts, encoded)

    def once(self, variant: str, case: int) -> Any:
        """Runs a variant, and returns what it returns."""
        import torch

        self.prepare(case)
        try:
            return VARIANTS[variant](self.vlm, *self.inputs[case])
        except torch.OutOfMemoryError as error:
            raise UserError(no_memory(variant, case)) from error

    def timed(self, case: int, say: Say) -> dict[str, Callable[[], float]]:
        """The variants as functions that return their seconds; the first round of them fills ``errors``."""
        seen: dict[str, Any] = {}

        def taking(variant: str) -> float:
            say(f"{case} tokens, {variant}")
            results: list[Any] = []
            seconds = timed(lambda: results.append(self.once(variant, case)), self.device)()
            if case not in self.errors:
                seen[variant] = results.pop()
                if variant == "eager":  # the last
                    self.errors[case] = self.largest_error(case, seen)
                    seen.clear()
            return seconds

        return {variant: partial(taking, variant) for variant in VARIANTS}

    def largest_error(self, case: int, seen: Mapping[str, Any]) -> float:
        """The largest absolute difference of a mass, or of a map's weight, from eager attention."""
        from einops import einsum

        masses, maps = seen["mass"], seen["maps"]
        errors = []
        for layer, weights in enumerate(seen["eager"]):
            of_layer = weights[0].float()
            indicator = self.inputs[case][1].indicator(0, of_layer.shape[-1])[0].to(of_layer.device)
            expected = einsum(of_layer, indicator, "head query key, key segment -> head query segment").cpu()
            errors += [(one.pieces[0].mass[layer, 0] - expected).abs().max() for one in (masses, maps)]
            for row, one in enumerate(maps.maps):
                whole = of_layer[:, row - len(MAPPED)].cpu()
                errors.append((one.weights[layer] - whole).abs().max())
        return float(max(errors))
