"""A family that nobody has seen: odd names, a layer without attention. It works without a line of ours."""

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GraniteConfig,
    LlamaConfig,
    LlavaForConditionalGeneration,
)

from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.module_map import Block, module_map_of
from interp.scaling import AfterHead, after_head
from interp.selfcheck import prove
from interp.tools.knockout import knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.family_parts import build as family
from tests.odd_family import HEADS, WIDTH, OddConfig, OddModel
from tests.read_families import build
from tests.tiny import Pieces, picture, tiny_config, tiny_processor


def odd() -> Pieces:
    """The small model, its family registered with transformers as a package of its own would."""
    AutoConfig.register("odd_vl", OddConfig, exist_ok=True)
    AutoModelForImageTextToText.register(OddConfig, OddModel, exist_ok=True)
    processor = tiny_processor()
    text = LlamaConfig(
        vocab_size=len(processor.tokenizer), hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=HEADS
    )
    config = OddConfig(text_config=text, image_token_id=processor.image_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.2)
    with torch.no_grad():
        model.mouth.weight[[0, 1, 2, processor.image_token_id]] = 0
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 3, 0
    return Pieces(model, processor)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM(*odd(), name="odd")


PROMPTS = (Prompt("Is this safe ?", picture(0), key="a"), Prompt("Is this a knife in the image ?", picture(1), key="b"))


def test_its_layout_is_read(vlm: VLM) -> None:
    module_map = module_map_of(vlm.model)
    assert (module_map.language_model, module_map.layers, module_map.lm_head) == ("decoder", "decoder.stages", "mouth")
    assert module_map.final_norm == "decoder.ends"
    looking = Block("looks", "looks.gathers", "looks", "thinks", heads=HEADS)
    assert module_map.blocks == {0: looking, 1: Block(mlp="thinks", mixer="mixes"), 2: looking}


def test_every_check_passes_but_for_its_halved_sublayers(vlm: VLM) -> None:
    """The halved logits are fitted; what sublayers are multiplied by is read from the configuration alone."""
    result = prove(vlm, PROMPTS)
    states = {name: check.state for name, check in result.checks.items()}
    assert states == dict.fromkeys(result.checks, "passed") | {"additive": "failed"}, result
    assert [tool for tool, why in result.tools.items() if why] == ["sublayers", "direct_attribution"]
    assert "layers [1] have no attention" in result.properties["hybrid"]
    assert after_head(vlm.model, vlm.module_map) == AfterHead(0.5)


def test_lens_and_vcd_are_right(vlm: VLM) -> None:
    lens = logit_lens(vlm, list(PROMPTS), layers=[3]).margins[0, 0]
    torch.testing.assert_close(lens, vlm.score(PROMPTS), atol=1e-4, rtol=0)
    references = []
    for prompt in PROMPTS:
        clean = vlm.encode([prompt])
        noised = VCD().noised(vlm, [prompt], clean)
        with torch.no_grad():
            one, other = (vlm.model(**inputs).logits[:, -1] for inputs in (clean, noised))
        references.append(vlm.margin(2 * one - other))
    for branch in ("sequential", "paired"):
        found = VCD(branch=branch).generate(vlm, PROMPTS, max_new_tokens=2).margins
        torch.testing.assert_close(found, torch.cat(references), atol=1e-4, rtol=0)


def test_a_knockout_says_which_layers_no_cut_reaches(vlm: VLM) -> None:
    assert knockout_effect(vlm, list(PROMPTS), [("image", "verdict")]).uncut == (1,)


def test_a_flat_sublayer_is_patched_column_by_column(vlm: VLM) -> None:
    """Of an output of [tokens, width] the last column is a token's, not a number of all of them."""
    clean, other = [PROMPTS[0]], [replace(PROMPTS[0], image=picture(1))]
    found = patch(vlm, clean, other, what="mlp", places=("verdict",), layers=[2], least_gap=0.0)
    module, kept = vlm.module_map.sublayers(vlm.model, "mlp")[2], []
    keeping = module.register_forward_hook(lambda module, args, output: kept.append(output))
    vlm.score(other)
    keeping.remove()
    putting = module.register_forward_hook(lambda module, args, output: torch.cat([output[:-1], kept[0][-1:]]))
    moved = vlm.score(clean) - found.clean
    putting.remove()
    assert moved.abs() > 1e-3
    torch.testing.assert_close(found.moved[0, 0], moved, atol=1e-5, rtol=0)


def test_direct_attribution_adds_up_or_is_refused(vlm: VLM) -> None:
    """A layer without attention writes what is no head's."""
    with pytest.raises(UserError, match="direct attribution needs all of it"):
        direct_logit_attribution(vlm, list(PROMPTS))


def test_a_generate_that_runs_no_logits_processor_is_refused(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Janus' own: margins would be missing, and VCD would change nothing."""
    theirs = vlm.model.generate
    own = lambda *args, logits_processor=None, **options: theirs(*args, **options)  # noqa: E731
    monkeypatch.setattr(vlm.model, "generate", own)
    with pytest.raises(UserError, match="a generate of its own that runs no logits processor"):
        VCD().generate(vlm, PROMPTS, max_new_tokens=1)
    result = prove(vlm, PROMPTS, checks=("kernel", "generate", "pixels", "score"))
    assert "runs no logits processor" in result.tools["vcd"]
    assert not result.tools["score"]


def test_a_second_input_with_pixels_is_noised_too() -> None:
    """DeepSeek-VL's hybrid sees its picture twice."""
    vlm = VLM(*build("deepseek_vl_hybrid"), name="hybrid")
    encoded = vlm.encode(PROMPTS[:1])
    noised = VCD().noised(vlm, PROMPTS[:1], encoded)
    assert pixel_inputs(encoded) == ["high_res_pixel_values", "pixel_values"]
    assert not any(torch.equal(encoded[name], noised[name]) for name in pixel_inputs(encoded))


def test_what_sublayers_are_multiplied_by_is_read_from_the_configuration() -> None:
    """As Granite says it; here below a LLaVA."""
    processor = tiny_processor()
    config = tiny_config(len(processor.tokenizer), processor.image_token_id)
    config.text_config = GraniteConfig(**config.text_config.to_dict() | {"residual_multiplier": 0.3})
    granite = VLM(*family(LlavaForConditionalGeneration, config, processor, seed=0))
    assert prove(granite, PROMPTS, checks=("additive",)).checks["additive"].state == "passed"
    logits = granite.score(PROMPTS)
    torch.testing.assert_close(direct_logit_attribution(granite, list(PROMPTS)).total, logits, atol=1e-4, rtol=1e-4)
