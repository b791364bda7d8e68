"""A layout that is read names what is really there, on one model of each family."""

from pathlib import Path

import pytest
from transformers import T5Config

from interp.errors import UserError
from interp.families import FACTS
from interp.module_map import ModuleMap, module_map_of
from tests.families import FAMILIES, every_family
from tests.read_families import READ
from tests.snapshots import check_entry, entries

# What is read must be this, module by module: paths that were looked up by hand in transformers 5.23.
PARTS = ("language_model", "layers", "final_norm", "lm_head", "vision_tower", "projector")
FILE = Path(__file__).with_name("snapshots") / "module_map.txt"
LOOKED_UP = dict(entries(FILE))
NORMED_AFTER = ("gemma2", "gemma3_text")


@pytest.fixture(params=every_family())
def pieces(request):
    return FAMILIES[request.param]()


def paths(module_map: ModuleMap) -> str:
    return "\n".join(f"{part}: {module_map.path(part)}" for part in PARTS)


@pytest.mark.long
def test_every_fact_has_a_model_here():
    assert {build().model.config.model_type for build in FAMILIES.values()} == set(FACTS) - set(READ) == set(LOOKED_UP)


@pytest.mark.contract
def test_what_is_read_is_what_was_looked_up(pieces):
    model = pieces.model
    module_map = module_map_of(model)
    layers = module_map.module(model, "layers")
    own = {0, 2} if module_map.model_type == "mllama" else {0, 1}
    assert {i: layers[i].self_attn for i in own} == module_map.attentions(model)
    assert {i: layers[i].self_attn.o_proj for i in own} == module_map.head_sums(model)
    normed = model.config.get_text_config().model_type in NORMED_AFTER
    adds = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
    names = adds if normed else {"attention": "self_attn", "mlp": "mlp"}
    for kind, name in names.items():
        assert {i: getattr(layers[i], name) for i in own} == module_map.sublayers(model, kind)
    assert module_map.heads(0) == model.config.get_text_config().num_attention_heads
    assert not module_map.unread
    check_entry(FILE, (module_map.model_type, LOOKED_UP[module_map.model_type]), paths(module_map))


def test_a_config_alone_says_the_same(pieces):
    found = module_map_of(pieces.model.config)
    if pieces.model.config.model_type == "idefics":  # it does not run without a picture, which needs weights
        assert paths(found) == LOOKED_UP["idefics"]
    else:
        assert found == module_map_of(pieces.model)


def test_the_projector_gives_what_stands_at_the_image_tokens(pieces):
    module_map = module_map_of(pieces.model)
    # IDEFICS' cross-attention itself brings the tower's width to the text's.
    config = pieces.model.config
    width = (config.vision_config if module_map.model_type == "idefics" else config.get_text_config()).hidden_size
    projector = module_map.module(pieces.model, "projector")
    assert any(p.shape[0] == width or p.shape[-1] == width for p in projector.parameters() if p.ndim > 1)


def test_a_picture_read_by_cross_attention_has_no_tokens():
    for name in ("idefics", "mllama"):
        model = FAMILIES[name]().model
        module_map = module_map_of(model)
        assert module_map.cross_attended
        with pytest.raises(UserError, match=f"no image tokens in the sequence of {name}: it reads pictures by cross-"):
            module_map.image_token_id(model.config)
    assert not module_map_of(FAMILIES["instructblip"]().model).cross_attended


def test_a_part_that_was_not_found_and_layers_that_cannot_be_taken_apart():
    module_map = ModuleMap("odd", layers="model.language_model.layers", unread="a layer keeps several residual streams")
    model = FAMILIES["llava"]().model
    with pytest.raises(UserError, match="no final norm known of 'odd': a layer keeps several residual streams"):
        module_map.module(model, "final_norm")
    with pytest.raises(UserError, match="cannot be taken apart: a layer keeps several"):
        module_map.attentions(model)


def test_an_encoder_decoder_language_model_is_refused():
    config = FAMILIES["instructblip"]().model.config
    config.text_config = T5Config()
    with pytest.raises(UserError, match="encoder-decoder"):
        module_map_of(config)
