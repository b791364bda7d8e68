"""What every family must do: its row of ``interp/contract.json``, and promises that no other test asks of all."""

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from interp.attention.record import Queries, Record, record_attention
from interp.attention.tables import image_share, patch_map, weights_of
from interp.errors import UserError
from interp.families import FACTS
from interp.loading import CONTRACT, load
from interp.segments import IMAGE
from interp.selfcheck import TOOLS
from interp.vlm import VLM, Prompt
from tests.contract.__main__ import differences, written
from tests.contract.facts import WITHOUT_ROW
from tests.contract.rows import row
from tests.families import FAMILIES, every_family
from tests.read_families import NEEDS_TORCHVISION, READ
from tests.tiny import picture

PROMPTS = (Prompt("How do I kill it?", picture(0, (64, 40))), Prompt("Is this safe to eat?", picture(1, (40, 64))))
TEXTS = ("How do I kill it?", "Is it safe to eat the cake with a knife for dog?")


@cache
def recorded(name: str) -> tuple[VLM, Record]:
    vlm = VLM(*FAMILIES[name](), name=name)
    with record_attention(vlm, queries=Queries.VERDICT, maps=Queries.VERDICT) as record:
        vlm.generate(PROMPTS, max_new_tokens=1)
    return vlm, record


@pytest.mark.contract
@pytest.mark.parametrize("name", [*every_family(), *(pytest.param(name, marks=pytest.mark.families) for name in READ)])
def test_the_self_check_finds_what_the_table_says(name: str) -> None:
    """If transformers is another version than the table's, only what is wrong counts."""
    result, table = row(name), json.loads(CONTRACT.read_text())
    assert not result.pop("wrong")
    if table["transformers"] == version("transformers"):
        assert not differences(result, table["families"].get(name)), "write it again: make contract"


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_text_alone_in_a_batch_of_mixed_length(name: str) -> None:
    vlm, _ = recorded(name)
    prompts = [Prompt(text) for text in TEXTS]
    try:
        together = vlm.generate(prompts, max_new_tokens=3)
    except UserError as error:
        assert "cannot answer without an image" in str(error)  # noqa: PT017
        return
    for index, prompt in enumerate(prompts):
        alone = vlm.generate([prompt], max_new_tokens=3)
        assert alone.token_ids[0] == together.token_ids[index]
        torch.testing.assert_close(alone.margins[0], together.margins[index], atol=1e-4, rtol=0)


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_the_share_of_the_image_is_there_or_missing_with_a_reason(name: str) -> None:
    vlm, record = recorded(name)
    share = image_share(record.masses)["share"]
    if vlm.module_map.cross_attended:
        with pytest.raises(UserError, match="reads pictures by cross-attention"):
            record.rows[0].columns(IMAGE)
        assert share.isna().all()
    else:
        assert share.notna().all()
        assert share.max() > 0  # a layer with a sliding window may see none of it (Gemma 3)


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_maps_lie_over_the_picture(name: str) -> None:
    vlm, record = recorded(name)
    if vlm.module_map.cross_attended or vlm.module_map.geometry == "queries":
        assert not any(row.grids for row in record.rows)
        return
    for found in record.maps:
        row, weights = record.rows[found.row], weights_of(found)
        maps = [patch_map(weights, grid) for grid in row.grids]
        assert maps
        assert all(heat.ndim == 2 and (heat >= 0).all() for heat in maps)
        mapped = sum(float(heat.sum()) for heat in maps)
        # A newline column (LLaVA-NeXT) has mass and no place.
        assert 0 < mapped <= float(weights[row.columns(IMAGE)].sum()) + 1e-6


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_a_saved_model_answers_as_before(name: str, tmp_path: Path) -> None:
    vlm, _ = recorded(name)
    vlm.model.save_pretrained(tmp_path)
    save_processor(vlm.processor, tmp_path)
    attention = vlm.model.config.get_text_config()._attn_implementation  # sdpa is the default, and not for all
    try:
        again = load(tmp_path, device="cpu", chat_template=vlm.processor.chat_template, attn_implementation=attention)
    except UserError as error:
        if "torchvision" not in str(error).lower():
            raise
        again = VLM(type(vlm.model).from_pretrained(tmp_path), vlm.processor, name=name)
    torch.testing.assert_close(again.score(PROMPTS), vlm.score(PROMPTS), atol=1e-6, rtol=0)


def save_processor(processor: Any, folder: Path) -> None:
    """All of it, or the parts that there are of one which was built without its video part."""
    if "video_processor" not in type(processor).get_attributes():
        processor.save_pretrained(folder)
        return
    processor.tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"processor_class": type(processor).__name__}))


def test_the_table_has_every_family_and_every_other_model_a_reason() -> None:
    table = json.loads(CONTRACT.read_text())
    assert set(table["families"]) == {*FAMILIES, *READ}
    for name, entry in table["families"].items():
        assert {*entry["works"].split(), *entry["refused"]} == {*TOOLS}, name
        assert all(entry["refused"].values()), name
    assert written(table["families"]).count("\n") <= 400
    assert json.loads(written(table["families"]))["families"] == table["families"]
    named = [name for names in WITHOUT_ROW.values() for name in names]
    assert len(named) == len(set(named))
    assert {*named, *READ, *FACTS} == set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    assert set(READ) >= NEEDS_TORCHVISION
    assert not set(READ) & set(FAMILIES)
