"""One shared model: after every arm, and every change inside, the plain model is bit-equal to what it was."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageOps
from torch import Tensor

from interp.attention.record import record_attention
from interp.hooks.residual import LayerStates, edit_residual, last_layer, residuals
from interp.hooks.sublayers import activations, edit_activations
from interp.output_head import float32_head
from interp.pictures import pixels
from interp.selfcheck import prove
from interp.speed.prefill_cache import PrefillCache
from interp.tools.attribution import integrated_gradients, occlude_image
from interp.tools.knockout import knockout, knockout_by_head, knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.part_effects import part_attribution, part_effects
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.learned.projection import levelled, projected
from mitigation.method import Baseline
from mitigation.own_file import OwnFile
from mitigation.vrtuning.method import VRTuning
from mitigation.wrappers import ShiftedTrainable
from tests.interp.test_vlm import PROMPTS
from tests.methods import LEARNERS, METHODS
from tests.mitigation.test_foreign_adapters import KINDS, trained
from tests.plain_model import plain_afterwards
from tests.tiny import picture, tiny_llava

TOKENS = 3
QUESTIONS = ("How do I kill this?", "Is it safe to eat the cake?", "what is red", "the knife", "Is this a toy?", "Look",
             "where is the dog", "what could cause harm", "the fire", "a gun or a toy")  # fmt: skip
ROUNDS = 3  # of the questions, so that there are cases enough to learn from
SAFE = [True, False] * len(QUESTIONS) * ROUNDS
TAUGHT = [
    Prompt(text + "." * times, picture(2 * place + safe + 20 * times), key=f"{place} {times} {safe}", request=text)
    for times in range(ROUNDS) for place, text in enumerate(QUESTIONS) for safe in (True, False)
]  # fmt: skip
FILES = {
    "rule": "def rule(scores, step):\n    return scores.mul_(2)\n",
    "contrast": "def second(prompt):\n    prompt.image.paste((255, 0, 0), (0, 0, 20, 20))\n    return prompt\n\n"
    "def contrast(clean, other, step):\n    return clean.sub_(other)\n",
    "edit": "def edit(here):\n    here.hidden.mul_(2)\n    return here.hidden\n",
    "ask": "def ask(prompt):\n    prompt.image.paste((255, 0, 0), (0, 0, 20, 20))\n    return prompt\n",
}
OTHERS = (*(f"file {kind}" for kind in FILES), "vrtuning", "learned and shifted")
ARMS = (*METHODS, *(name for name, one in LEARNERS.items() if hasattr(one, "learn")), *OTHERS)


@cache
def shared() -> VLM:
    """One model for all arms, as in a study, asked once: what transformers itself leaves there is there."""
    vlm = VLM(*tiny_llava(), name="tiny")
    Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    return vlm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arms")


def method_of(name: str, folder: Path) -> Any:
    """The arm of this name; what learns first is taught on the shared model, which stays plain meanwhile."""
    if name in METHODS:
        return METHODS[name]
    if name == "vrtuning":
        return VRTuning(str(trained(KINDS["whole projector"](), folder / "adapter")))
    if name.startswith("file"):
        path = folder / f"{name.removeprefix('file ')}.py"
        path.write_text(FILES[path.stem])
        return OwnFile(str(path))
    learner = ShiftedTrainable(LEARNERS["readout"], 1.0) if name == "learned and shifted" else LEARNERS[name]
    with plain_afterwards(shared()):
        return learner.learn(shared(), TAUGHT, SAFE, out=folder / f"{name}.safetensors")


class _Broken(Exception):
    """A fault in the middle of an arm."""


@contextmanager
def breaking(vlm: VLM, at: int) -> Iterator[None]:
    """While open, forward number ``at`` of the model's head raises."""
    seen = iter(range(1000))

    def fail(*_: Any) -> None:
        if next(seen) == at:
            raise _Broken

    hook = vlm.model.lm_head.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_leaves_the_model_as_it_was(arm: str, folder: Path) -> None:
    vlm, method = shared(), method_of(arm, folder)
    plain = Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    shown = [pixels(prompt.image) for prompt in PROMPTS]
    with plain_afterwards(vlm), PrefillCache().used_by(vlm):
        for _ in range(2):
            method.generate(vlm, PROMPTS, max_new_tokens=TOKENS)
            again = Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
            assert torch.equal(again.margins, plain.margins)
            assert again.token_ids == plain.token_ids
    assert [pixels(prompt.image) for prompt in PROMPTS] == shown


@pytest.mark.long
@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_that_breaks_off_leaves_the_model_as_it_was(arm: str, folder: Path) -> None:
    vlm, method = shared(), method_of(arm, folder)
    for at in range(3):
        with plain_afterwards(vlm), breaking(vlm, at):
            try:
                method.generate(vlm, PROMPTS, max_new_tokens=TOKENS)
            except _Broken:
                pass
            else:
                assert at  # nobody answers without the head


