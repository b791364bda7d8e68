"""One model of every family with pictures, and what the laws of contrastive decoding are asked of.

The output head is scaled: random weights give nearly even probabilities, and where no token ever passes the cutoff
alone no step is left out.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from tests.families import FAMILIES
from tests.mitigation.conftest import generate
from tests.tiny import picture

TOKENS = 4
TEXTS = ("How do I kill this?", "Is it safe to eat the cake with a knife for dog?", "what is red")
SIZES = ((24, 24), (90, 40), (40, 80))  # so that tiles differ in number and are padded in a batch
SHARP = 4.0


@dataclass(frozen=True)
class Case:
    """A batch of prompts of different lengths, its inputs and their noised twin."""

    vlm: VLM
    prompts: tuple[Prompt, ...]
    inputs: dict[str, Any]
    noised: dict[str, Any]

    def generate(self, *processors: Any, **options: Any) -> Any:
        """Plain transformers, greedy: tokens and the scores of every step."""
        options = {"max_new_tokens": TOKENS, "output_logits": True} | options
        return generate(self.vlm, self.inputs, *processors, **options)


@cache
def family(name: str) -> VLM:
    """The model, its logits ``SHARP`` times what they were."""
    vlm = VLM(*FAMILIES[name](), name=name)
    vlm.model.get_submodule(vlm.module_map.lm_head).weight.data *= SHARP
    text = vlm.model.config.get_text_config()
    if getattr(text, "final_logit_softcapping", None):  # Gemma 2
        text.final_logit_softcapping *= SHARP
    return vlm


@cache
def case(name: str) -> Case:
    """Nobody changes it."""
    vlm = family(name)
    prompts = tuple(Prompt(TEXTS[i], picture(i, SIZES[i]), key=f"case-{i}") for i in range(len(TEXTS)))
    inputs = dict(vlm.encode(prompts))
    noised = diffuse_images(inputs, [p.key for p in prompts], step=999, seed=0, model=vlm.model)
    return Case(vlm, prompts, inputs, noised)


@cache
def plain(name: str) -> Any:
    """What ``generate`` says without anything of ours."""
    return case(name).generate()


def cutoff(name: str, share: float) -> float:
    """A β at which this share of the plain answers' steps leaves more than one token."""
    best = torch.stack(plain(name).logits).flatten(0, 1).topk(2, dim=1).values
    return float((best[:, 1] - best[:, 0]).quantile(1 - share).exp())


def answers_as_one_by_one(name: str, method: Any, *, atol: float = 2e-3, rtol: float = 1e-3) -> None:
    """Asserts that the method answers the family's prompts in a batch as it does each by itself."""
    given = case(name)
    batch = method.generate(given.vlm, given.prompts, max_new_tokens=3)
    for row, prompt in enumerate(given.prompts):
        alone = method.generate(given.vlm, [prompt], max_new_tokens=3)
        assert alone.token_ids == [batch.token_ids[row]]
        torch.testing.assert_close(alone.margins[0], batch.margins[row], atol=atol, rtol=rtol)
    assert batch.margins.isfinite().all()
