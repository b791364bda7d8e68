"""Words in figures in any script: drawn by a fallback font where there is one, else as an escape; never a warning."""

import logging
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.figures import glyphs
from interp.figures.attention import heat_grid, word_bars
from interp.figures.glyphs import Figure, legible

CHINESE, JAPANESE, EMOJI = "安全", "はい", "🔪"


def without_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "FALLBACK", ())
    forget()


def forget() -> None:
    glyphs.installed.cache_clear()
    glyphs._code_points.cache_clear()


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
    grid = pd.DataFrame(np.eye(2) / 2)
    figure = heat_grid({CHINESE: grid, "$x$ _{": grid}, title=f"{JAPANESE} {EMOJI}")
    assert drawn(figure) == []
    assert figure.axes[0].get_title() == r"\u5b89\u5168"
    assert (
        drawn(word_bars({CHINESE: pd.DataFrame({"word": [JAPANESE, "safe", EMOJI * 60], "mass": [0.1, 0.2, 0.3]})}))
        == []
    )


def test_names_at_ticks_are_legible(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fallback(monkeypatch)
    figure = Figure()
    one, other = figure.subplots(1, 2, sharey=True)
    one.set_yticks([0, 1], [legible(f"arm {CHINESE}"), "$_"])
    other.plot([0, 1], [1, 0])
    assert drawn(figure) == []
    assert [label.get_text() for label in one.get_yticklabels()] == [r"arm \u5b89\u5168", "$_"]


@pytest.mark.long
@given(st.text(max_size=40))
def test_any_text_is_drawable(text: str) -> None:
    figure = Figure(figsize=(1, 1))
    figure.suptitle(text)
    assert drawn(figure) == []
