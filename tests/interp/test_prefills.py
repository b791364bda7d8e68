"""Prefills shared by content: fewer of them, the same bits, and none if a forward is not the plain forward."""

from typing import Any

import pytest
import torch

from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.hooks.forward import replaced
from interp.hooks.residual import edit_residual
from interp.prefill_cache import PrefillCache
from interp.vlm import VLM, Generation, Prompt
from mitigation import M3ID, VCD, Baseline, ConstantShift, InstructionContrast, PriorCorrection, Sampled, TextOnly
from tests import read_families
from tests.families import FAMILIES, every_family
from tests.tiny import picture

PROMPTS = [
    Prompt("is this safe ?", picture(0, (40, 40)), key="a"),
    Prompt("what about this one , is it any good to do at all ?", picture(1, (90, 40)), key="b"),
    Prompt("hm", picture(2, (30, 64)), key="c"),
]
SEQUENTIAL: dict[str, Any] = {"branch": "sequential"}
ARMS: dict[str, Any] = {
    "baseline": Baseline(),
    "shift": ConstantShift(0.5),
    "vcd": VCD(**SEQUENTIAL),
    "vcd_heavier": VCD(alpha=2.0, **SEQUENTIAL),
    "vcd_other_noise": VCD(noise_step=999, **SEQUENTIAL),
    "prior": PriorCorrection(weight=0.5),
    "prior_heavier": PriorCorrection(),
    "sampled": Sampled(Baseline(), temperature=0.7, seed=1),
}
DISTINCT = 4  # clean, two noises, grey
WORDS: dict[str, Any] = {"icd": InstructionContrast(), "m3id": M3ID(), "text_only": TextOnly()}  # not of every family


def same(one: Generation, other: Generation) -> bool:
    return one.token_ids == other.token_ids and torch.equal(one.margins.nan_to_num(), other.margins.nan_to_num())


def answers(vlm: VLM, arms: dict[str, Any], tokens: int = 4) -> dict[str, Generation]:
    return {name: method.generate(vlm, PROMPTS, max_new_tokens=tokens) for name, method in arms.items()}


def check_bits(vlm: VLM) -> None:
    possible = dict(ARMS)
    for name, method in WORDS.items():
        try:
            method.generate(vlm, PROMPTS, max_new_tokens=1)
        except UserError:
            continue
        possible[name] = method
    plain = answers(vlm, possible)
    cache = PrefillCache()
    with cache.used_by(vlm):
        assert not cache.off
        shared = answers(vlm, possible)
        vlm.generate(PROMPTS[:2], max_new_tokens=2)  # another batch in between
        again = answers(vlm, possible)
        computed = cache.computed
    assert [name for name in plain if not same(plain[name], shared[name])] == []
    assert [name for name in possible if not same(plain[name], again[name])] == []
    rows = len(PROMPTS)
    apart = len({"icd", "m3id", "text_only"} & possible.keys()) - ({"m3id", "text_only"} <= possible.keys())
    assert computed == rows * (DISTINCT + apart) + 2
    assert not cache.held


@pytest.mark.long
@pytest.mark.parametrize("name", every_family())
def test_arms_that_share_prefills_answer_with_the_same_bits(name: str) -> None:
    check_bits(VLM(*FAMILIES[name]()))


@pytest.mark.families
def test_recurrent_states_are_copied_whole() -> None:
    pieces = read_families.build("qwen3_5")
    vlm = VLM(pieces.model, pieces.processor)
    kinds = {type(layer).__name__ for layer in vlm.model(**vlm.encode(PROMPTS)).past_key_values.layers}
    assert any("Linear" in kind for kind in kinds)
    check_bits(vlm)


@pytest.mark.long
def test_bfloat16_answers_do_not_depend_on_the_arms_that_ran_before(vlm: VLM) -> None:
    vlm.model.to(torch.bfloat16)
    alone = {}
    for name, method in ARMS.items():
        with PrefillCache().used_by(vlm):
            alone |= answers(vlm, {name: method})
    for order in (list(ARMS), list(ARMS)[::-1]):
        with PrefillCache().used_by(vlm):
            together = answers(vlm, {name: ARMS[name] for name in order})
        assert all(same(alone[name], together[name]) for name in ARMS)
    assert same(alone["baseline"], vlm.generate(PROMPTS, max_new_tokens=4))


