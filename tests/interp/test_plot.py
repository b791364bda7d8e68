"""Figures: one scale for what is compared, a legend with its unit, nothing cut off at 600 px, pyplot left alone."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from interp.errors import UserError
from interp.figures import attention as plot
from tests.tiny import picture

RNG = np.random.default_rng(0)
SIGNED = {"gradients": RNG.normal(size=(3, 3)), "occlusion": 0.2 * RNG.normal(size=(3, 3))}
QUESTION = pd.DataFrame({"word": ["How", "do", "I", "kill", "this", "?"], "mass": [0.01, 0.0, 0.02, 0.3, 0.1, 0.0]})
LONG = pd.DataFrame({"word": ["incomprehensibilities"] * 40, "mass": 0.01})


def grid(values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(values).rename_axis(index="layer", columns="head")


FIGURES: dict[str, Callable[[plot.Size], Figure]] = {
    "overlay": lambda size: plot.image_overlay(
        picture(1, (60, 40)),
        {f"layers {i}": RNG.random((3, 3)) for i in range(5)},
        box=(0.1, -0.2, 0.9, 1.2),
        title="A long title, longer than a line of 600 px can hold, for a case of the benchmark with a long name",
        size=size,
    ),
    "signed overlay": lambda size: plot.image_overlay(
        picture(1), SIGNED, unit=plot.ATTRIBUTION, signed=True, size=size
    ),
    "words": lambda size: plot.word_bars({"failure": QUESTION, "success": LONG, "layers 3–5": QUESTION}, size=size),
    "heads": lambda size: plot.heat_grid(
        {"failures": grid(RNG.random((4, 5))), "successes": grid(RNG.random((4, 5)) / 2)}, size=size
    ),
    "many heads": lambda size: plot.heat_grid({"all": grid(RNG.random((32, 40)))}, size=size),
}


def drawn(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


def heats(figure: Figure) -> list[object]:
    """The images that carry values, not colours."""
    return [image for axes in figure.axes for image in axes.images if image.get_array().ndim == 2]


NARROW = ("signed overlay", "words", "heads")


@pytest.mark.parametrize(
    ("name", "size"), [*((name, plot.SCREEN) for name in FIGURES), *((name, plot.COLUMN) for name in NARROW)]
)
def test_everything_is_inside(name: str, size: plot.Size) -> None:
    figure = FIGURES[name](size)
    pixels = drawn(figure)
    assert pixels.shape[1] == round(100 * size.width) == (600 if size == plot.SCREEN else 325)
    assert pixels.std() > 5
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    ticks = {id(tick) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_ticklabels()}
    texts = [text for text in figure.findobj(Text) if text.get_text() and id(text) not in ticks]
    assert texts
    for text in texts:
        box = text.get_window_extent(renderer)
        assert min(box.x0, box.y0) > -1, text
        assert box.x1 < pixels.shape[1] + 1, text
        assert box.y1 < pixels.shape[0] + 1, text
        assert text.get_fontsize() >= (9 if size == plot.SCREEN else 7)


@pytest.mark.parametrize("name", ["overlay", "signed overlay", "heads"])
def test_one_scale_for_all_that_is_compared(name: str) -> None:
    figure = FIGURES[name](plot.SCREEN)
    limits = {image.get_clim() for image in heats(figure)}  # type: ignore[attr-defined]
    assert len(heats(figure)) > 1
    assert len(limits) == 1
    bar = figure.axes[-1]
    assert bar.get_xlabel()
    low, high = limits.pop()
    assert bar.get_xlim() == (low, high)
    assert low == (-high if name == "signed overlay" else 0)


def test_a_map_lies_where_its_patches_are() -> None:
    """One bright patch at the top right of a part that begins right of the middle."""
    values = np.zeros((2, 2))
    values[0, 1] = 1
    figure = plot.image_overlay(picture(1, (80, 40)), {"map": values}, box=(0.5, 0.0, 1.0, 1.0))
    heat = heats(figure)[0]
    left, right, bottom, top = heat.get_extent()  # type: ignore[attr-defined]
    assert (left, top, right, bottom) == (0.5, 0.0, 1.0, 1.0)
    assert heat.get_array()[0, 1] == 100  # type: ignore[attr-defined]
    corner = drawn(figure)
    axes = figure.axes[1]
    x, y = axes.transData.transform((0.875, 0.25))  # the middle of that patch
    yellow = corner[corner.shape[0] - int(y), int(x)].astype(int)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the top of the picture is on top
    x, y = axes.transData.transform((0.875, 0.75))
    purple = corner[corner.shape[0] - int(y), int(x)].astype(int)
    assert yellow.sum() > purple.sum()


@given(st.integers(1, 60), st.integers(1, 8))
def test_layer_groups_keep_every_layer_in_order(layers: int, count: int) -> None:
    groups = plot.layer_groups(range(layers), count)
    assert [layer for group in groups.values() for layer in group] == list(range(layers))
    assert len(groups) == min(layers, count)
    sizes = [len(group) for group in groups.values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot.heat_grid({}), "nothing to draw"),
        (lambda: plot.word_bars({"a": QUESTION[:0]}), "nothing to draw"),
        (lambda: plot.heat_grid({"a": grid(np.array([[-0.1, 0.5]]))}), "signed=True"),
        (lambda: plot.image_overlay(picture(1), {"a": np.full((2, 2), np.nan)}), "not finite"),
        (lambda: plot.heat_grid({"a": grid(np.ones((2, 2))), "b": grid(np.ones((2, 3)))}), "must be alike"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
