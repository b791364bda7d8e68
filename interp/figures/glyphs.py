"""Letters in figures that the usual font lacks: from another installed font, else as a visible escape, never a box.

Words of a model, a benchmark or a user reach figures in any script. Matplotlib draws a box for what its font lacks, and
warns on the terminal, a line a character.
"""

import io
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from matplotlib import font_manager
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure as PlainFigure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

# Of the scripts that DejaVu lacks, as systems bring them; outlines alone, which every backend draws.
FALLBACK = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "IPAexGothic", "Droid Sans Fallback", "Noto Sans Arabic",
    "Noto Naskh Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai",
    "Nirmala UI", "Leelawadee UI", "Noto Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Apple Symbols",
    "Arial Unicode MS",
)  # fmt: skip
KEPT = "\n"  # what lays a text out


class Figure(PlainFigure):
    """A matplotlib figure whose words are all legible; nothing in them is read as mathematics.

    Names at ticks are written again whenever a figure is drawn: pass them through ``legible`` or ``cut``.
    """

    def draw(self, renderer: Any) -> None:
        """Draw it, after its words were given the fonts, or the escapes, that they need."""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            text.set_parse_math(False)
            names = text.get_fontfamily()
            text.set_fontfamily([*names, *(name for name in installed() if name not in names)])
            text.set_text(legible(text.get_text(), text.get_fontproperties()))
        super().draw(renderer)


def encoded(
    figure: PlainFigure, kind: str, *, dpi: int | None = None, metadata: Mapping[str, Any] | None = None
) -> bytes:
    """Return the bytes of a figure's file: ``png``, ``svg`` or ``pdf``. ``dpi`` is the figure's own unless given.

    The same as ``savefig`` writes, which draws a figure that lays itself out twice; here it is drawn once.
    """
    buffer, dpi_before, canvas = io.BytesIO(), figure.dpi, figure.canvas
    figure.dpi = dpi or dpi_before
    try:
        getattr(get_registered_canvas_class(kind)(figure), f"print_{kind}")(buffer, metadata=metadata)
    finally:
        figure.dpi = dpi_before
        figure.set_canvas(canvas)
    return buffer.getvalue()


def legible(text: str, font: FontProperties | str = "sans-serif") -> str:
    r"""Return the text; what no font here can draw is written as ``\u4e2d``. ``font`` comes before the fallbacks."""
    properties = FontProperties(family=[font]) if isinstance(font, str) else font
    style = (properties.get_style(), properties.get_weight(), properties.get_stretch())
    drawable = _code_points((*properties.get_family(), *installed()), *style)
    return "".join(
        one if one in KEPT or ord(one) in drawable else one.encode("unicode_escape").decode("ascii") for one in text
    )


def width(text: str) -> int:
    """Return the columns that the text takes: two for each wide letter, as of Chinese, in a font whose letters are one
    wide.
    """
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, columns: int, font: str = "sans-serif") -> str:
    """Return the text, legible, cut off with … if it needs more columns."""
    text = legible(text, font)
    if width(text) <= columns:
        return text
    while width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


@lru_cache(maxsize=1)
def installed() -> tuple[str, ...]:
    """Return the fonts of ``FALLBACK`` that this machine has."""
    here = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in FALLBACK if name in here)


@lru_cache(maxsize=64)
def _code_points(names: Sequence[str], style: Any, weight: Any, stretch: Any) -> frozenset[int]:
    points: set[int] = set()
    for name in names:
        path = font_manager.findfont(FontProperties(family=[name], style=style, weight=weight, stretch=stretch))
        points |= font_manager.get_font(path).get_charmap().keys()
    return frozenset(points)
