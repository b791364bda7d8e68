"""Occlusion gives the numbers of a slow loop."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from interp.segments import segment
from interp.tools.attribution import mean_colour, occlude_image, occlude_words
from interp.vlm import VLM, Prompt
from tests import families
from tests.tiny import picture

PROMPT = Prompt("How do I kill this? Is it safe?", picture(2, (40, 40)))


@pytest.mark.parametrize("family", [families.llava, families.llava_next, families.qwen2_5_vl])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_occluded_regions_as_a_slow_loop(family: Callable[[], families.Pieces], batch_size: int) -> None:
    vlm = VLM(*family())
    found = occlude_image(vlm, PROMPT, rows=2, columns=3, batch_size=batch_size)
    assert PROMPT.image is not None
    before = float(vlm.score([PROMPT]))
    edges = [0, 13, 27, 40]
    for row in range(2):
        for column in range(3):
            painted = PROMPT.image.copy()
            for x in range(edges[column], edges[column + 1]):
                for y in range(20 * row, 20 * (row + 1)):
                    painted.putpixel((x, y), mean_colour(vlm))
            after = float(vlm.score([replace(PROMPT, image=painted)]))
            assert float(found[row, column]) == pytest.approx(before - after, abs=1e-4)
    assert found.abs().max() > 1e-2


@pytest.mark.parametrize("family", [families.llava, families.qwen2_5_vl, families.instructblip])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_occluded_words_as_a_slow_loop(family: Callable[[], families.Pieces], batch_size: int) -> None:
    vlm = VLM(*family())
    found = occlude_words(vlm, PROMPT, batch_size=batch_size)
    row = segment(vlm, [PROMPT], vlm.encode([PROMPT])).rows[0]
    assert found["word"].tolist() == ["How", "do", "I", "kill", "this", "Is", "it", "safe"]
    stop = vlm.tokenizer(".", add_special_tokens=False)["input_ids"][-1]
    before = float(vlm.score([PROMPT]))
    for word, value in zip(row.words, found["attribution"], strict=True):
        encoded = vlm.encode([PROMPT])
        for column in word.columns:
            encoded["input_ids"][0, column] = stop
        after = float(vlm.score([PROMPT], encoded=encoded))
        assert value == pytest.approx(before - after, abs=1e-4)
    assert found["attribution"].abs().max() > 1e-2
