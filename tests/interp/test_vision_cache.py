"""Features kept for later arms: the same bits, never those of other pixels or other weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from interp.hooks.forward import replaced
from interp.prompt_length import Lengths
from interp.speed import vision_cache
from interp.speed.vision_cache import FeatureCache, shared_features
from interp.vlm import VLM, Generation, Prompt
from mitigation.vcd import VCD
from tests.families import FAMILIES, every_family

NAMES = every_family()


def picture(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


PROMPTS = [
    Prompt("is this safe ?", picture(40, 40, 0), key="a"),
    Prompt("what about this one , is it any good to do at all ?", picture(90, 40, 1), key="b"),
    Prompt("hm", picture(30, 64, 2), key="c"),
]


def same(one: Generation, other: Generation) -> bool:
    return one.token_ids == other.token_ids and torch.equal(one.margins, other.margins)


@pytest.mark.parametrize("name", NAMES)
def test_answers_have_the_same_bits_and_lengths_are_known(name: str) -> None:
    vlm = VLM(*FAMILIES[name]())
    plain = vlm.generate(PROMPTS, max_new_tokens=3)
    cache = FeatureCache(10)
    with shared_features(vlm, cache):
        first = vlm.generate(PROMPTS, max_new_tokens=3)
        assert (cache.reused, cache.computed > 0) == (0, True)
        again = [vlm.generate(PROMPTS, max_new_tokens=3) for _ in range(2)]
    assert cache.reused == 2 * cache.computed
    assert 0 < cache.held <= 2**20
    assert all(same(plain, other) for other in (first, *again))
    assert same(plain, vlm.generate(PROMPTS, max_new_tokens=3))
    assert cache.reused == 2 * cache.computed  # closed is closed
    columns = [vlm.encode([prompt])["input_ids"].shape[1] for prompt in PROMPTS]
    counted = Lengths(vlm).of_prompts(PROMPTS)
    off = {true - estimate for true, estimate in zip(columns, counted, strict=True)}
    assert len(off) == 1 or name == "smolvlm"  # what is the same for all prompts does not matter to batches
    assert max(map(abs, off)) <= (16 if name == "smolvlm" else 6)


def test_noised_pictures_and_other_batches_get_features_of_their_own(vlm: VLM) -> None:
    plain = VCD(branch="sequential").generate(vlm, PROMPTS, max_new_tokens=3)
    paired = VCD(branch="paired").generate(vlm, PROMPTS, max_new_tokens=3)
    cache = FeatureCache(10)
    with shared_features(vlm, cache):
        vlm.generate(PROMPTS, max_new_tokens=1)
        sequential = VCD(branch="sequential").generate(vlm, PROMPTS, max_new_tokens=3)
        assert sequential.token_ids == plain.token_ids
        torch.testing.assert_close(
            sequential.margins, plain.margins, atol=1e-5, rtol=0
        )  # features of one call, and two
        assert (cache.reused, cache.computed) == (3, 6)  # the clean branch alone
        assert same(VCD(branch="paired").generate(vlm, PROMPTS, max_new_tokens=3), paired)
        vlm.generate(PROMPTS[:2], max_new_tokens=1)
        vlm.generate(PROMPTS[::-1], max_new_tokens=1)
        assert cache.reused == 3


@contextmanager
def counting(vlm: VLM) -> Iterator[list[int]]:
    """The pictures of every call that computes features."""
    owner, name = vision_cache._place(vlm)
    original, calls = getattr(owner, name), []

    @wraps(original)
    def counted(*arguments: Any, **given: Any) -> Any:
        calls.append(1)
        return original(*arguments, **given)

    with replaced(owner, name, counted):
        yield calls


@pytest.mark.parametrize("name", NAMES)
def test_a_contrast_of_few_pictures_asks_for_their_features_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, method = VLM(*FAMILIES[name]()), VCD(alpha=2.0, noise_step=999, branch="sequential")
    with counting(vlm) as calls:
        together = method.generate(vlm, PROMPTS[:2], max_new_tokens=3)
        assert len(calls) == 1
        monkeypatch.setattr(vision_cache, "FEW", 0)
        apart = method.generate(vlm, PROMPTS[:2], max_new_tokens=3)
        assert len(calls) == 3
    assert together.token_ids == apart.token_ids
    torch.testing.assert_close(together.margins, apart.margins, atol=2e-5, rtol=0)  # logits of these reach 10


def test_many_pictures_other_noises_and_open_caches_keep_calls_apart(vlm: VLM) -> None:
    with counting(vlm) as calls:
        VCD(branch="sequential").generate(vlm, PROMPTS * 2, max_new_tokens=1)
        VCD(branch="sequential", noise="black").generate(vlm, PROMPTS, max_new_tokens=1)
        assert len(calls) == 4
        with shared_features(vlm, FeatureCache(10)):
            VCD(branch="sequential").generate(vlm, PROMPTS, max_new_tokens=1)
            VCD(branch="sequential").generate(vlm, PROMPTS, max_new_tokens=1)
        assert len(calls) == 6  # of each picture once, kept for the second time


def test_text_alone_needs_no_features(vlm: VLM) -> None:
    with shared_features(vlm, FeatureCache(10)):
        vlm.generate([Prompt("is this safe ?")], max_new_tokens=1)


def test_changed_weights_hooks_training_and_gradients_are_passed_by(vlm: VLM) -> None:
    cache = FeatureCache(10)
    tower: Any = vlm.layout.module(vlm.model, "vision_tower")
    projector: Any = vlm.layout.module(vlm.model, "projector")
    weight = next(projector.parameters())
    with shared_features(vlm, cache):
        before = vlm.score(PROMPTS)
        with torch.no_grad():
            weight.mul_(3)
        changed = vlm.score(PROMPTS)
        assert cache.reused == 0
        assert not torch.equal(before, changed)
        handle = tower.register_forward_hook(lambda module, inputs, output: None)
        vlm.score(PROMPTS)
        handle.remove()
        tower.train()
        vlm.score(PROMPTS)
        tower.eval()
        vlm.model(**vlm.encode(PROMPTS)).logits.sum().backward()
        assert (cache.reused, cache.computed) == (0, 6)
        assert weight.grad is not None
        vlm.score(PROMPTS)
        assert cache.reused == 3


def test_a_full_cache_keeps_what_it_has_and_no_cache_changes_nothing(vlm: VLM) -> None:
    cache = FeatureCache(1)
    with shared_features(vlm, cache):
        vlm.score(PROMPTS)
        cache.held = 2**20  # as if much had come since
        vlm.score(PROMPTS[:1])
        vlm.score(PROMPTS[:1])
        assert cache.reused == 0
        vlm.score(PROMPTS)
        assert cache.reused == 3
    inner = vlm.model.get_submodule("model")
    for off in (None, FeatureCache(0)):
        with shared_features(vlm, off):
            assert "get_image_features" not in inner.__dict__

    def broken_off() -> None:
        with shared_features(vlm, cache):
            assert "get_image_features" in inner.__dict__
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert "get_image_features" not in inner.__dict__
