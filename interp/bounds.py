"""How large a picture may get before a model sees it: the bounds of ``ModelConfig``, set in an image processor.

Which bound means anything depends on the image processor: one area (Qwen), the side before tiling (Idefics3, SmolVLM),
the number of tiles (InternVL, Llama 3.2 Vision), or none, where every picture is scaled to one size.
"""

from typing import Any

from interp.errors import UserError
from interp.model_config import ModelConfig

TILES = ("max_patches", "max_image_tiles")  # what families call the number of tiles


def set_bounds(image_processor: Any, config: ModelConfig) -> None:
    """Sets the bounds of ``config`` in ``image_processor``, in place.

    Raises:
        UserError: a bound that this family's pictures do not have, or one that its model cannot take.
    """
    known = _known(image_processor)
    for name, value in config.pixel_bounds:
        if name not in known:
            raise UserError(
                f"model.{name}={value} means nothing to {config.name}, whose {type(image_processor).__name__} takes "
                f"{', '.join(known) or 'pictures of one size alone'}; leave it out"
            )
        _set(image_processor, config.name, name, value)
    size = dict(image_processor.size or {})
    if config.pixel_bounds and "min_pixels" in known and size["shortest_edge"] > size["longest_edge"]:
        raise UserError(
            f"the pictures of {config.name} would have at least {size['shortest_edge']} and at most "
            f"{size['longest_edge']} pixels; set model.min_pixels and model.max_pixels"
        )


def _known(image_processor: Any) -> tuple[str, ...]:
    arguments = getattr(getattr(image_processor, "valid_kwargs", None), "__annotations__", {})
    known = [name for name in ("min_pixels", "max_pixels") if name in arguments]
    if "max_image_size" in arguments:
        known.append("longest_edge")
    if any(name in arguments for name in TILES):
        known.append("max_tiles")
    return tuple(known)


def _set(image_processor: Any, model: str, name: str, value: int) -> None:
    if name == "max_tiles":
        own = next(tiles for tiles in TILES if hasattr(image_processor, tiles))
        most = getattr(image_processor, own)
        if own == "max_image_tiles" and value > most:  # the model has an embedding for each arrangement of tiles
            raise UserError(f"model.max_tiles={value} is above the {most} that {model} was trained with; lower it")
        setattr(image_processor, own, value)
        return
    # Qwen's processors keep areas under these names of sides.
    side = "shortest_edge" if name == "min_pixels" else "longest_edge"
    given = {key: number for key, number in dict(image_processor.size).items() if number is not None}
    image_processor.size = type(image_processor.size)(**given | {side: value})
