"""How large a LLaVA is measured. Imports neither torch nor transformers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama behind a CLIP tower, by its dimensions; heads are not grouped, as in LLaVA-1.5."""

    width: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    image_size: int  # pixels a side
    patch_size: int

    @property
    def image_tokens(self) -> int:
        """Tokens that one image becomes."""
        return (self.image_size // self.patch_size) ** 2


SHAPES = {
    "tiny": Shape(32, 64, 2, 4, 512, 16, 3, 2, image_size=24, patch_size=8),
    # Small beside its language model, so that time spent on the image does not hide what attention costs.
    "cpu": Shape(1024, 2752, 8, 16, 4096, 256, 4, 4, image_size=336, patch_size=14),
    # LLaVA-1.5-7B: Vicuna and CLIP ViT-L/14 at 336 pixels.
    "7b": Shape(4096, 11008, 32, 32, 32064, 1024, 24, 16, image_size=336, patch_size=14),
}
