"""The layouts name what is really there, on one model of each family."""

import dataclasses

import pytest
from torch.nn import ModuleList
from transformers import AutoConfig, LlamaConfig, T5Config
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from interp.errors import UserError
from interp.families import LAYOUTS, PARTS, layout_for
from tests.families import FAMILIES, every_family

MODEL_TYPES = {
    "llava": "llava-1.5-7b-hf, -13b-hf",
    "llava_next": "llava-v1.6-vicuna-7b-hf",
    "instructblip": "instructblip-vicuna-7b",
    "idefics": "idefics-9b-instruct",
    "qwen2_vl": "Qwen2-VL-7B-Instruct",
    "qwen2_5_vl": "Qwen2.5-VL-7B-Instruct, -3B-Instruct",
    "qwen3_vl": "Qwen3-VL-8B-Instruct",
    "internvl": "InternVL3-8B-hf",
    "idefics3": "Idefics3-8B-Llama3",
    "smolvlm": "SmolVLM2-256M-Video-Instruct, -500M-, -2.2B-Instruct",
    "paligemma": "paligemma2-3b-mix-224",
    "gemma3": "gemma-3-4b-it",
    "mllama": "Llama-3.2-11B-Vision-Instruct",
}


@pytest.fixture(params=every_family())
def pieces(request):
    return FAMILIES[request.param]()


def test_every_layout_has_a_model_here():
    assert {build().model.config.model_type for build in FAMILIES.values()} == set(LAYOUTS)


@pytest.mark.contract("load")
def test_paths_lead_to_the_language_model_although_the_vision_tower_is_deeper(pieces):
    layout = layout_for(pieces.model)
    text = pieces.model.config.get_text_config()
    layers = layout.module(pieces.model, "layers")
    assert len(layers) == text.num_hidden_layers
    assert set(layout.attentions(pieces.model)) == ({0, 2} if layout.model_type == "mllama" else {0, 1})
    assert layers[0] in layout.module(pieces.model, "language_model").modules()
    tower = list(layout.module(pieces.model, "vision_tower").modules())
    assert layers[0] not in tower
    assert max(len(part) for part in tower if isinstance(part, ModuleList)) > len(layers)
    assert layout.module(pieces.model, "lm_head").weight is pieces.model.get_output_embeddings().weight
    assert layout.module(pieces.model, "final_norm").weight.shape == (text.hidden_size,)


def test_the_projector_gives_what_stands_at_the_image_tokens(pieces):
    layout = layout_for(pieces.model)
    # IDEFICS' cross-attention itself brings the tower's width to the text's.
    config = pieces.model.config
    width = (config.vision_config if layout.model_type == "idefics" else config.get_text_config()).hidden_size
    projector = layout.module(pieces.model, "projector")
    assert any(p.shape[0] == width or p.shape[-1] == width for p in projector.parameters() if p.ndim > 1)


def test_the_image_token_is_the_configs():
    model, processor = FAMILIES["gemma3"]()
    token = layout_for(model).image_token_id(model.config)
    assert token == processor.tokenizer.convert_tokens_to_ids("<image_soft_token>") != processor.image_token_id


def test_a_picture_read_by_cross_attention_has_no_tokens():
    for name in ("idefics", "mllama"):
        layout = LAYOUTS[name]
        assert layout.cross_attended
        with pytest.raises(UserError, match=f"no image tokens in the sequence of {name}: it reads pictures by cross-"):
            layout.image_token_id(FAMILIES[name]().model.config)
    assert not LAYOUTS["instructblip"].cross_attended


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_published_models_are_of_a_family_here(name):
    """The model types that the issue's checkpoints have in this version of transformers."""
    assert name in LAYOUTS
    assert type(AutoConfig.for_model(name)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def test_position_kind(pieces):
    rope = pieces.model.config.get_text_config().rope_parameters or {}
    assert (layout_for(pieces.model).position_kind == "mrope") == ("mrope_section" in rope)


def test_an_unknown_family_is_told_how_to_add_one():
    with pytest.raises(UserError, match=r"no layout for 'llama'; known: llava, .*; add one in interp/families\.py"):
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
