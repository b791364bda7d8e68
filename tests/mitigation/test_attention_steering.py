"""Steering equals eager attention with its logits raised by a slow loop; a weight of 0 is nothing; nothing is left."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from interp.segments import Segments, segment
from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.attention_steering import AttentionSteering
from mitigation.method import Baseline
from mitigation.prior_correction import PriorCorrection, prior_inputs
from tests import families
from tests.interp.eager import eager_masked
from tests.interp.eager import real_logits as logits
from tests.interp.test_attention_knockout import PROMPTS

WEIGHT = 1.5


def eager_raised(vlm: VLM, segments: Segments, layers: list[int] | None, *, relative: bool, all_text: bool) -> Any:
    """transformers' eager attention whose mask holds what is to be added, by a loop over rows, queries and keys."""

    def raising(layer: int, mask: torch.Tensor, query: Any, key: Any, options: dict[str, Any]) -> None:
        rows, heads, queries, keys = mask.shape if layers is None or layer in layers else (0, 0, 0, 0)
        for r, q in product(range(rows), range(queries)):
            labels = segments.rows[r].labels
            seen = [k for k in range(len(labels)) if labels[k] == "image_0"]
            column = keys - queries + q
            text = column >= len(labels) or (column > seen[0] and labels[column] != "image_0")
            if not (text if all_text else column >= len(labels) - 1):
                continue
            for h, k in product(range(heads), seen):
                logit = query[r, h, q] @ key[r, h * key.shape[1] // heads, k] * options["scaling"]
                if options.get("softcap"):
                    logit = options["softcap"] * torch.tanh(logit / options["softcap"])
                if mask[r, h, q, k] == 0:  # below it a window or a later column is hidden
                    mask[r, h, q, k] = WEIGHT * (abs(logit) if relative else 1)

    return eager_masked(vlm, raising)


@pytest.mark.parametrize(
    ("family", "relative"),
    [
        (families.llava, True),
        (families.llava_mistral, False),
        (families.qwen2_5_vl, False),
        pytest.param(families.paligemma2, True, marks=pytest.mark.slow),  # soft-capped
    ],
)
def test_equal_to_eager_with_raised_logits(family: Callable[[], families.Pieces], relative: bool) -> None:
    vlm, layers, all_text = VLM(*family()), [1] if relative else None, not relative
    encoded = vlm.encode(PROMPTS)
    segments, whole = segment(vlm, PROMPTS, encoded), logits(vlm, encoded)
    with eager_raised(vlm, segments, layers, relative=relative, all_text=all_text):
        expected = logits(vlm, encoded)
    with steer_attention(vlm, WEIGHT, layers=layers, relative=relative, all_text=all_text, segments=segments):
        raised = logits(vlm, encoded)
    torch.testing.assert_close(raised, expected, atol=5e-5, rtol=1e-4)
    assert (raised - whole).abs().max() > 1e-3
    assert torch.equal(logits(vlm, encoded), whole)


@pytest.mark.parametrize("relative", [False, True])
def test_while_generating(vlm: VLM, relative: bool) -> None:
    options = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_logits": True, "do_sample": False,
               "pad_token_id": 0, "eos_token_id": None}  # fmt: skip
    encoded = vlm.encode(PROMPTS)
    with eager_raised(vlm, segment(vlm, PROMPTS, encoded), None, relative=relative, all_text=False):
        expected = vlm.model.generate(**encoded, **options)
    with steer_attention(vlm, WEIGHT, relative=relative):  # encoded inside: no segments given
        got = vlm.model.generate(**vlm.encode(PROMPTS), **options)
    assert torch.equal(got.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(expected.logits), atol=5e-5, rtol=1e-4)


def test_half_precision_and_no_weight(vlm: VLM, prompts: list[Prompt]) -> None:
    method, none = AttentionSteering(2.0, [1], relative=True), AttentionSteering(0.0)
    assert method.layers == (1,)
    exact = method.generate(vlm, prompts, max_new_tokens=2)
    for model in (vlm, VLM(vlm.model.to(torch.bfloat16), vlm.processor)):
        plain, left = (m.generate(model, prompts, max_new_tokens=4) for m in (Baseline(), none))
        assert left.token_ids == plain.token_ids
        assert torch.equal(left.margins, plain.margins)
        steered = method.generate(model, prompts, max_new_tokens=2).margins
        torch.testing.assert_close(steered, exact.margins, atol=0.1, rtol=0.1)
        assert (steered - plain.margins).abs().max() > 0.01


def test_a_second_branch_is_not_steered(vlm: VLM, prompts: list[Prompt]) -> None:
    got = AttentionSteering(2.0, method=PriorCorrection(0.5)).generate(vlm, prompts, max_new_tokens=1).margins
    blank = vlm.score(prompts, encoded=prior_inputs(vlm, prompts, "blank", pictures=1, seed=0)[0])
    with steer_attention(vlm, 2.0):
        steered = vlm.score(prompts)
    torch.testing.assert_close(got, steered - 0.5 * blank, atol=1e-4, rtol=1e-4)
