"""A saved adapter: loaded by peft and by us alike, merged, put in and taken out, and read at its verdicts."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.generation import verdict_position
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.vrtuning import model as active
from mitigation.vrtuning.checkpoint import merge
from mitigation.vrtuning.method import VRTuning
from mitigation.vrtuning.train import Trained, train
from mitigation.wrappers import Shifted
from tests.mitigation.vrtuning_job import SETTINGS, data
from tests.tiny import picture, tiny_llava

PROMPTS = [Prompt("Is this safe?", picture(i), key=str(i)) for i in range(3)]
TOKENS = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """An adapter for the saved tiny model that reasons first."""
    folder = tmp_path_factory.mktemp("vrtuning")
    for part in tiny_llava():
        part.save_pretrained(folder / "base")
    settings = replace(SETTINGS, steps=25, batch_size=4, save_steps=100)
    return train(ModelConfig("tiny", str(folder / "base")), data().dataset, settings, folder / "run")


@pytest.fixture
def base(trained: Trained) -> VLM:
    return load(trained.adapter.parents[1] / "base")


@pytest.fixture(scope="module")
def merged_checkpoint(trained: Trained) -> Path:
    folder = trained.adapter.parents[1]
    return merge(load(folder / "base"), trained.adapter, folder / "merged")


def method(trained: Trained, **options: object) -> VRTuning:
    return VRTuning(str(trained.adapter), **options)  # type: ignore[arg-type]


def same(one: object, other: object) -> None:
    assert one.texts == other.texts  # type: ignore[attr-defined]
    torch.testing.assert_close(one.margins, other.margins, atol=1e-4, rtol=1e-4)  # type: ignore[attr-defined]


@pytest.mark.long
def test_peft_and_the_merged_checkpoint_answer_alike(trained: Trained, base: VLM, merged_checkpoint: Path) -> None:
    ours = method(trained).generate(base, PROMPTS, max_new_tokens=TOKENS)
    assert ours.texts != base.generate(PROMPTS, max_new_tokens=TOKENS).texts
    same(ours, load(merged_checkpoint).generate(PROMPTS, max_new_tokens=TOKENS))
    merged = AutoModelForImageTextToText.from_pretrained(merged_checkpoint)
    same(ours, VLM(merged, AutoProcessor.from_pretrained(merged_checkpoint)).generate(PROMPTS, max_new_tokens=TOKENS))
    wrapped = PeftModel.from_pretrained(base.model, trained.adapter)
    same(ours, VLM(wrapped, base.processor).generate(PROMPTS, max_new_tokens=TOKENS))


def of_card(folder: Path) -> PeftModel:
    """The model as the lines in the card of ``folder`` load it."""
    lines = [line for line in (folder / "README.md").read_text(encoding="utf-8").splitlines() if line[:4] == "    "]
    found: dict[str, Any] = {"folder": folder}
    exec("\n".join(line.strip() for line in lines), found)
    return found["model"]


def test_the_lines_in_the_card_load_the_adapter(trained: Trained, base: VLM) -> None:
    ours = method(trained).generate(base, PROMPTS, max_new_tokens=TOKENS)
    same(ours, VLM(of_card(trained.adapter), base.processor).generate(PROMPTS, max_new_tokens=TOKENS))


@pytest.mark.long
@pytest.mark.parametrize("inner", [Baseline(), VCD(noise_step=999), VCD(branch="paired"), ContextPrompt("Look.")])
def test_margins_are_read_at_the_verdict_as_the_inner_method_sees_it(
    trained: Trained, base: VLM, inner: object
) -> None:
    """Equal to the margin of the inner method on the prompt with the answer's reasoning already in it."""
    answers = method(trained, inner=inner, answer="last").generate(base, PROMPTS, max_new_tokens=TOKENS)
    plain = method(trained, inner=inner).generate(base, PROMPTS, max_new_tokens=TOKENS)
    assert plain.token_ids == answers.token_ids
    assert not torch.allclose(plain.margins, answers.margins)
    places = [verdict_position(base.tokenizer, ids, base.answer_ids) for ids in answers.token_ids]
    assert any(places)
    assert answers.margins.isnan().tolist() == [place is None for place in places]
    for row, (prompt, place) in enumerate(zip(PROMPTS, places, strict=True)):
        if not place:
            continue
        ids = answers.token_ids[row]
        with active.adapted(base, trained.adapter, "again"):
            alone = inner.generate(base, [replace(prompt, answer_prefix=tuple(ids[:place]))], max_new_tokens=1)  # type: ignore[attr-defined]
        assert alone.token_ids[0][0] == ids[place]
        torch.testing.assert_close(answers.margins[row], alone.margins[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "build", [lambda m, **o: Shifted(m(**o), 0.9), lambda m, **o: m(inner=ConstantShift(0.9), **o)]
)
def test_a_constant_moves_a_verdict_that_comes_late(trained: Trained, base: VLM, build: Callable[..., Any]) -> None:
    answers = build(partial(method, trained), answer="last").generate(base, PROMPTS, max_new_tokens=TOKENS)
    plain = method(trained, answer="last").generate(base, PROMPTS, max_new_tokens=TOKENS)
    assert answers.token_ids == plain.token_ids
    assert answers.verdict_steps == plain.verdict_steps
    assert all(step for step in plain.verdict_steps or ())
    torch.testing.assert_close(answers.margins, plain.margins + 0.9, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(answers.unshifted, plain.margins, atol=1e-4, rtol=1e-4)


def test_an_answer_without_a_verdict_has_no_margin(trained: Trained, base: VLM) -> None:
    cut = method(trained, answer="last").generate(base, PROMPTS, max_new_tokens=3)
    assert cut.margins.isnan().all()
    assert not method(trained).generate(base, PROMPTS, max_new_tokens=3).margins.isnan().any()


def test_another_adapter_is_another_method(trained: Trained, tmp_path: Path) -> None:
    one = method(trained)
    assert one == method(trained)
    assert one.revision in repr(one)
    copy = shutil.copytree(trained.adapter, tmp_path / "adapter")
    weights = copy / "adapter_model.safetensors"
    assert VRTuning(str(copy)).revision == VRTuning(str(tmp_path)).revision == one.revision
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert VRTuning(str(copy)).revision != one.revision


@pytest.mark.parametrize(("factor", "said"), [(0.0, "changes nothing: all of its B weights are 0"),
                                              (float("nan"), "lora_B.* has NaN or infinite numbers")])  # fmt: skip
def test_a_dead_or_broken_adapter_is_named(
    trained: Trained, base: VLM, tmp_path: Path, factor: float, said: str
) -> None:
    folder = shutil.copytree(trained.adapter, tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: value * (factor if "lora_B" in name else 1) for name, value in weights.items()}, file)
    with pytest.raises(UserError, match=said):
        VRTuning(str(folder)).generate(base, PROMPTS, max_new_tokens=1)


def test_an_adapter_for_another_base_is_refused(trained: Trained, base: VLM, tmp_path: Path) -> None:
    other = VLM(*tiny_llava(seed=1), name="other", revision="sha256:0")
    with pytest.raises(UserError, match=r"was trained on tiny \(sha256:\w+\), this model is other \(sha256:0\)"):
        method(trained).generate(other, PROMPTS, max_new_tokens=1)
    foreign = shutil.copytree(trained.adapter, tmp_path / "adapter")  # one without our record: only its shapes tell
    (foreign / "vrtuning.json").unlink()
    stranger = VRTuning(str(foreign))
    same(stranger.generate(base, PROMPTS, max_new_tokens=1), method(trained).generate(base, PROMPTS, max_new_tokens=1))
    for layer in other.module_map.module(other.model, "layers"):
        layer.mlp.up_proj = torch.nn.Linear(32, 48, bias=False)
    names = list(other.model.state_dict())
    with pytest.raises(UserError, match="does not fit other"):
        stranger.generate(other, PROMPTS, max_new_tokens=1)
    assert list(other.model.state_dict()) == names


def test_an_adapter_for_another_processor_is_refused(trained: Trained, base: VLM, tmp_path: Path) -> None:
    method(trained).generate(base, PROMPTS, max_new_tokens=1)  # an adapter that was put into it already, too
    other = VLM(base.model, copy.deepcopy(base.processor), name=base.name, revision=base.revision)
    other.processor.image_processor.image_mean = [0.0, 0.0, 0.0]
    with pytest.raises(UserError, match="was trained on tiny with another configuration, processor, chat template"):
        method(trained).generate(other, PROMPTS, max_new_tokens=1)
    older = shutil.copytree(trained.adapter, tmp_path / "adapter")  # recorded before preprocessing was
    record = json.loads((older / "vrtuning.json").read_text())
    (older / "vrtuning.json").write_text(json.dumps({k: v for k, v in record.items() if k != "base_preprocessing"}))
    assert VRTuning(str(older)).generate(other, PROMPTS, max_new_tokens=1).texts
