"""A family that nobody has seen: odd names, a layer without attention. It works without a line of ours."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationMixin,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm, eager_attention_forward

from interp.layout import layout_for
from interp.proof import prove
from interp.tools.knockout import knockout_effect
from interp.tools.lens import logit_lens
from interp.trace import Block
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.tiny import PATCH, picture, tiny_processor

WIDTH, HEADS = 32, 4


class OddConfig(PreTrainedConfig):
    """The only setting is the text's."""

    model_type = "odd_vl"
    sub_configs = {"text_config": LlamaConfig}  # noqa: RUF012

    def __init__(self, text_config: Any = None, image_token_id: int = 4, **kwargs: Any) -> None:
        self.text_config = LlamaConfig(**text_config) if isinstance(text_config, dict) else text_config or LlamaConfig()
        self.image_token_id = image_token_id
        super().__init__(**kwargs)


class Looking(nn.Module):
    """Attention, by transformers' interface."""

    is_causal = True
    num_key_value_groups = 1

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.scaling = config, layer, (WIDTH // HEADS) ** -0.5
        self.asks, self.has, self.says = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gathers = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor, mask: Any, cache: Any) -> Tensor:
        rows, columns, _ = hidden_states.shape
        query, key, value = (
            linear(hidden_states).view(rows, columns, HEADS, -1).transpose(1, 2)
            for linear in (self.asks, self.has, self.says)
        )
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, _ = attend(self, query, key, value, mask, scaling=self.scaling)
        return self.gathers(out.reshape(rows, columns, -1))


class Thinking(nn.Module):
    """Two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, state: Tensor) -> Tensor:
        return self.narrow(self.wide(state).relu())


class Stage(nn.Module):
    """Attention or, in its place, a map of each token alone; half of what the second sublayer says is added."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.before, self.between = LlamaRMSNorm(WIDTH), LlamaRMSNorm(WIDTH)
        self.looks = Looking(config, layer) if layer != 1 else None
        self.mixes = Thinking() if layer == 1 else None
        self.thinks = Thinking()

    def forward(self, hidden_states: Tensor, mask: Any, cache: Any) -> Tensor:
        state = self.before(hidden_states)
        said = self.mixes(state) if self.looks is None else self.looks(state, mask, cache)
        hidden_states = hidden_states + said
        return hidden_states + 0.5 * self.thinks(self.between(hidden_states))


class OddBase(PreTrainedModel):
    """What the family's modules have in common."""

    config_class = OddConfig
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ("Stage",)


class OddDecoder(OddBase):
    """The stack of stages."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, WIDTH)
        self.stages = nn.ModuleList(Stage(config, i) for i in range(config.num_hidden_layers))
        self.ends = LlamaRMSNorm(WIDTH)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.words

    def forward(self, inputs_embeds: Tensor, attention_mask: Any = None, past_key_values: Any = None) -> Any:
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        state = inputs_embeds
        for stage in self.stages:
            state = stage(state, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.ends(state), past_key_values=past_key_values)


class OddModel(OddBase, GenerationMixin):
    """Pictures in patches, words, and a head."""

    def __init__(self, config: OddConfig) -> None:
        super().__init__(config)
        self.eyes = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.decoder = OddDecoder._from_config(config.text_config)
        self.mouth = nn.Linear(WIDTH, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.decoder.words

    def get_output_embeddings(self) -> Any:
        return self.mouth

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        pixel_values: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        states = self.decoder.words(input_ids)
        if pixel_values is not None:
            seen = self.eyes(pixel_values).flatten(2).transpose(1, 2).reshape(-1, WIDTH)
            states = states.masked_scatter((input_ids == self.config.image_token_id)[..., None], seen)
        out = self.decoder(states, attention_mask=attention_mask, past_key_values=past_key_values)
        logits = 0.5 * self.mouth(out.last_hidden_state)  # of every column: it knows no logits_to_keep
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


@pytest.fixture(scope="module")
def vlm() -> VLM:
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
    return VLM(model, processor, name="odd")


PROMPTS = (Prompt("Is this safe ?", picture(0), key="a"), Prompt("Is this a knife in the image ?", picture(1), key="b"))


def test_its_layout_is_read(vlm: VLM) -> None:
    layout = layout_for(vlm.model)
    assert (layout.language_model, layout.layers, layout.lm_head) == ("decoder", "decoder.stages", "mouth")
    assert layout.final_norm == "decoder.ends"
    looking = Block("looks", "looks.gathers", "looks", "thinks", heads=HEADS)
    assert layout.blocks == {0: looking, 1: Block(mlp="thinks", mixer="mixes"), 2: looking}


def test_every_check_passes_and_its_peculiarities_are_said(vlm: VLM) -> None:
    proof = prove(vlm, PROMPTS)
    states = {name: check.state for name, check in proof.checks.items()}
    assert states == dict.fromkeys(proof.checks, "passed") | {"complete": "not shown"}, proof
    assert set(proof.tools.values()) == {""}
    assert "layers [1] have no attention" in proof.properties["hybrid"]
    assert "'mlp': 0.5" in proof.properties["factors"]
    assert "scale=0.5" in proof.properties["logits"]


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
