"""How a processor packs the pictures of a batch. It is measured: each picture size is encoded in a batch of one.

Families that ``interp.families`` does not know put pictures into one or several inputs. They have one row a prompt, or
are joined on an axis (tiles, patches, crops; MiniCPM joins the last axis). In each case, the shapes of single pictures
add up to the shape of the batch on that axis.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.preprocessing import pixel_inputs

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

Shapes = Mapping[str, tuple[int, ...]]
_JOINS: "WeakKeyDictionary[VLM, bool]" = WeakKeyDictionary()
_ALONE: "WeakKeyDictionary[VLM, dict[tuple[int, int], Shapes]]" = WeakKeyDictionary()


def pieces(vlm: "VLM", prompts: "Sequence[Prompt]", inputs: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """Return each picture's part of every input that holds pixels, as views of ``inputs``, without padding.

    Raises:
        UserError: the shapes of single pictures do not add up to the shape of the batch.
    """
    alone = [_alone(vlm, image.size) for prompt in prompts for image in prompt.images]
    parts: list[dict[str, Tensor]] = [{} for _ in alone]
    for name in pixel_inputs(inputs):
        shapes = [each[name] for each in alone]
        for part, piece in zip(parts, _divided(name, inputs[name], shapes, vlm.name), strict=True):
            part[name] = piece
    return parts


def joins_rows(vlm: "VLM") -> bool:
    """Return whether two batches can be joined by rows. It is measured: one prompt, encoded once and twice.

    They cannot if an input grows on another axis, or has numbers that count through the batch (Molmo 2's pooling).
    """
    from interp.prompt import Prompt

    if vlm.module_map.geometry != "unknown":
        return True
    if vlm not in _JOINS:
        prompt = Prompt("?", Image.new("RGB", (64, 48)))
        single, double = (dict(vlm.inputs([prompt] * times)) for times in (1, 2))
        tensors = {name: value for name, value in single.items() if isinstance(value, Tensor)}
        _JOINS[vlm] = all(_same(torch.cat([value, value]), double[name]) for name, value in tensors.items())
    return _JOINS[vlm]


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _alone(vlm: "VLM", size: tuple[int, int]) -> Shapes:
    """Return the shapes of the inputs with pixels of one picture of ``size``, encoded once."""
    from interp.prompt import Prompt

    shapes = _ALONE.setdefault(vlm, {})
    if size not in shapes:
        inputs = vlm.inputs([Prompt("?", Image.new("RGB", size))])
        shapes[size] = {name: tuple(inputs[name].shape) for name in pixel_inputs(inputs)}
    return shapes[size]


def _divided(name: str, batch: Tensor, shapes: Sequence[tuple[int, ...]], model: str) -> list[Tensor]:
    if len(batch) == len(shapes) and all(shape[0] == 1 for shape in shapes) and len(shapes) > 1:
        return [_corner(batch[i : i + 1], shape) for i, shape in enumerate(shapes)]
    for axis in range(batch.ndim):
        lengths = [shape[axis] for shape in shapes]
        others = all(
            len(shape) == batch.ndim and all(shape[i] <= batch.shape[i] for i in range(batch.ndim) if i != axis)
            for shape in shapes
        )
        if others and sum(lengths) == batch.shape[axis]:
            return [_corner(part, shape) for part, shape in zip(batch.split(lengths, axis), shapes, strict=True)]
    raise UserError(
        f"{name} of {model} is {tuple(batch.shape)} for pictures that separately are {', '.join(map(str, shapes))}; "
        "they do not add up, so no noise can be drawn by picture; ask prompts one at a time (batch_size=1)"
    )


def _corner(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a padded piece without its padding."""
    return piece[tuple(slice(0, length) for length in shape)]
