"""ONLY against a slow loop over heads and columns in float64; batches; what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.errors import UserError
from interp.segments import segment
from interp.vlm import VLM, Prompt
from mitigation.branches import BranchLogits
from mitigation.method import Baseline
from mitigation.peers.only import ONLY
from mitigation.wrappers import Shifted
from tests.families import FAMILIES, every_family
from tests.mitigation.family_laws import answers_as_one_by_one
from tests.mitigation.slow_rule import GROWING, decided
from tests.tiny import tiny_llava

TOKENS = 4


def without_outliers(weights: Tensor) -> Tensor:
    return torch.where(weights > weights.mean() + weights.std(), 0.0, weights)


def entropy(weights: Tensor) -> float:
    shares = [float(weight / weights.sum()) for weight in weights]
    return -sum(share * float(torch.tensor(share).log()) for share in shares if share > 0)


@torch.no_grad()
def enhanced(model: Any, inputs: dict[str, Any], labels: list[str], layer: int) -> tuple[Tensor, Tensor]:
    """The model's own logits and the textually enhanced ones after the last column, from a whole forward."""
    values: list[Tensor] = []
    layers, norm = model.model.language_model.layers, model.model.language_model.norm
    handle = layers[layer].self_attn.v_proj.register_forward_hook(lambda m, a, output: values.append(output[0]))
    output = model(**inputs, use_cache=False, output_attentions=True, output_hidden_states=True)
    handle.remove()
    attention = output.attentions[layer][0, :, -1]  # head, column
    text = [c for c, label in enumerate(labels) if label not in ("image_0", "sink")]
    image = [c for c, label in enumerate(labels) if label == "image_0"]
    ratios, outputs = [], []
    dim = layers[layer].self_attn.head_dim
    for head, weights in enumerate(attention):
        left = weights.clone()
        left[text], left[image] = without_outliers(weights[text]), without_outliers(weights[image])
        ratios.append(entropy(left[text]) / entropy(left[image]))
        group = head * values[0].shape[1] // dim // len(attention)
        value = values[0][:, group * dim : (group + 1) * dim]
        outputs.append(sum(left[c] * value[c] for c in range(len(left))))
    mean = sum(ratios) / len(ratios)
    assert len({ratio < mean for ratio in ratios}) == 2, "some heads are switched off, and not all"
    kept = [out if ratio >= mean else 0 * out for ratio, out in zip(ratios, outputs, strict=True)]
    states = layers[layer].self_attn.o_proj(torch.cat(kept))
    own, last = output.hidden_states[-2][0, -1], layers[-1]
    entering = last.input_layernorm(states) + 0.2 * own
    left = entering + last.mlp(last.post_attention_layernorm(entering))
    final = norm(left) + 0.5 * output.hidden_states[-1][0, -1]
    return output.logits[0, -1], model.lm_head(final)


def slow(prompt: Prompt, method: ONLY) -> tuple[list[int], float, list[bool]]:
    """Tokens, margin, and whether the two agreed at each step."""
    vlm = VLM(*tiny_llava(), name="slow")
    vlm.model.set_attn_implementation("eager")
    grown = dict(vlm.encode([prompt]))
    labels = list(segment(vlm, [prompt], grown).rows[0].labels)
    vlm.model.double()
    grown["pixel_values"] = grown["pixel_values"].double()
    ids, margin, agreed = [], 0.0, []
    for step in range(TOKENS):
        own, text = enhanced(vlm.model, grown, labels, method.layer)
        agreed.append(bool((own.softmax(0) - text.softmax(0)).abs().sum() < method.gamma))
        both = own + method.alpha_1 * text if agreed[-1] else (1 + method.alpha_2) * own - method.alpha_2 * text
        if not step:
            margin = float(vlm.margin(both[None].float()))
        if method.beta is not None:
            cut = both.masked_fill(own.softmax(0) < method.beta * own.softmax(0).max(), -torch.inf)
            answers = [*vlm.answer_ids.yes, *vlm.answer_ids.no]
            if not step and int(cut.argmax()) in answers:
                cut[answers] = both[answers]
            both = cut
        ids.append(int(both.argmax()))
        labels.append("generated")
        for key in GROWING:
            if key in grown:
                tail = {"input_ids": ids[-1], "attention_mask": 1}.get(key, 0)
                grown[key] = torch.cat([grown[key], grown[key].new_full((1, 1), tail)], dim=1)
    return ids, margin, agreed


