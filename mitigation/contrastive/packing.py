"""How a processor packs the pictures of a batch: measured, by encoding a picture of each size alone.

Families that ``interp.families`` does not know put pictures into one or several inputs, one row a prompt or joined on
some axis (tiles, patches, crops; MiniCPM joins the last axis). Whatever it is, the pieces of one prompt are where the
shapes of single pictures add up to those of the batch.
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
        UserError: the shapes of single pictures do not add up to those of the batch.
    """
    alone = [_alone(vlm, image.size) for prompt in prompts for image in prompt.images]
    found: list[dict[str, Tensor]] = [{} for _ in alone]
    for name in pixel_inputs(inputs):
        shapes = [one[name] for one in alone]
        for own, piece in zip(found, _divided(name, inputs[name], shapes, vlm.name), strict=True):
            own[name] = piece
    return found


def joins_rows(vlm: "VLM") -> bool:
    """Whether two batches can be put one under the other: measured on one prompt, alone and twice, by its values.

    Not where an input grows on another axis, or holds numbers that count through the batch (Molmo 2's pooling).
    """
    from interp.prompt import Prompt

    if vlm.layout.geometry != "unknown":
        return True
    if vlm not in _JOINS:
        prompt = Prompt("?", Image.new("RGB", (64, 48)))
        one, two = (dict(vlm.inputs([prompt] * times)) for times in (1, 2))
        tensors = {name: value for name, value in one.items() if isinstance(value, Tensor)}
        _JOINS[vlm] = all(_same(torch.cat([value, value]), two[name]) for name, value in tensors.items())
    return _JOINS[vlm]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _alone(vlm: "VLM", size: tuple[int, int]) -> Shapes:
    """The shapes of the inputs with pixels of one picture of ``size``, encoded once."""
    from interp.prompt import Prompt

    known = _ALONE.setdefault(vlm, {})
    if size not in known:
        inputs = vlm.inputs([Prompt("?", Image.new("RGB", size))])
        known[size] = {name: tuple(inputs[name].shape) for name in pixel_inputs(inputs)}
    return known[size]


def _divided(name: str, whole: Tensor, shapes: Sequence[tuple[int, ...]], model: str) -> list[Tensor]:
    if len(whole) == len(shapes) and all(shape[0] == 1 for shape in shapes) and len(shapes) > 1:
        return [_corner(whole[i : i + 1], shape) for i, shape in enumerate(shapes)]
    for axis in range(whole.ndim):
        lengths = [shape[axis] for shape in shapes]
        others = all(
            len(shape) == whole.ndim and all(shape[i] <= whole.shape[i] for i in range(whole.ndim) if i != axis)
            for shape in shapes
        )
        if others and sum(lengths) == whole.shape[axis]:
            return [_corner(part, shape) for part, shape in zip(whole.split(lengths, axis), shapes, strict=True)]
    raise UserError(
        f"{name} of {model} is {tuple(whole.shape)} for pictures that alone are {', '.join(map(str, shapes))}; they do "
        "not add up, so no noise can be drawn by picture; ask prompts one at a time (batch_size=1)"
    )


def _corner(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The part of a padded piece that its picture has alone."""
    return piece[tuple(slice(0, length) for length in shape)]
