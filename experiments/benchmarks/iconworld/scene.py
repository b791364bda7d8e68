"""One picture: a thing, placed, turned, coloured and cluttered by a seed. Knows nothing of sentences.

Each concept has a drawing: a function in a unit square with the origin at the top left. It takes a :class:`Pen` whose
``main`` and ``accent`` colours vary from draw to draw.
"""

import colorsys
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from experiments.benchmarks.iconworld.sentences import CONCEPTS, Thing, caption

Colour = tuple[int, int, int]
Point = tuple[float, float]

DARK: Colour = (35, 30, 35)
LIGHT: Colour = (245, 242, 235)
STEEL: Colour = (190, 196, 204)
WOOD: Colour = (133, 85, 47)
SKIN: Colour = (236, 188, 150)


@dataclass(frozen=True)
class Pen:
    """Draws on one square canvas of ``size`` pixels in unit coordinates."""

    draw: ImageDraw.ImageDraw
    size: int
    main: Colour
    accent: Colour

    def scaled(self, points: Sequence[Point]) -> list[Point]:
        """Return unit coordinates as pixels."""
        return [(x * self.size, y * self.size) for x, y in points]

    def poly(self, points: Sequence[Point], fill: Colour) -> None:
        """Return a filled polygon."""
        self.draw.polygon(self.scaled(points), fill=fill)

    def oval(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """Return a filled ellipse in its bounding box."""
        self.draw.ellipse(self.scaled([(left, top), (right, bottom)]), fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour, radius: float = 0.0) -> None:
        """Return a filled rectangle with rounded corners."""
        self.draw.rounded_rectangle(self.scaled([(left, top), (right, bottom)]), radius * self.size, fill=fill)

    def line(self, points: Sequence[Point], width: float, fill: Colour) -> None:
        """Return a stroke of unit ``width``."""
        self.draw.line(self.scaled(points), fill=fill, width=max(1, round(width * self.size)), joint="curve")


def knife(pen: Pen) -> None:
    pen.poly([(0.05, 0.48), (0.6, 0.36), (0.62, 0.58), (0.25, 0.6)], STEEL)
    pen.line([(0.05, 0.48), (0.6, 0.36)], 0.015, DARK)
    pen.box(0.6, 0.38, 0.96, 0.56, pen.main, 0.06)
    pen.oval(0.68, 0.44, 0.73, 0.49, LIGHT)
    pen.oval(0.83, 0.44, 0.88, 0.49, LIGHT)


def gun(pen: Pen) -> None:
    pen.box(0.06, 0.26, 0.92, 0.44, DARK, 0.02)
    pen.box(0.06, 0.32, 0.3, 0.36, STEEL)
    pen.poly([(0.62, 0.42), (0.9, 0.42), (0.97, 0.86), (0.74, 0.86)], pen.main)
    pen.line([(0.46, 0.44), (0.48, 0.6), (0.64, 0.6)], 0.045, DARK)
    pen.line([(0.56, 0.44), (0.54, 0.53)], 0.03, DARK)


def bomb(pen: Pen) -> None:
    pen.oval(0.12, 0.3, 0.78, 0.96, DARK)
    pen.oval(0.24, 0.42, 0.38, 0.56, (120, 120, 130))
    pen.poly([(0.56, 0.3), (0.68, 0.22), (0.78, 0.36), (0.66, 0.44)], (80, 80, 88))
    pen.line([(0.67, 0.3), (0.74, 0.16), (0.84, 0.14)], 0.035, WOOD)
    spark = [(0.84, 0.02), (0.88, 0.1), (0.98, 0.12), (0.9, 0.18), (0.9, 0.28), (0.83, 0.2), (0.75, 0.2), (0.8, 0.12)]
    pen.poly(spark, (255, 170, 20))


def ball(pen: Pen) -> None:
    pen.oval(0.08, 0.08, 0.92, 0.92, pen.main)
    patch = [(0.5, 0.34), (0.66, 0.46), (0.6, 0.64), (0.4, 0.64), (0.34, 0.46)]
    rim = [(0.5, 0.08), (0.9, 0.38), (0.75, 0.84), (0.25, 0.84), (0.1, 0.38)]
    pen.poly(patch, pen.accent)
    for start, end in zip(patch, rim, strict=True):
        pen.line([start, end], 0.035, pen.accent)


def kite(pen: Pen) -> None:
    pen.poly([(0.5, 0.02), (0.82, 0.34), (0.5, 0.72), (0.18, 0.34)], pen.main)
    pen.poly([(0.5, 0.02), (0.82, 0.34), (0.5, 0.34)], pen.accent)
    pen.poly([(0.18, 0.34), (0.5, 0.34), (0.5, 0.72)], pen.accent)
    pen.line([(0.5, 0.72), (0.42, 0.82), (0.56, 0.9), (0.46, 0.99)], 0.025, DARK)
    for x, y in ((0.43, 0.82), (0.55, 0.9)):
        pen.poly([(x - 0.08, y - 0.04), (x, y), (x - 0.08, y + 0.04)], pen.accent)
        pen.poly([(x + 0.08, y - 0.04), (x, y), (x + 0.08, y + 0.04)], pen.accent)


def balloon(pen: Pen) -> None:
    pen.oval(0.22, 0.02, 0.78, 0.66, pen.main)
    pen.oval(0.32, 0.12, 0.42, 0.28, LIGHT)
    pen.poly([(0.45, 0.72), (0.5, 0.63), (0.55, 0.72)], pen.main)
    pen.line([(0.5, 0.7), (0.45, 0.8), (0.55, 0.9), (0.5, 0.99)], 0.022, DARK)


def apple(pen: Pen) -> None:
    red = (205, 40, 45)
    pen.oval(0.12, 0.26, 0.58, 0.92, red)
    pen.oval(0.42, 0.26, 0.88, 0.92, red)
    pen.line([(0.5, 0.34), (0.53, 0.1)], 0.045, WOOD)
    pen.poly([(0.54, 0.2), (0.68, 0.06), (0.86, 0.1), (0.72, 0.22)], (70, 150, 60))
    pen.oval(0.22, 0.38, 0.32, 0.54, (240, 130, 120))


def bread(pen: Pen) -> None:
    crust, crumb = (160, 96, 42), (232, 190, 126)
    pen.box(0.1, 0.34, 0.9, 0.88, crust, 0.08)
    pen.oval(0.04, 0.14, 0.96, 0.58, crust)
    pen.box(0.17, 0.4, 0.83, 0.81, crumb, 0.05)
    pen.oval(0.13, 0.21, 0.87, 0.54, crumb)


def cake(pen: Pen) -> None:
    pen.box(0.1, 0.5, 0.9, 0.9, (120, 70, 40), 0.03)
    pen.box(0.1, 0.62, 0.9, 0.7, LIGHT)
    pen.box(0.1, 0.4, 0.9, 0.54, (245, 160, 190), 0.05)
    for x in (0.18, 0.36, 0.54, 0.72):
        pen.oval(x, 0.46, x + 0.1, 0.62, (245, 160, 190))
    pen.oval(0.42, 0.22, 0.58, 0.42, (200, 30, 45))
    pen.line([(0.5, 0.26), (0.58, 0.1)], 0.025, (70, 120, 50))


def _skull(pen: Pen, left: float, top: float, side: float) -> None:
    def point(x: float, y: float) -> Point:
        return left + x * side, top + y * side

    pen.line([point(0.0, 0.62), point(1.0, 1.0)], 0.12 * side, LIGHT)
    pen.line([point(1.0, 0.62), point(0.0, 1.0)], 0.12 * side, LIGHT)
    pen.oval(*point(0.16, 0.0), *point(0.84, 0.62), LIGHT)
    pen.box(*point(0.32, 0.5), *point(0.68, 0.78), LIGHT)
    pen.oval(*point(0.26, 0.2), *point(0.45, 0.42), DARK)
    pen.oval(*point(0.55, 0.2), *point(0.74, 0.42), DARK)


def poison(pen: Pen) -> None:
    green = (60, 110, 70)
    pen.box(0.4, 0.04, 0.6, 0.14, WOOD, 0.02)
    pen.box(0.42, 0.12, 0.58, 0.32, green)
    pen.poly([(0.42, 0.28), (0.58, 0.28), (0.8, 0.46), (0.2, 0.46)], green)
    pen.box(0.2, 0.42, 0.8, 0.97, green, 0.06)
    _skull(pen, 0.28, 0.5, 0.44)


def toadstool(pen: Pen) -> None:
    pen.poly([(0.4, 0.5), (0.6, 0.5), (0.68, 0.96), (0.32, 0.96)], LIGHT)
    pen.draw.pieslice(pen.scaled([(0.06, 0.08), (0.94, 0.98)]), 180, 360, fill=(200, 35, 35))
    for x, y, r in ((0.3, 0.34, 0.07), (0.52, 0.2, 0.07), (0.7, 0.38, 0.07), (0.48, 0.42, 0.05)):
        pen.oval(x - r, y - r, x + r, y + r, LIGHT)


def spider(pen: Pen) -> None:
    for side in (-1, 1):
        for up, out, down in ((0.2, 0.3, 0.02), (0.36, 0.42, 0.3), (0.56, 0.42, 0.72), (0.66, 0.3, 0.96)):
            pen.line([(0.5, 0.5), (0.5 + side * out * 0.7, up), (0.5 + side * out * 1.1, down)], 0.035, DARK)
    pen.oval(0.32, 0.44, 0.68, 0.86, DARK)
    pen.oval(0.38, 0.24, 0.62, 0.48, DARK)
    pen.oval(0.42, 0.3, 0.48, 0.36, (220, 40, 40))
    pen.oval(0.52, 0.3, 0.58, 0.36, (220, 40, 40))


def rat(pen: Pen) -> None:
    grey, pink = (125, 118, 115), (230, 160, 160)
    pen.line([(0.12, 0.68), (0.02, 0.5), (0.1, 0.3), (0.02, 0.16)], 0.035, pink)
    pen.oval(0.08, 0.4, 0.74, 0.84, grey)
    pen.poly([(0.56, 0.46), (0.98, 0.7), (0.6, 0.8)], grey)
    pen.oval(0.54, 0.3, 0.72, 0.5, pink)
    pen.oval(0.74, 0.58, 0.79, 0.63, DARK)
    pen.oval(0.94, 0.67, 0.99, 0.73, pink)
    for x in (0.28, 0.58):
        pen.line([(x, 0.8), (x, 0.9), (x + 0.07, 0.9)], 0.035, pink)


def cockroach(pen: Pen) -> None:
    brown, dark = (110, 62, 28), (66, 36, 18)
    for y, reach in ((0.42, -0.14), (0.56, 0.0), (0.68, 0.16)):
        pen.line([(0.5, y), (0.12, y + reach), (0.06, y + reach + 0.1)], 0.03, dark)
        pen.line([(0.5, y), (0.88, y + reach), (0.94, y + reach + 0.1)], 0.03, dark)
    pen.line([(0.46, 0.16), (0.3, 0.02), (0.12, 0.04)], 0.02, dark)
    pen.line([(0.54, 0.16), (0.7, 0.02), (0.88, 0.04)], 0.02, dark)
    pen.oval(0.3, 0.2, 0.7, 0.98, brown)
    pen.oval(0.36, 0.1, 0.64, 0.34, dark)
    pen.line([(0.5, 0.34), (0.5, 0.96)], 0.025, dark)


def man(pen: Pen) -> None:
    pen.oval(0.38, 0.02, 0.62, 0.27, SKIN)
    pen.draw.pieslice(pen.scaled([(0.37, 0.0), (0.63, 0.24)]), 180, 360, fill=WOOD)
    pen.box(0.34, 0.28, 0.66, 0.64, pen.main, 0.05)
    pen.line([(0.36, 0.33), (0.2, 0.6)], 0.085, pen.main)
    pen.line([(0.64, 0.33), (0.8, 0.6)], 0.085, pen.main)
    pen.line([(0.43, 0.62), (0.4, 0.98)], 0.11, pen.accent)
    pen.line([(0.57, 0.62), (0.6, 0.98)], 0.11, pen.accent)


def baby(pen: Pen) -> None:
    pen.oval(0.2, 0.02, 0.8, 0.58, SKIN)
    pen.line([(0.48, 0.08), (0.54, 0.01)], 0.03, WOOD)
    pen.oval(0.34, 0.24, 0.41, 0.32, DARK)
    pen.oval(0.59, 0.24, 0.66, 0.32, DARK)
    pen.oval(0.42, 0.38, 0.58, 0.52, (90, 170, 220))
    pen.oval(0.47, 0.42, 0.53, 0.48, LIGHT)
    pen.oval(0.24, 0.54, 0.76, 0.98, LIGHT)
    pen.oval(0.12, 0.58, 0.32, 0.72, SKIN)
    pen.oval(0.68, 0.58, 0.88, 0.72, SKIN)
    pen.oval(0.22, 0.86, 0.44, 1.0, SKIN)
    pen.oval(0.56, 0.86, 0.78, 1.0, SKIN)


def dog(pen: Pen) -> None:
    fur, dark = (186, 130, 74), (110, 70, 36)
    pen.box(0.12, 0.42, 0.68, 0.7, fur, 0.1)
    for x in (0.14, 0.28, 0.5, 0.6):
        pen.box(x, 0.64, x + 0.08, 0.96, fur)
    pen.line([(0.14, 0.48), (0.02, 0.26)], 0.06, fur)
    pen.oval(0.58, 0.14, 0.88, 0.5, fur)
    pen.box(0.74, 0.3, 0.99, 0.47, fur, 0.06)
    pen.oval(0.54, 0.16, 0.68, 0.52, dark)
    pen.oval(0.92, 0.29, 1.0, 0.37, DARK)
    pen.oval(0.74, 0.22, 0.79, 0.28, DARK)


def cat(pen: Pen) -> None:
    fur = (120, 122, 130)
    pen.poly([(0.14, 0.04), (0.42, 0.26), (0.16, 0.46)], fur)
    pen.poly([(0.86, 0.04), (0.58, 0.26), (0.84, 0.46)], fur)
    pen.oval(0.12, 0.2, 0.88, 0.92, fur)
    pen.oval(0.27, 0.42, 0.41, 0.56, (120, 200, 90))
    pen.oval(0.59, 0.42, 0.73, 0.56, (120, 200, 90))
    pen.oval(0.32, 0.43, 0.36, 0.55, DARK)
    pen.oval(0.64, 0.43, 0.68, 0.55, DARK)
    pen.poly([(0.45, 0.62), (0.55, 0.62), (0.5, 0.69)], (235, 140, 150))
    for y in (0.66, 0.74):
        pen.line([(0.38, 0.7), (0.0, y - 0.04)], 0.015, LIGHT)
        pen.line([(0.62, 0.7), (1.0, y - 0.04)], 0.015, LIGHT)


def program(pen: Pen) -> None:
    pen.box(0.03, 0.12, 0.97, 0.9, STEEL, 0.03)
    pen.box(0.03, 0.12, 0.97, 0.28, pen.main, 0.03)
    for x, colour in ((0.08, (220, 60, 60)), (0.18, (235, 190, 50)), (0.28, (70, 180, 80))):
        pen.oval(x, 0.17, x + 0.07, 0.24, colour)
    pen.box(0.07, 0.31, 0.93, 0.86, DARK)
    for y, width in ((0.37, 0.5), (0.49, 0.7), (0.61, 0.36), (0.73, 0.58)):
        pen.line([(0.12, y), (0.12 + width, y)], 0.045, (110, 230, 120))


def phone(pen: Pen) -> None:
    pen.box(0.27, 0.02, 0.73, 0.98, DARK, 0.07)
    pen.box(0.31, 0.11, 0.69, 0.85, (130, 190, 235))
    pen.oval(0.45, 0.87, 0.55, 0.96, STEEL)
    for row in range(3):
        for column in range(2):
            pen.box(0.36 + 0.16 * column, 0.18 + 0.2 * row, 0.47 + 0.16 * column, 0.31 + 0.2 * row, pen.accent, 0.02)


def _flame(pen: Pen, x: float, bottom: float, height: float) -> None:
    for scale, colour in ((1.0, (235, 90, 25)), (0.62, (255, 200, 50))):
        w, h = 0.34 * height * scale, height * scale
        tip = (x + 0.04 * scale, bottom - h)
        left = [(x - 0.5 * w, bottom), (x - w, bottom - 0.3 * h), (x - 0.4 * w, bottom - 0.62 * h)]
        right = [(x + 0.8 * w, bottom - 0.55 * h), (x + w, bottom - 0.28 * h), (x + 0.5 * w, bottom)]
        pen.poly([*left, tip, *right], colour)


def candle(pen: Pen) -> None:
    pen.box(0.38, 0.42, 0.62, 0.92, LIGHT)
    pen.box(0.38, 0.42, 0.44, 0.62, (225, 215, 195))
    pen.box(0.24, 0.88, 0.76, 0.97, pen.main, 0.04)
    pen.line([(0.5, 0.43), (0.5, 0.34)], 0.02, DARK)
    _flame(pen, 0.5, 0.37, 0.34)


def campfire(pen: Pen) -> None:
    _flame(pen, 0.32, 0.78, 0.52)
    _flame(pen, 0.68, 0.78, 0.5)
    _flame(pen, 0.5, 0.8, 0.78)
    pen.line([(0.08, 0.94), (0.92, 0.74)], 0.1, WOOD)
    pen.line([(0.08, 0.74), (0.92, 0.94)], 0.1, (104, 64, 34))


def pill(pen: Pen) -> None:
    pen.box(0.04, 0.34, 0.96, 0.68, LIGHT, 0.17)
    pen.box(0.04, 0.34, 0.5, 0.68, pen.main, 0.17)
    pen.box(0.36, 0.34, 0.52, 0.68, pen.main)
    pen.line([(0.16, 0.42), (0.42, 0.42)], 0.03, LIGHT)


def syringe(pen: Pen) -> None:
    pen.line([(0.0, 0.5), (0.26, 0.5)], 0.02, DARK)
    pen.box(0.24, 0.36, 0.74, 0.64, LIGHT, 0.02)
    pen.box(0.24, 0.4, 0.52, 0.6, (120, 200, 225))
    for x in (0.34, 0.44, 0.54, 0.64):
        pen.line([(x, 0.36), (x, 0.46)], 0.018, DARK)
    pen.line([(0.74, 0.26), (0.74, 0.74)], 0.04, DARK)
    pen.line([(0.54, 0.5), (0.94, 0.5)], 0.04, STEEL)
    pen.line([(0.95, 0.34), (0.95, 0.66)], 0.045, DARK)


DRAWINGS: dict[str, Callable[[Pen], None]] = {concept: globals()[concept] for concept in CONCEPTS}


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