@pytest.mark.parametrize(
    ("method", "agree"),
    [
        (ONLY(), {False}),
        (ONLY(gamma=2.0, beta=0.05), {True}),
        (ONLY(alpha_1=0.5, alpha_2=2.0, gamma=1.2, layer=1, beta=None), None),
    ],
)
def test_against_loops(vlm: VLM, prompts: list[Prompt], method: ONLY, agree: set[bool] | None) -> None:
    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    assert (got.margins - vlm.score(prompts)).abs().max() > 0.01
    seen: set[bool] = set()
    for row, prompt in enumerate(prompts):  # one by one, so that it holds for every batch
        ids, margin, agreed = slow(prompt, method)
        seen |= set(agreed)
        assert got.token_ids[row] == ids[: len(got.token_ids[row])]
        assert float(got.margins[row]) == pytest.approx(margin, abs=1e-3)
    assert agree is None or seen == agree


def test_the_rule_is_a_rows_own() -> None:
    clean = torch.tensor([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    other = torch.tensor([[4.0, 0.1, 0.0], [0.0, 4.0, 0.0]])
    scores = ONLY().scores(BranchLogits(clean, other[None], ([], []), torch.zeros(2, 1, dtype=torch.long)), 0)
    torch.testing.assert_close(scores, torch.stack([clean[0] + 3 * other[0], 2 * clean[1] - other[1]]))


@pytest.mark.parametrize("name", every_family(but={"paligemma2", "gemma3", "idefics", "mllama"}))
def test_batches_answer_as_one_by_one(name: str) -> None:
    answers_as_one_by_one(name, ONLY(gamma=0.6))


def test_no_weight_is_the_baseline_and_nothing_is_left_behind(vlm: VLM, prompts: list[Prompt]) -> None:
    plain = Baseline().generate(vlm, prompts, max_new_tokens=5)
    none = ONLY(0.0, 0.0, beta=None).generate(vlm, prompts, max_new_tokens=5)
    ONLY().generate(vlm, prompts, max_new_tokens=2)
    again = Baseline().generate(vlm, prompts, max_new_tokens=5)
    assert none.token_ids == plain.token_ids == again.token_ids
    torch.testing.assert_close(none.margins, plain.margins)
    assert torch.equal(again.margins, plain.margins)


def test_verdicts_follow_their_shifted_margins(vlm: VLM, prompts: list[Prompt]) -> None:
    vlm = decided(vlm)
    got, plain = (m.generate(vlm, prompts, max_new_tokens=1) for m in (Shifted(ONLY(), 0.4), ONLY()))
    assert plain.texts == ["Yes" if margin > 0 else "No" for margin in plain.margins]
    torch.testing.assert_close(got.margins, plain.margins + 0.4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ONLY(alpha_1=-1.0), r"alpha_1=-1\.0; .*0 or more"),
        (lambda: ONLY(alpha_2=float("nan")), "alpha_2=nan; "),
        (lambda: ONLY(gamma=2.5), r"gamma=2\.5; .*from 0 to 2"),
        (lambda: ONLY(layer=-1), "layer=-1; "),
        (lambda: ONLY(layer=True), "layer=True; "),
        (lambda: ONLY(beta=0.0), r"beta=0\.0"),
    ],
)
def test_settings_are_checked_when_made(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build()


def test_what_cannot_be_asked_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="no layer 2 in tiny"):
        ONLY(layer=2).generate(vlm, prompts, max_new_tokens=1)
    with pytest.raises(UserError, match="no image in prompt 'blind'"):
        ONLY().generate(vlm, [Prompt("what is red", key="blind")], max_new_tokens=1)
    for name, message in (("gemma3", "norms behind the sublayers of gemma3"), ("mllama", "no image tokens")):
        with pytest.raises(UserError, match=message):
            ONLY().generate(VLM(*FAMILIES[name](), name=name), prompts, max_new_tokens=1)