def test_what_is_recorded_edited_or_changed_is_read_again(vlm: VLM) -> None:
    cache = PrefillCache()
    with cache.used_by(vlm):
        plain = vlm.generate(PROMPTS, max_new_tokens=2)
        with record_attention(vlm, queries=Queries.VERDICT) as record:
            assert same(plain, vlm.generate(PROMPTS, max_new_tokens=2))
        assert len(record.rows) == len(PROMPTS)
        with edit_residual(vlm, lambda states: states.hidden * 2, layers=[1]):
            edited = vlm.generate(PROMPTS, max_new_tokens=2)
        assert not torch.equal(plain.margins, edited.margins)
        assert cache.reused == 0
        assert same(plain, vlm.generate(PROMPTS, max_new_tokens=2))
        assert cache.reused == len(PROMPTS)
        with torch.no_grad():
            vlm.module_map.module(vlm.model, "lm_head").weight.mul_(2)
        torch.testing.assert_close(vlm.generate(PROMPTS, max_new_tokens=2).margins, 2 * plain.margins)
        assert cache.reused == len(PROMPTS)
        vlm.model.train()
        vlm.generate(PROMPTS, max_new_tokens=2)
        assert cache.reused == len(PROMPTS)
    assert cache.computed == 5 * len(PROMPTS)


def test_another_function_in_place_of_a_layers_forward_is_noticed(vlm: VLM) -> None:
    layer, cache = vlm.module_map.module(vlm.model, "layers")[0], PrefillCache()
    with cache.used_by(vlm):
        plain = vlm.generate(PROMPTS, max_new_tokens=1)
        with replaced(layer, "forward", lambda hidden, *args, **kwargs: hidden):
            assert not torch.equal(vlm.generate(PROMPTS, max_new_tokens=1).margins, plain.margins)


def test_few_prefills_are_held_at_once(vlm: VLM) -> None:
    arms = {"baseline": Baseline()} | {f"noise {step}": VCD(noise_step=step, **SEQUENTIAL) for step in (500, 700, 999)}
    cache, held = PrefillCache(), []
    with cache.used_by(vlm):
        for method in arms.values():
            cache.next_method()
            method.generate(vlm, PROMPTS, max_new_tokens=1)
            held.append(len(cache._entries))
        assert held == [1, 2, 2, 2]  # the clean one, which was used most, and the last arm's
        assert cache.computed == 4 * len(PROMPTS)
        before = cache.held
        assert cache.give_way()
        assert not cache.held
        assert not cache.give_way()
        Baseline().generate(vlm, PROMPTS, max_new_tokens=1)
        VCD(**SEQUENTIAL).generate(vlm, PROMPTS, max_new_tokens=1)
        assert 0 < cache.held <= before // 2


def test_prompts_are_processed_once_and_each_arm_gets_a_mapping_of_its_own(vlm: VLM) -> None:
    calls: list[int] = []
    processed = vlm._processed
    vlm._processed = lambda prompts: [calls.append(len(prompts)), processed(prompts)][1]  # type: ignore[method-assign]
    alike = [Prompt(prompt.text, prompt.image, key=f"other {prompt.key}") for prompt in PROMPTS]
    with PrefillCache().used_by(vlm):
        one = vlm.encode(PROMPTS)
        one.pop("pixel_values")
        assert "pixel_values" in vlm.encode(alike)
        assert calls == [3]
        vlm.encode(PROMPTS[:2])
        copies = [Prompt(prompt.text, prompt.image.copy()) for prompt in PROMPTS if prompt.image is not None]
        vlm.encode(copies)
        assert calls == [3, 2]
        for prompt in copies:
            prompt.image.paste("red", (0, 0, 4, 4))
        assert not torch.equal(vlm.encode(copies)["pixel_values"], vlm.encode(PROMPTS)["pixel_values"])
        vlm.encode([Prompt(prompt.text, prompt.image, system="Be brief.") for prompt in PROMPTS])
        assert calls == [3, 2, 3, 3]
    vlm.encode(PROMPTS)
    assert calls == [3, 2, 3, 3, 3]
