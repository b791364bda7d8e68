"""The layouts name what is really there, on one model of each family."""

import dataclasses

import pytest
from transformers import LlamaConfig, T5Config

from interp.errors import UserError
from interp.layout import LAYOUTS, PARTS, layout_for
from tests.families import FAMILIES


@pytest.fixture(params=FAMILIES)
def pieces(request):
    return FAMILIES[request.param]()


def test_every_layout_has_a_model_here():
    assert {build().model.config.model_type for build in FAMILIES.values()} == set(LAYOUTS)


def test_paths_lead_to_the_language_model_although_the_vision_tower_is_deeper(pieces):
    layout = layout_for(pieces.model)
    text = pieces.model.config.get_text_config()
    layers = layout.module(pieces.model, "layers")
    assert len(layers) == text.num_hidden_layers == 2
    assert set(layout.attentions(pieces.model)) == {0, 1}
    assert layers[0] in layout.module(pieces.model, "language_model").modules()
    assert layers[0] not in list(layout.module(pieces.model, "vision_tower").modules())
    assert layout.module(pieces.model, "lm_head").weight is pieces.model.get_output_embeddings().weight
    assert layout.module(pieces.model, "final_norm").weight.shape == (text.hidden_size,)


def test_the_projector_gives_what_stands_at_the_image_tokens(pieces):
    layout = layout_for(pieces.model)
    width = pieces.model.config.get_text_config().hidden_size
    projector = layout.module(pieces.model, "projector")
    assert any(p.shape[0] == width or p.shape[-1] == width for p in projector.parameters() if p.ndim > 1)


def test_the_image_token_is_the_configs():
    model, processor = FAMILIES["gemma3"]()
    token = layout_for(model).image_token_id(model.config)
    assert token == processor.tokenizer.convert_tokens_to_ids("<image_soft_token>") != processor.image_token_id


def test_position_kind(pieces):
    rope = pieces.model.config.get_text_config().rope_parameters or {}
    assert (layout_for(pieces.model).position_kind == "mrope") == ("mrope_section" in rope)


def test_an_unknown_family_is_told_how_to_add_one():
    with pytest.raises(UserError, match=r"no layout for 'llama'; known: llava, .*; add one in interp/layout\.py"):
        layout_for(LlamaConfig())


def test_an_encoder_decoder_language_model_is_refused():
    config = FAMILIES["instructblip"]().model.config
    config.text_config = T5Config()
    with pytest.raises(UserError, match="encoder-decoder"):
        layout_for(config)


def test_an_unknown_part_and_a_path_that_is_not_there():
    model = FAMILIES["llava"]().model
    layout = layout_for(model)
    with pytest.raises(UserError, match="no part 'tower' in a layout; known: language_model"):
        layout.module(model, "tower")
    with pytest.raises(UserError, match=r"has no 'model\.visual'"):
        dataclasses.replace(layout, vision_tower="model.visual").module(model, "vision_tower")


def test_parts_are_fields():
    assert set(PARTS) <= {field.name for field in dataclasses.fields(LAYOUTS["llava"])}
