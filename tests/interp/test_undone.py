"""Every tool leaves the model as it was, also after an error."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import ImageOps

from interp.attention.record import Queries, record_attention
from interp.hooks.attention import _TAPS, intercept
from interp.hooks.residual import activations, edit_activations, edit_residual, last_layer, residuals
from interp.output_head import float32_head
from interp.prefill_cache import PrefillCache
from interp.tools.attribution import occlude_image
from interp.tools.knockout import knockout, knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.part_effects import part_effects
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.learned.ridge_probe import margin_gradient
from mitigation.learned.state_edits import levelled, projected
from tests.families import FAMILIES
from tests.plain_model import plain_afterwards
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill it?", picture(0, (64, 40))), Prompt("Is this safe?", picture(1, (64, 40)))]
OTHERS = [replace(prompt, image=ImageOps.invert(prompt.image)) for prompt in PROMPTS if prompt.image]
EDGES = [("user", "verdict")]


def ones(vlm: VLM) -> torch.Tensor:
    return torch.ones(vlm.model.get_output_embeddings().in_features)


OPENED: dict[str, Callable[[VLM], AbstractContextManager[Any]]] = {
    "record": lambda vlm: record_attention(vlm, queries=Queries.ALL, maps=[0]),
    "intercept": lambda vlm: intercept(vlm, edit=lambda call: call),
    "knockout": lambda vlm: knockout(vlm, EDGES),
    "residual edit": lambda vlm: edit_residual(vlm, lambda here: here.hidden + 1, layers=[0, 1, 2]),
    "head edit": lambda vlm: edit_activations(vlm, lambda here: here.hidden / 2, what="head"),
    "float32 head": lambda vlm: float32_head(vlm.model),
    "steered attention": lambda vlm: steer_attention(vlm, 2.0),
    "projected": lambda vlm: projected(vlm, ones(vlm)),
    "levelled": lambda vlm: levelled(vlm, ones(vlm), torch.zeros(last_layer(vlm))),
    "prefills": lambda vlm: PrefillCache().used_by(vlm),
}
CALLED: dict[str, Callable[[VLM], object]] = {
    "residuals": lambda vlm: residuals(vlm, PROMPTS),
    "patch": lambda vlm: patch(vlm, PROMPTS, PROMPTS, places=("verdict",)),
    "knockout effect": lambda vlm: knockout_effect(vlm, PROMPTS, EDGES),
    "lens": lambda vlm: logit_lens(vlm, PROMPTS),
    "direct attribution": lambda vlm: direct_logit_attribution(vlm, PROMPTS),
    "activations": lambda vlm: activations(vlm, PROMPTS, what="head"),
    "occlusion": lambda vlm: occlude_image(vlm, PROMPTS[0], rows=2, columns=2),
    "knockout by layer": lambda vlm: knockout_effect(vlm, PROMPTS, EDGES, width=1),
    "part effects": lambda vlm: part_effects(vlm, PROMPTS, OTHERS),
    "margin gradient": lambda vlm: margin_gradient(vlm, PROMPTS, layer=1),
    "generate": lambda vlm: vlm.generate(PROMPTS, max_new_tokens=2),
}


REFUSED = {
    ("steered attention", "mllama"): "no picture in the sequence",
    ("part effects", "llava"): "16 bits",
    ("direct attribution", "mllama"): "pictures by cross-attention",
}


def skip_refused(tool: str, vlm: VLM) -> None:
    if why := REFUSED.get((tool, vlm.name)):
        pytest.skip(why)


@pytest.fixture(params=["llava", "qwen2_5_vl", "mllama"])
def used(request: pytest.FixtureRequest) -> VLM:
    """A model that was used before, with a hook of another tool on each layer."""
    model, processor = FAMILIES[request.param]()
    vlm = VLM(model.bfloat16() if request.param == "llava" else model, processor, name=request.param)
    vlm.generate(PROMPTS, max_new_tokens=2)
    logit_lens(vlm, PROMPTS[:1])
    for layer in vlm.module_map.module(vlm.model, "layers"):
        layer.register_forward_hook(lambda *_: None)
    return vlm


@pytest.mark.parametrize("tool", OPENED)
def test_what_was_opened_is_undone_after_an_error(used: VLM, tool: str) -> None:
    skip_refused(tool, used)

    def interrupted() -> None:
        with OPENED[tool](used):
            used.score(PROMPTS)
            raise KeyError

    margins = used.score(PROMPTS)
    with plain_afterwards(used), pytest.raises(KeyError):
        interrupted()
    assert not used.on_encode
    assert not _TAPS
    assert torch.equal(used.score(PROMPTS), margins)


@pytest.mark.parametrize("tool", CALLED)
def test_a_call_leaves_nothing_also_where_the_model_fails(used: VLM, tool: str) -> None:
    skip_refused(tool, used)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with plain_afterwards(used):
        CALLED[tool](used)
    head = used.module_map.module(used.model, "lm_head").register_forward_pre_hook(fails)
    with plain_afterwards(used), pytest.raises(ZeroDivisionError):
        CALLED[tool](used)
    head.remove()
    assert not used.on_encode
