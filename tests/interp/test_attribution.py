"""Attribution of the margin: complete, not blind to the image, and the same as a slow loop."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from PIL import Image

from interp.segments import segment
from interp.sequence_metric import SequenceMetric
from interp.tools.attribution import integrated_gradients, mean_colour, occlude_image, occlude_words
from interp.vlm import VLM, Prompt
from tests import families
from tests.tiny import picture

PROMPT = Prompt("How do I kill this? Is it safe?", picture(2, (40, 40)))


def plain(vlm: VLM, prompt: Prompt) -> Prompt:
    return replace(prompt, image=Image.new("RGB", prompt.image.size, mean_colour(vlm)))


@pytest.mark.long
@pytest.mark.contract
@pytest.mark.parametrize("family", families.every_family())
def test_gradients_add_up_and_see_the_image(family: str) -> None:
    vlm = VLM(*families.FAMILIES[family]())
    steep = family == "qwen2_vl"
    result = integrated_gradients(vlm, PROMPT, steps=512 if steep else 128, batch_size=32)
    assert result.margin == pytest.approx(float(vlm.score([PROMPT])), abs=1e-4)
    # Random weights make steep margins: parts of ± 100 add up to 1. Only Qwen's are left 0.1 apart by 128 steps.
    assert abs(result.error) < (0.2 if family == "qwen2_5_vl" else 0.03)
    assert result.pixels.abs().sum() > 1e-3  # captum's own LLMAttribution gives 0 here
    assert result.pixels.shape == vlm.encode([PROMPT])["pixel_values"].shape
    outside = [c for c, label in enumerate(result.row.labels) if label != "user"]
    assert (result.tokens[outside] == 0).all()
    assert (result.tokens != 0).any()


def test_the_gradients_of_whole_openings_add_up(vlm: VLM) -> None:
    openings = SequenceMetric(((20, 21), (22,)))
    result = integrated_gradients(vlm, PROMPT, steps=128, metric=openings)
    assert result.margin == pytest.approx(float(vlm.score([PROMPT], metric=openings)), abs=1e-4)
    assert abs(result.error) < 0.03
    assert result.tokens.abs().sum() > 1e-2


def test_the_gradient_is_the_models(vlm: VLM) -> None:
    """With one node, a pixel's attribution is the slope half way, here by a small step, times its way."""
    result = integrated_gradients(vlm, PROMPT, steps=1)
    encoded, base = vlm.encode([PROMPT]), vlm.encode([plain(vlm, PROMPT)])
    silent = encoded["input_ids"].clone()
    silent[:, result.row.columns("user")] = vlm.tokenizer.convert_tokens_to_ids(".")
    embed = vlm.model.get_input_embeddings()
    half = (embed(encoded["input_ids"]) + embed(silent)) / 2
    way = encoded["pixel_values"] - base["pixel_values"]

    def margin(pixels: torch.Tensor) -> torch.Tensor:
        handle = embed.register_forward_hook(lambda *_: half)
        logits = vlm.model(**{**encoded, "pixel_values": pixels}).logits[:, -1]
        handle.remove()
        yes, no = (logits[:, ids].logsumexp(-1) for ids in vlm.answer_ids)
        return yes - no

    middle, step = base["pixel_values"] + way / 2, torch.zeros_like(way)
    step[0, 1, 5, 7] = 0.02
    with torch.no_grad():
        slope = float(margin(middle + step) - margin(middle - step)) / 0.04
    assert float(result.pixels[0, 1, 5, 7]) == pytest.approx(slope * float(way[0, 1, 5, 7]), rel=1e-2)


@pytest.mark.parametrize("family", [families.llava, families.llava_next, families.qwen2_5_vl])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_occluded_regions_as_a_slow_loop(family: Callable[[], families.Pieces], batch_size: int) -> None:
    vlm = VLM(*family())
    found = occlude_image(vlm, PROMPT, rows=2, columns=3, batch_size=batch_size)
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
