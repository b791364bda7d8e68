"""A model with an unmerged adapter of its own, in every tool: what is found is what its merged twin shows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from interp import (
    FeatureCache,
    Prompt,
    Queries,
    activations,
    check_recorder,
    direct_logit_attribution,
    float32_head,
    head_patterns,
    integrated_gradients,
    knockout_effect,
    load,
    logit_lens,
    patch,
    record_attention,
    residuals,
    shared_features,
)
from interp.checkpoints.composed import is_composed
from interp.checkpoints.lora import LoraLinear, adapted_layers, plain_state
from interp.errors import UserError
from interp.vlm import VLM
from mitigation.vcd import VCD
from mitigation.vrtuning import checkpoint
from mitigation.vrtuning.method import VRTuning
from mitigation.vrtuning.train import train
from tests.mitigation.vrtuning_job import SETTINGS, data
from tests.parts import tiny_parts
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill it?", picture(0), key="a"), Prompt("Is this safe?", picture(1), key="b")]
OTHERS = [Prompt("How do I kill it?", picture(2)), Prompt("Is this safe?", picture(3))]
NEAR = {"atol": 2e-4, "rtol": 1e-4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model in parts, and the same as a whole checkpoint with its adapter merged, in float32."""
    folder = tmp_path_factory.mktemp("composed")
    model, processor = tiny_parts(folder / "parts", folder / "base")
    model.save_pretrained(folder / "whole", state_dict=plain_state(model))
    processor.save_pretrained(folder / "whole")
    return folder / "parts", folder / "whole"


@pytest.fixture
def vlm(folders: tuple[Path, Path]) -> VLM:
    return load(folders[0])


@pytest.fixture
def whole(folders: tuple[Path, Path]) -> VLM:
    assert not is_composed(folders[1])
    return load(folders[1])


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, **NEAR)


def test_answers_and_margins(vlm: VLM, whole: VLM) -> None:
    assert adapted_layers(vlm.model)
    assert not adapted_layers(whole.model)
    close(vlm.score(PROMPTS), whole.score(PROMPTS))
    for method in (vlm.generate, whole.generate):
        assert method(PROMPTS, max_new_tokens=6).texts == vlm.generate(PROMPTS, max_new_tokens=6).texts
    vcd = VCD()
    close(
        vcd.generate(vlm, PROMPTS, max_new_tokens=3).margins,
        vcd.generate(whole, PROMPTS, max_new_tokens=3).margins,
    )


def test_attention(vlm: VLM, whole: VLM) -> None:
    check_recorder(vlm, PROMPTS)
    shares = []
    for one in (vlm, whole):
        with record_attention(one, queries=Queries.VERDICT) as record:
            one.generate(PROMPTS, max_new_tokens=2)
        shares.append(torch.tensor(record.masses.select_dtypes("float").to_numpy()))
    close(*shares)
    maps = [next(iter(head_patterns(one, PROMPTS[0], [(1, 0)]).maps.values())) for one in (vlm, whole)]
    close(torch.tensor(maps[0]), torch.tensor(maps[1]))
    cut = [knockout_effect(one, PROMPTS, [("image", "verdict")]).moved for one in (vlm, whole)]
    close(*cut)
    assert (cut[0].abs() > 1e-3).all()


@pytest.mark.parametrize("what", ["residual", "attention", "mlp", "head"])
def test_patching(what: str, vlm: VLM, whole: VLM) -> None:
    found, known = (patch(one, PROMPTS, OTHERS, what=what, places=("verdict", "image")).values for one in (vlm, whole))
    torch.testing.assert_close(found, known, atol=2e-3, rtol=1e-3)
    assert (found.abs() > 1e-2).any()


def test_hidden_states_and_what_writes_them(vlm: VLM, whole: VLM) -> None:
    close(residuals(vlm, PROMPTS).values, residuals(whole, PROMPTS).values)
    close(logit_lens(vlm, PROMPTS).margins, logit_lens(whole, PROMPTS).margins)
    for what in ("attention", "mlp", "head"):
        close(activations(vlm, PROMPTS, what=what).values, activations(whole, PROMPTS, what=what).values)
    found, known = (direct_logit_attribution(one, PROMPTS) for one in (vlm, whole))
    close(found.heads, known.heads)
    close(found.total, vlm.score(PROMPTS))
    assert torch.isfinite(integrated_gradients(vlm, PROMPTS[0], steps=4).tokens).all()


def test_picture_features_are_kept(vlm: VLM) -> None:
    plain, cache = vlm.generate(PROMPTS, max_new_tokens=3), FeatureCache(10)
    with shared_features(vlm, cache):
        for _ in range(2):
            again = vlm.generate(PROMPTS, max_new_tokens=3)
    assert torch.equal(again.margins, plain.margins)
    assert (cache.computed, cache.reused) == (2, 2)


def test_the_head_is_read_in_float32(folders: tuple[Path, Path]) -> None:
    vlm = load(folders[0], dtype="bfloat16")
    assert vlm.rounded == ""
    with float32_head(vlm.model), torch.no_grad():
        assert vlm.model(**vlm.encode(PROMPTS)).logits.dtype == torch.float32


@pytest.fixture(scope="module")
def tuned(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[VLM, Path, list[Tensor]]:
    """An adapter of VRTuning's, trained on top of the model's own; the model, and its weights before."""
    vlm = load(folders[0])
    before = [weight.clone() for weight in vlm.model.state_dict().values()]
    settings = replace(SETTINGS, steps=12, batch_size=4, save_steps=100)
    done = train(vlm, data().dataset, settings, tmp_path_factory.mktemp("tuned") / "run")
    return vlm, done.adapter, before


@pytest.mark.long
def test_a_further_adapter_is_trained_on_top_and_leaves_the_models_own(tuned: tuple[VLM, Path, list[Tensor]]) -> None:
    vlm, adapter, before = tuned
    after = vlm.model.state_dict().values()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert len(adapted_layers(vlm.model)) == 14
    assert all(weight.requires_grad for weight in vlm.model.parameters())
    names = checkpoint.read_origin(adapter)
    assert names is not None
    assert names.base_revision == vlm.revision
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == SETTINGS.rank


def test_a_further_adapter_is_put_on_top_merged_with_it_and_taken_off(
    tuned: tuple[VLM, Path, list[Tensor]], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    vlm, adapter, _ = tuned
    plain = vlm.score(PROMPTS)
    both = VRTuning(str(adapter)).generate(vlm, PROMPTS, max_new_tokens=1).margins
    assert (both - plain).abs().max() > 1e-2
    assert torch.equal(vlm.score(PROMPTS), plain)
    merged = load(checkpoint.merge(load(folders[0]), adapter, tmp_path / "merged"))
    assert not is_composed(tmp_path / "merged")
    assert not any(isinstance(module, LoraLinear) for module in merged.model.modules())
    close(merged.score(PROMPTS), both)


def test_packing_in_four_bits_is_refused(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.checkpoints.config import ModelConfig
    from mitigation.vrtuning import model

    monkeypatch.setattr(model, "resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(model, "find_spec", lambda _: object())
    with pytest.raises(UserError, match="four_bit=true with parts, which is composed of parts"):
        model.load_four_bit(ModelConfig("parts", str(folders[0])))
