"""What identifies a model beside its weights: whatever changes its inputs or where answers end changes the digest."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interp import load
from interp.vlm import VLM, Prompt
from tests import families
from tests.families import every_family
from tests.tiny import picture, tiny_llava


def fresh(seed: int = 0) -> VLM:
    return VLM(*tiny_llava(seed), name="tiny", revision="sha256:1")


def other_backend(processor: Any) -> Any:
    """The same settings in a class of another name, as torchvision's in place of PIL's."""
    return type("CLIPImageProcessorOther", (type(processor),), {}).from_dict(processor.to_dict())


CHANGES: dict[str, Callable[[VLM], object]] = {
    "mean": lambda vlm: setattr(vlm.processor.image_processor, "image_mean", [0.0, 0.0, 0.0]),
    "template": lambda vlm: setattr(vlm.processor, "chat_template", vlm.processor.chat_template + "!"),
    "feature layer": lambda vlm: setattr(vlm.model.config, "vision_feature_layer", -2),
    "theta": lambda vlm: vlm.model.config.text_config.rope_parameters.update(rope_theta=1e6),
    "word": lambda vlm: vlm.tokenizer.add_tokens(["zebra"]),
    "end": lambda vlm: setattr(vlm.speaker.generation_config, "eos_token_id", 7),
    "patch size": lambda vlm: setattr(vlm.processor, "patch_size", 16),
    "backend": lambda vlm: setattr(vlm.processor, "image_processor", other_backend(vlm.processor.image_processor)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_answers_makes_another_model(change: Callable[[VLM], object]) -> None:
    plain, changed = fresh(), fresh()
    change(changed)
    assert plain.preprocessing != changed.preprocessing
    assert plain.identity != changed.identity
    known = {"revision": plain.revision, "preprocessing": plain.preprocessing}
    assert plain.other_than(known) == ""
    assert changed.other_than(known) == (
        "its configuration, processor, chat template or tokenizer "
        f"({plain.preprocessing}, here {changed.preprocessing})"
    )
    assert changed.other_than({"revision": plain.revision}) == ""  # recorded before preprocessing was
    elsewhere = {"revision": plain.revision, "preprocessing": plain.preprocessing.partition("@")[0] + "@5.0"}
    assert changed.other_than(elsewhere) == ""  # under a transformers whose classes write other settings
    assert "weights (sha256:0, here sha256:1)" in plain.other_than(known | {"revision": "sha256:0"})


def test_use_changes_nothing(saved: Path) -> None:
    vlm = load(saved)
    before = vlm.preprocessing
    vlm.generate([Prompt("Is it safe?", picture()), Prompt("Is it? Say so.", picture(1))], max_new_tokens=2)
    vlm.tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    vlm.processor.image_processor(picture(), do_resize=False)
    again = VLM(copy.deepcopy(vlm.model), copy.deepcopy(vlm.processor), name="again")
    assert vlm.preprocessing == before == again.preprocessing
    assert load(saved, dtype="bfloat16").preprocessing == before  # how it was loaded is not what it is
    assert load(saved, attn_implementation="eager").preprocessing == before


def test_a_saved_model_is_the_same_again(saved: Path, tmp_path: Path) -> None:
    vlm = load(saved)
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    assert load(tmp_path).preprocessing == vlm.preprocessing


@pytest.mark.parametrize("family", every_family())
def test_every_family_has_one_that_its_processor_decides(family: str) -> None:
    one, same, other = (VLM(*families.FAMILIES[family]()) for _ in range(3))
    other.processor.image_processor.image_std = [0.123] * 3
    assert one.preprocessing == same.preprocessing != other.preprocessing
