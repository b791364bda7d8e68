"""One shared model: after every arm, and every change inside, the plain model is bit-equal to what it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from interp.messages import pixels
from interp.prefill_cache import PrefillCache
from interp.vlm import VLM, Prompt
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
