"""AGLA's rule against a slow reference; its masks; batches; what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from interp.errors import UserError
from interp.image_grid import WHOLE
from interp.segments import segment
from interp.vlm import VLM, Prompt
from mitigation.peers import AGLA, largest, masked, over_picture, own_attention
from tests.families import FAMILIES
from tests.mitigation.slow_rule import slow_rule
from tests.read_families import build
from tests.tiny import picture, tiny_llava

TOKENS = 4
QUARTERS = np.array([[4.0, 1.0], [1.0, 1.0]], dtype=np.float32)


def quarter_black(image: Image.Image, share: float) -> Image.Image:
    """By loops: black outside the pixels nearest to the upper left, as ``QUARTERS`` falls off from there."""
    smooth = over_picture(QUARTERS, WHOLE)
    order = sorted(((smooth[y, x], y, x) for y in range(384) for x in range(384)), reverse=True)
    left = {(y, x) for _, y, x in order[: round(share * 384 * 384)]}
    pixels, width, height = image.load(), *image.size
    black = Image.new("RGB", image.size)
    for x in range(width):
        for y in range(height):
            if (int((y + 0.5) * 384 / height), int((x + 0.5) * 384 / width)) in left:
                black.putpixel((x, y), pixels[x, y])  # type: ignore[index]
    return black


@pytest.mark.long
def test_against_loops(vlm: VLM, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mitigation.peers.own_attention", lambda vlm, prompts: [[(QUARTERS, WHOLE)]] * len(prompts))
    method = AGLA(keep=0.3, beta=0.2)
    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    assert (got.margins - 3 * vlm.score(prompts)).abs().max() > 0.01
    for row, prompt in enumerate(prompts):  # one by one, so that it holds for every batch
        assert prompt.image is not None
        part = vlm.encode([replace(prompt, image=quarter_black(prompt.image, 0.3))])
        rule = lambda clean, others, step: clean + 2 * others[0]  # noqa: E731
        ids, margin = slow_rule(vlm, vlm.encode([prompt]), [part], rule, beta=0.2, tokens=TOKENS)
        assert got.token_ids[row] == ids[: len(got.token_ids[row])]
        assert float(got.margins[row]) == pytest.approx(margin, abs=1e-3)


def test_its_map_is_the_models_own_attention(prompts: list[Prompt]) -> None:
    vlm = VLM(*tiny_llava(), name="slow")
    maps = own_attention(vlm, prompts)
    vlm.model.set_attn_implementation("eager")
    for prompt, ((weights, _),) in zip(prompts, maps, strict=True):
        inputs = vlm.encode([prompt])
        columns = segment(vlm, [prompt], inputs).rows[0].columns("image_0")
        with torch.no_grad():
            layers = vlm.model(**inputs, output_attentions=True).attentions
        mean = torch.stack([layer[0, :, -1, columns] for layer in layers]).mean((0, 1))
        np.testing.assert_allclose(weights.ravel(), mean.numpy(), atol=1e-6)


def test_masks() -> None:
    values = np.arange(12.0).reshape(3, 4)
    assert largest(values, 0.25).sum() == 3
    assert largest(values, 0.25)[2, 1:].all()
    assert not largest(values, 0.0).any()
    assert largest(values, 1.0).all()
    image = picture(0, (60, 20))
    half = np.zeros((2, 2), dtype=bool)
    half[:, 0] = True
    left = np.asarray(masked(image, half))
    assert (left[:, 30:] == 0).all()
    assert (left[:, :30] == np.asarray(image)[:, :30]).all()
    spread = over_picture(QUARTERS, (0.5, 0.0, 1.0, 1.0))  # a map of the right half alone
    assert np.unravel_index(spread.argmax(), spread.shape)[0] < 100
    assert spread[10, 10] == pytest.approx(4, abs=0.6)  # to the left of it as at its edge


def test_the_blur_is_a_gaussian_of_a_fiftieth_of_the_side() -> None:
    point = np.zeros((384, 384))
    point[200, 150] = 1.0
    spread = over_picture(point, WHOLE)
    assert spread.sum() == pytest.approx(1)
    for away in (4, 8, 12):
        for place in ((200 + away, 150), (200, 150 - away)):
            assert spread[place] / spread[200, 150] == pytest.approx(np.exp(-(away**2) / 2 / (384 / 50) ** 2), rel=1e-3)


def test_what_cannot_be_asked_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="no image in prompt 'blind'"):
        AGLA().generate(vlm, [Prompt("what is red", key="blind")], max_new_tokens=1)
    for name, message in (("instructblip", "learned queries"), ("mllama", "no image tokens")):
        other = VLM(*FAMILIES[name](), name=name)
        with pytest.raises(UserError, match=message):
            AGLA().generate(other, prompts, max_new_tokens=1)
    unknown = VLM(*build("llava_onevision"), name="onevision")
    with pytest.raises(UserError, match="the positions of the image tokens of onevision are unknown"):
        AGLA().generate(unknown, prompts[:1], max_new_tokens=1)