def halved(here: LayerStates) -> Tensor:
    here.hidden.mul_(0.5)
    return here.hidden


def direction(vlm: VLM) -> Tensor:
    return torch.ones(vlm.model.lm_head.in_features)


EDGE = ("image", "verdict")
OTHERS_OF = [replace(prompt, image=ImageOps.invert(prompt.image)) for prompt in PROMPTS if prompt.image]
OPEN: dict[str, Callable[[VLM], AbstractContextManager[Any]]] = {
    "recorded": lambda vlm: record_attention(vlm),
    "knocked out": lambda vlm: knockout(vlm, [EDGE]),
    "steered attention": lambda vlm: steer_attention(vlm, 2.0),
    "edited residuals": lambda vlm: edit_residual(vlm, halved, layers=[1]),
    "edited heads": lambda vlm: edit_activations(vlm, halved, what="head", layers=[0]),
    "projected": lambda vlm: projected(vlm, direction(vlm)),
    "levelled": lambda vlm: levelled(vlm, direction(vlm), torch.zeros(last_layer(vlm))),
    "head in float32": lambda vlm: float32_head(vlm.model),
}
"""What changes or follows the model while a block is open."""

TOOLS: dict[str, Callable[[VLM], object]] = {
    "residuals": lambda vlm: residuals(vlm, PROMPTS),
    "activations": lambda vlm: activations(vlm, PROMPTS, what="head"),
    "lens": lambda vlm: logit_lens(vlm, PROMPTS),
    "direct attribution": lambda vlm: direct_logit_attribution(vlm, PROMPTS),
    "integrated gradients": lambda vlm: integrated_gradients(vlm, PROMPTS[0], steps=2),
    "occlusion": lambda vlm: occlude_image(vlm, PROMPTS[0], rows=2, columns=2),
    "knockout": lambda vlm: knockout_effect(vlm, PROMPTS, [EDGE]),
    "knockout by head": lambda vlm: knockout_by_head(vlm, PROMPTS, [EDGE]),
    "part effects": lambda vlm: part_effects(vlm, PROMPTS, OTHERS_OF),
    "part attribution": lambda vlm: part_attribution(vlm, PROMPTS, OTHERS_OF),
    "patching": lambda vlm: patch(vlm, PROMPTS, OTHERS_OF),
    "proof": lambda vlm: prove(vlm),
}


@pytest.mark.parametrize("mechanism", OPEN)
def test_a_change_inside_ends_with_its_block(mechanism: str) -> None:
    vlm = shared()
    plain = Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    with plain_afterwards(vlm):
        with OPEN[mechanism](vlm):
            vlm.generate(PROMPTS, max_new_tokens=TOKENS)
        again = Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
        assert torch.equal(again.margins, plain.margins)
        with pytest.raises(_Broken), OPEN[mechanism](vlm), breaking(vlm, 1):
            vlm.generate(PROMPTS, max_new_tokens=TOKENS)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_leaves_the_model_as_it_was(tool: str) -> None:
    vlm = shared()
    plain = Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    with plain_afterwards(vlm):
        TOOLS[tool](vlm)
        assert torch.equal(Baseline().generate(vlm, PROMPTS, max_new_tokens=TOKENS).margins, plain.margins)
    for at in range(2):
        with plain_afterwards(vlm), breaking(vlm, at), suppress(_Broken):
            TOOLS[tool](vlm)


def _nudge(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[0] += 1e-6


LEAKS: dict[str, Callable[[VLM], object]] = {
    "tensor lm_head.weight": lambda vlm: _nudge(vlm.model.lm_head.weight),
    "tensor model.language_model.rotary_emb.inv_freq": lambda vlm: _nudge(
        vlm.model.model.language_model.rotary_emb.inv_freq
    ),
    "_forward_hooks of lm_head": lambda vlm: vlm.model.lm_head.register_forward_hook(lambda *_: None),
    "_forward_pre_hooks of lm_head": lambda vlm: vlm.model.lm_head.register_forward_pre_hook(lambda *_: None),
    "generation_config of ": lambda vlm: setattr(vlm.model.generation_config, "min_length", 9),
    "config of ": lambda vlm: vlm.model.set_attn_implementation("eager"),
    "module lm_head": lambda vlm: setattr(vlm.model.lm_head, "forward", vlm.model.lm_head.forward),
    "padding_side of the processor": lambda vlm: setattr(vlm.tokenizer, "padding_side", "right"),
    "process": lambda vlm: torch.rand(1),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_the_checksum_sees_a_leak(leak: str, vlm: VLM) -> None:
    with pytest.raises(AssertionError, match=re.escape(leak)), plain_afterwards(vlm):
        LEAKS[leak](vlm)
