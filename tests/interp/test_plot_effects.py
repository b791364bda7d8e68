"""Figures of the tools' results show their numbers, with units, and nothing that is not known."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from interp.errors import UserError
from interp.tools.knockout import knockout_by_head, knockout_by_window, knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from tests.tiny import picture

CLEAN = [Prompt("Is this safe?", picture(0, (40, 40))), Prompt("the $cake$", picture(1, (40, 40)))]
OTHER = [Prompt("Is this safe?", picture(2, (40, 40))), Prompt("the $cake$", picture(3, (40, 40)))]
EDGE = [("image", "verdict")]


def words(figure: Figure) -> str:
    figure.canvas.draw()
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    labels = [axes.get_xlabel() + axes.get_ylabel() + axes.get_title() for axes in figure.axes]
    ticks = [tick.get_text() for axes in figure.axes for tick in [*axes.get_xticklabels(), *axes.get_yticklabels()]]
    return " | ".join([*texts, *labels, *ticks, figure.get_supxlabel()])


def drawn(figure: Figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_direct_attribution(vlm: VLM) -> None:
    found = direct_logit_attribution(vlm, CLEAN)
    figure = found.plot("mine")
    np.testing.assert_allclose(drawn(figure), found.heads.mean(-1).numpy())
    assert "logits" in words(figure)
    assert "embedding" in words(figure)
    bars = figure.axes[1].patches
    assert [bar.get_width() for bar in bars] == pytest.approx(found.mlps.mean(-1).tolist())


def test_patching(vlm: VLM) -> None:
    found = patch(vlm, CLEAN, OTHER, places=("image", "system", -1), least_gap=0.0)
    figure = found.plot()
    shown = drawn(figure)
    np.testing.assert_allclose(shown[0], 100 * found.values[0].mean(-1).numpy(), rtol=1e-5)
    assert np.ma.getmaskarray(figure.axes[0].images[0].get_array())[1].all()  # no prompt has a system text
    assert "%" in words(figure)
    assert "−1" in words(figure)
    heads = patch(vlm, CLEAN, OTHER, what="head", places=("image", "verdict"), least_gap=0.0)
    assert "verdict" in words(heads.plot())
    with pytest.raises(UserError, match="margins only 0 logits apart"):
        patch(vlm, CLEAN, CLEAN, layers=[0]).plot()


def test_knockout(vlm: VLM) -> None:
    by_head = knockout_by_head(vlm, CLEAN, EDGE)
    np.testing.assert_allclose(drawn(by_head.plot()), by_head.moved.mean(-1).reshape(2, 4).numpy())
    by_window = knockout_by_window(vlm, CLEAN, EDGE, width=1)
    figure = by_window.plot()
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(by_window.moved.mean(-1).tolist())
    assert "image → verdict" in words(figure)
    once = knockout_effect(vlm, CLEAN, EDGE)
    bars = once.plot().axes[0]
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(once.moved[0].tolist())
    assert bars.get_xlabel() == "prompt (image → verdict cut in layers 0–1)"


def test_lens(vlm: VLM) -> None:
    one = logit_lens(vlm, CLEAN, top=3)
    figure = one.plot(row=1)
    assert one.word(0, 2, 1) in words(figure)
    line = figure.axes[1].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == pytest.approx(one.margins[0, :, 1].tolist())
    several = logit_lens(vlm, CLEAN[0], places=("system", -1, 0))
    assert "verdict" in words(several.plot())
    assert several.word(0, 0, 0) == ""
    assert math.isnan(several.table.iloc[0]["probability"])
    with pytest.raises(UserError, match="row=2: there are 0 to 1"):
        one.plot(row=2)
    assert torch.equal(one.margins, logit_lens(vlm, CLEAN).margins)
