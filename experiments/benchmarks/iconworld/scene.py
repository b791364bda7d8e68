"""One picture: a thing, placed, turned, coloured and cluttered by a seed. Knows nothing of sentences."""

import colorsys
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from experiments.benchmarks.iconworld.concepts import Thing, caption
from experiments.benchmarks.iconworld.icons import DRAWINGS, Colour, Pen

SIZE = 96  # pixels a side, unless a caller asks for more; scenes are drawn from vectors
SIGN_RED: Colour = (214, 28, 34)


@dataclass(frozen=True)
class Scene:
    """A picture of ``thing``; everything else about it follows from ``seed``, at any ``size`` in pixels a side."""

    thing: Thing
    seed: str
    size: int = SIZE

    @property
    def content(self) -> str:
        """Return everything that is drawn: equal contents give equal pixels."""
        return f"iconworld {self.thing.name} {self.seed} {self.size}"

    @property
    def shows(self) -> str:
        """Return a sentence that describes the picture."""
        return caption(self.thing)

    def render(self) -> Image.Image:
        """Return the RGB picture, ``size`` × ``size``; equal scenes give equal pixels."""
        rng = random.Random(f"iconworld:{self.thing.name}:{self.seed}")
        canvas = _background(rng, self.size)
        side = round(self.size * rng.uniform(0.5, 0.78))
        icon = _icon(self.thing, rng, side)
        left, top = (rng.randint(0, max(0, self.size - extent)) for extent in icon.size)
        canvas.paste(icon, (left, top), icon)
        return canvas


def _hue(rng: random.Random, saturation: tuple[float, float], value: tuple[float, float]) -> Colour:
    r, g, b = colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(*value))
    return round(255 * r), round(255 * g), round(255 * b)


def _background(rng: random.Random, size: int) -> Image.Image:
    """Return a plain, banded or split ground in a pale or dull colour, with small clutter."""
    ground = _hue(rng, (0.05, 0.35), (0.55, 0.98))
    other = _hue(rng, (0.05, 0.35), (0.55, 0.98))
    canvas = Image.new("RGB", (size, size), ground)
    draw = ImageDraw.Draw(canvas)
    kind = rng.choice(("plain", "horizon", "bands"))
    if kind == "horizon":
        draw.rectangle((0, round(size * rng.uniform(0.4, 0.75)), size, size), fill=other)
    elif kind == "bands":
        step = round(size * rng.uniform(0.15, 0.3))
        for x in range(0, size, 2 * step):
            draw.rectangle((x, 0, x + step, size), fill=other)
    for _ in range(rng.randint(0, 7)):
        _clutter(draw, rng, size)
    return canvas


def _clutter(draw: ImageDraw.ImageDraw, rng: random.Random, size: int) -> None:
    x, y = rng.uniform(0, size), rng.uniform(0, size)
    extent = size * rng.uniform(0.03, 0.1)
    colour = _hue(rng, (0.2, 0.8), (0.3, 0.95))
    shape = rng.choice(("dot", "square", "stroke", "triangle"))
    if shape == "dot":
        draw.ellipse((x, y, x + extent, y + extent), fill=colour)
    elif shape == "square":
        draw.rectangle((x, y, x + extent, y + extent), fill=colour)
    elif shape == "stroke":
        end = (x + rng.uniform(-2, 2) * extent, y + rng.uniform(-2, 2) * extent)
        draw.line((x, y, *end), fill=colour, width=max(1, size // 48))
    else:
        draw.polygon(((x, y), (x + extent, y), (x + extent / 2, y - extent)), fill=colour)


def _icon(thing: Thing, rng: random.Random, side: int) -> Image.Image:
    """Return the thing on a transparent square, drawn large, turned, and brought to ``side`` pixels."""
    large = 4 * side if side < 64 else 2 * side
    layer = Image.new("RGBA", (large, large))
    draw = ImageDraw.Draw(layer)
    pen = Pen(draw, large, main=_hue(rng, (0.55, 0.95), (0.45, 0.9)), accent=_hue(rng, (0.3, 0.8), (0.2, 0.5)))
    DRAWINGS[thing.concept](pen)
    if rng.random() < 0.5:
        layer = layer.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    layer = layer.rotate(rng.uniform(-25, 25), resample=Image.Resampling.BILINEAR)
    if thing.signed:
        _prohibition_sign(ImageDraw.Draw(layer), large)
    return layer.resize((side, side), Image.Resampling.BOX)


def _prohibition_sign(draw: ImageDraw.ImageDraw, size: int) -> None:
    width = round(0.09 * size)
    draw.ellipse((1, 1, size - 2, size - 2), outline=SIGN_RED, width=width)
    low, high = 0.15 * size, 0.85 * size
    draw.line((low, low, high, high), fill=SIGN_RED, width=width)
