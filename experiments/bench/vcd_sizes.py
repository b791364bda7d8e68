"""Models that contrastive decoding is timed on, and how fast it has to be. Imports neither torch nor transformers."""

from dataclasses import dataclass

from experiments.bench.shapes import SHAPES, Shape


@dataclass(frozen=True)
class Size:
    """A model's shape, the types it is measured in, and one generation: prompt (image included) and new tokens.

    On a CPU peaks are measured in the first type alone.
    """

    shape: Shape
    dtypes: tuple[str, ...]
    prompt_tokens: int
    new_tokens: int


SIZES = {
    # The bundled organism's shape, 2.3 million parameters; what a step costs here is Python, not arithmetic.
    "tiny": Size(Shape(160, 432, 4, 5, 512, 128, 4, 4, image_size=48, patch_size=8), ("float32",), 64, 24),
    # 170 million parameters: a step reads its weights from memory, as on a GPU. A prompt is short, and its image small,
    # for its forward takes most of the time that steps are to be measured in.
    "cpu": Size(
        Shape(1024, 2752, 8, 16, 32064, 256, 4, 4, image_size=42, patch_size=14), ("bfloat16", "float32"), 28, 8
    ),
    "7b": Size(SHAPES["7b"], ("bfloat16",), 700, 32),
}


@dataclass(frozen=True)
class Bound:
    """``ratio`` of a row at this size, type and number of items is to be at most (``least``: at least) ``limit``."""

    size: str
    dtype: str
    items: int
    ratio: str
    limit: float
    least: bool = False

    def met(self, value: float) -> bool:
        """Whether a measured ratio keeps to it."""
        return value >= self.limit if self.least else value <= self.limit


BOUNDS = (
    Bound("tiny", "float32", 1, "paired_over_plain", 1.40),
    Bound("tiny", "float32", 1, "two_forward_over_paired", 1.25, least=True),
    Bound("tiny", "float32", 1, "lazy_over_plain", 1.25),
    Bound("cpu", "bfloat16", 1, "paired_over_plain", 1.50),
    Bound("7b", "bfloat16", 1, "paired_over_plain", 1.10),
    Bound("7b", "bfloat16", 8, "paired_over_plain", 1.35),
)
