"""Words in figures in any script: drawn by a fallback font where there is one, else as an escape; never a warning."""

import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.figures import glyphs
from interp.figures.attention import Words, head_grid, text_heat
from interp.figures.effects import lens_figure
from interp.figures.glyphs import Figure, encoded, legible, width

CHINESE, JAPANESE, EMOJI = "安全", "はい", "🔪"


def without_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "FALLBACK", ())
    forget()


def forget() -> None:
    glyphs.installed.cache_clear()
    glyphs._code_points.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def drawn(figure: Figure) -> list[str]:
    """What matplotlib says while it draws the figure."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("matplotlib")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # what another test of this process left behind
            FigureCanvasAgg(figure).draw()
            FigureCanvasAgg(figure).draw()  # ticks are written anew
    finally:
        logger.removeHandler(handler)
    return [*said, *(str(one.message) for one in caught)]


def test_what_no_font_has_is_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fallback(monkeypatch)
    assert legible(f"Is {CHINESE} safe? {EMOJI}\n") == r"Is \u5b89\u5168 safe? \U0001f52a" + "\n"
    assert legible("Ünïcode, Ελλάδα, да; 5 °C − 3 → “x”") == "Ünïcode, Ελλάδα, да; 5 °C − 3 → “x”"
    assert legible("a\x07b\tc") == r"a\x07b\tc"


@pytest.mark.long
def test_figures_of_words_in_any_script_are_drawn_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fallback(monkeypatch)
    grid = np.eye(2) / 2
    figure = head_grid({CHINESE: grid, "$x$ _{": grid}, title=f"{JAPANESE} {EMOJI}")
    assert drawn(figure) == []
    assert figure.axes[0].get_title() == r"\u5b89\u5168"
    assert drawn(text_heat({CHINESE: Words([JAPANESE, "safe", EMOJI * 60], [0.1, 0.2, 0.3])})) == []
    words = [[CHINESE, "a", EMOJI], ["b", JAPANESE, "$"]]
    lens = lens_figure(words, np.full((2, 3), 0.2), [0, 1], ["verdict"], np.zeros(2), title=CHINESE)
    assert drawn(lens) == []
    assert r"\u5b89\u5168" in [text.get_text() for text in lens.axes[0].texts]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "metadata"), [
    ("png", None), ("svg", {"Date": None}), ("pdf", {"CreationDate": None}),
])  # fmt: skip
def test_a_figure_is_drawn_once_and_the_same_as_matplotlib_saves_it(kind: str, metadata: Any) -> None:
    def made() -> Figure:
        figure = Figure(figsize=(4, 3), layout="constrained", dpi=70)
        axes = figure.subplots(1, 2)
        axes[0].plot([1, 2], [3, 4], label="a line")
        axes[0].legend()
        figure.colorbar(axes[1].imshow([[0, 1], [2, 3]]))
        return figure

    def draw(figure: Figure, *_: Any) -> None:
        drawn.append(figure)
        own(figure, *_)

    own, drawn, buffer = Figure.draw, list[Figure](), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fixed"}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "draw", draw)
        made().savefig(buffer, format=kind, dpi=110, metadata=metadata)
        assert len(drawn) == 2
        figure = made()
        assert encoded(figure, kind, dpi=110, metadata=metadata) == buffer.getvalue()
        assert (len(drawn), figure.dpi) == (3, 70)


def test_names_at_ticks_are_legible(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fallback(monkeypatch)
    figure = Figure()
    one, other = figure.subplots(1, 2, sharey=True)
    one.set_yticks([0, 1], [f"arm {CHINESE}", "$_"])
    other.plot([0, 1], [1, 0])
    assert drawn(figure) == []
    assert [label.get_text() for label in one.get_yticklabels()] == [r"arm \u5b89\u5168", "$_"]


def test_an_installed_font_of_the_list_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pen = TTGlyphPen(None)
    for point in ((0, 0), (0, 700), (700, 700)):
        (pen.lineTo if point != (0, 0) else pen.moveTo)(point)
    pen.closePath()
    square, name = pen.glyph(), "Noto Sans CJK SC"
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "an", "quan"])
    font.setupCharacterMap({ord("安"): "an", ord("全"): "quan"})
    font.setupGlyf({".notdef": square, "an": square, "quan": square})
    font.setupHorizontalMetrics(dict.fromkeys([".notdef", "an", "quan"], (1000, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": name, "styleName": "Regular", "psName": "NotoSansCJKSC-Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "cjk.ttf")
    before = list(font_manager.fontManager.ttflist)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", before)
    font_manager.fontManager.addfont(tmp_path / "cjk.ttf")
    monkeypatch.setattr(glyphs, "FALLBACK", (name,))
    forget()
    assert legible(f"{CHINESE} {EMOJI}") == f"{CHINESE} \\U0001f52a"
    figure = head_grid({CHINESE: np.eye(2) / 2})
    assert drawn(figure) == []
    assert figure.axes[0].get_title() == CHINESE


@pytest.mark.long
@given(st.text(max_size=40))
def test_any_text_is_drawable(text: str) -> None:
    figure = Figure(figsize=(1, 1))
    figure.suptitle(text)
    assert drawn(figure) == []


def test_wide_letters_take_two_columns() -> None:
    assert (width("ab"), width(CHINESE), width(r"\u5b89")) == (2, 4, 6)
    assert glyphs.cut("abcdef", 4) == "abc…"
    assert glyphs.cut("☔☔", 3) == "☔…"
