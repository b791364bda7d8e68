"""What every family must do and no other test asks of all of them; and the table of it is whole."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from interp.attention.record import Queries, Record, record_attention
from interp.attention.tables import image_share, patch_map, weights_of
from interp.errors import UserError
from interp.loading import load
from interp.segments import IMAGE
from interp.vlm import VLM, Prompt
from tests.contract.facts import facts
from tests.contract.table import CAPABILITIES, COMMITTED, FAILS, NAMED_ALONE
from tests.families import FAMILIES, every_family
from tests.read_families import READ
from tests.tiny import picture

PROMPTS = (Prompt("How do I kill it?", picture(0, (64, 40))), Prompt("Is this safe to eat?", picture(1, (40, 64))))
TEXTS = ("How do I kill it?", "Is it safe to eat the cake with a knife for dog?")


@cache
def recorded(name: str) -> tuple[VLM, Record]:
    vlm = VLM(*FAMILIES[name](), name=name)
    with record_attention(vlm, queries=Queries.VERDICT, maps=Queries.VERDICT) as record:
        vlm.generate(PROMPTS, max_new_tokens=1)
    return vlm, record


@pytest.mark.contract("load")
@pytest.mark.parametrize("name", every_family())
def test_a_layout_and_its_facts(name: str, record_property) -> None:
    pieces = FAMILIES[name]()
    record_property("facts", facts(name, pieces))
    assert VLM(*pieces).layout.model_type == pieces.model.config.model_type


@pytest.mark.contract("generate")
@pytest.mark.parametrize("name", every_family())
def test_text_alone_in_a_batch_of_mixed_length(name: str, record_property) -> None:
    vlm, _ = recorded(name)
    prompts = [Prompt(text) for text in TEXTS]
    try:
        together = vlm.generate(prompts, max_new_tokens=3)
    except UserError as error:
        if "cannot answer without an image" not in str(error):
            raise
        record_property("limit", str(error))
        return
    for row, prompt in enumerate(prompts):
        alone = vlm.generate([prompt], max_new_tokens=3)
        assert alone.token_ids[0] == together.token_ids[row]
        torch.testing.assert_close(alone.margins[0], together.margins[row], atol=1e-4, rtol=0)


@pytest.mark.contract("attention")
@pytest.mark.parametrize("name", every_family())
def test_the_share_of_the_image_is_there_or_missing_with_a_reason(name: str, record_property) -> None:
    vlm, record = recorded(name)
    share = image_share(record.masses)["share"]
    if vlm.layout.cross_attended:
        with pytest.raises(UserError) as refused:
            record.rows[0].columns(IMAGE)
        record_property("limit", f"attention to text alone: {refused.value}")
        assert share.isna().all()
    else:
        assert share.notna().all()
        assert share.max() > 0  # a layer with a sliding window may see none of it (Gemma 3)


@pytest.mark.contract("maps")
@pytest.mark.parametrize("name", every_family())
def test_maps_lie_over_the_picture(name: str, record_property) -> None:
    vlm, record = recorded(name)
    try:
        vlm.layout.require_places(name)
    except UserError as error:
        record_property("not_applicable", str(error))
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


@pytest.mark.contract("save_load")
@pytest.mark.parametrize("name", every_family())
def test_a_saved_model_answers_as_before(name: str, tmp_path: Path, record_property) -> None:
    vlm, _ = recorded(name)
    vlm.model.save_pretrained(tmp_path)
    save_processor(vlm.processor, tmp_path)
    attention = vlm.model.config.get_text_config()._attn_implementation  # sdpa is the default, and not for all
    try:
        again = load(tmp_path, device="cpu", chat_template=vlm.processor.chat_template, attn_implementation=attention)
    except UserError as error:
        if "torchvision" not in str(error).lower():
            raise
        said = str(error).replace(str(tmp_path), "a checkpoint").partition(": ")[0]  # then a line for this machine
        record_property("limit", f"weights alone: {said}")
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


def test_the_committed_table_is_whole() -> None:
    table = json.loads(COMMITTED.read_text())
    assert set(table["families"]) == {*FAMILIES, *READ}
    for family, entry in table["families"].items():
        asked = [name for name in CAPABILITIES if family in FAMILIES or name not in NAMED_ALONE]
        assert list(entry["capabilities"]) == asked, family
        assert entry["notes"]
        for name, cell in entry["capabilities"].items():
            assert cell["works"] or cell["reason"], (family, name)
            assert not (cell["reason"] or "").startswith(FAILS), (family, name)
            assert Path(cell["test"].partition("::")[0]).is_file(), cell["test"]
