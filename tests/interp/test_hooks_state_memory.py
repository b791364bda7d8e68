"""States of one set of prompts are read once, are those that are read without a memory, and never another run's."""

import pytest
import torch

from interp.hooks.residual import edit_residual, residuals
from interp.hooks.state_memory import StateMemory
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.learned.ridge_probe import margin_gradient
from tests.tiny import picture

ASKED = [
    Prompt(f"Is the {name} safe{' for a small child' * (number % 3)}?", picture(number), key=str(number))
    for number, name in enumerate(("knife", "gun", "cake", "dog", "toy", "car", "bee"))
]


@pytest.fixture
def forwards(vlm: VLM) -> list[int]:
    """The rows of each batch that the model is given."""
    rows: list[int] = []
    vlm.on_encode.append(lambda prompts, encoded: rows.append(len(prompts)))
    return rows


def test_the_model_is_read_once_for_every_part_and_place(vlm: VLM, forwards: list[int]) -> None:
    plain = [residuals(vlm, ASKED[start:], places=("verdict", "user")) for start in (0, 3)]
    only = residuals(vlm, ASKED[2:5], places=("image",), layers=(2, 1))
    gradient = margin_gradient(vlm, ASKED[1:4], layer=1)
    forwards.clear()
    memory = StateMemory(vlm, lambda: ASKED)
    with memory.open():
        found = [residuals(vlm, ASKED[start:], places=("verdict", "user")) for start in (3, 0)][::-1]
        assert forwards == [7]
        image = residuals(vlm, ASKED[2:5], places=("image",), layers=(2, 1))
        assert forwards == [7, 7]
        residuals(vlm, ASKED[4:], places=("image", "verdict"), layers=(1,))
        assert forwards == [7, 7]
        shared = margin_gradient(vlm, ASKED[1:4], layer=1)
        margin_gradient(vlm, ASKED[:4], layer=2)
        assert forwards == [7, 7, 7]
    for one, expected in zip([*found, image], [*plain, only], strict=True):
        assert (one.places, one.layers, one.keys) == (expected.places, expected.layers, expected.keys)
        torch.testing.assert_close(one.values, expected.values, atol=1e-5, rtol=1e-4)  # another batch
    torch.testing.assert_close(shared, gradient, atol=1e-5, rtol=1e-4)
    residuals(vlm, ASKED)
    assert forwards == [7, 7, 7, 7]  # closed


def test_a_state_does_not_depend_on_who_asked_first(vlm: VLM) -> None:
    found = []
    for order in ([1, 4, 0], [0, 4, 1]):
        with StateMemory(vlm, lambda: ASKED).open():
            rows = {start: residuals(vlm, ASKED[start : start + 2]).values for start in order}
        found.append(rows)
    assert all(torch.equal(found[0][start], found[1][start]) for start in found[0])


def test_other_prompts_models_and_edits_are_read_anew(vlm: VLM) -> None:
    memory, other = StateMemory(vlm, lambda: ASKED), load("organism:llava", device="cpu")
    with memory.open():
        before = residuals(vlm, ASKED[:2], layers=(1,)).values
        with edit_residual(vlm, lambda here: here.hidden + 1, layers=[1]):
            torch.testing.assert_close(residuals(vlm, ASKED[:2], layers=(1,)).values, before + 1)
        assert torch.equal(residuals(vlm, ASKED[:2], layers=(1,)).values, before)
        drawn = Prompt(ASKED[0].text, picture(3), key=ASKED[0].key)  # another picture under the same key
        assert not torch.allclose(residuals(vlm, [drawn], layers=(1,)).values, before[:, :, :1], atol=1e-4)
        assert residuals(other, ASKED[:1], layers=(1,)).values.shape != before[:, :, :1].shape
