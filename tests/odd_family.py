"""A family that nobody has seen: odd module names, a layer without attention, halved second halves, one of them flat.

It imports torch and transformers alone, so that it can also stand in a checkpoint's folder as code of its own.
"""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, LlamaConfig, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm, eager_attention_forward

WIDTH, HEADS, PATCH = 32, 4, 8


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
    """Two linear maps; a ``flat`` one gives [tokens, width], as mixtures of experts do."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, state: Tensor) -> Tensor:
        return self.narrow(self.wide(state.reshape(-1, WIDTH) if self.flat else state).relu())


class Stage(nn.Module):
    """Attention or, in its place, a map of each token alone; half of what the second sublayer says is added."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.before, self.between = LlamaRMSNorm(WIDTH), LlamaRMSNorm(WIDTH)
        self.looks = Looking(config, layer) if layer != 1 else None
        self.mixes = Thinking() if layer == 1 else None
        self.thinks = Thinking(flat=layer == 2)

    def forward(self, hidden_states: Tensor, mask: Any, cache: Any) -> Tensor:
        state = self.before(hidden_states)
        said = self.mixes(state) if self.looks is None else self.looks(state, mask, cache)
        hidden_states = hidden_states + said
        return hidden_states + 0.5 * self.thinks(self.between(hidden_states)).view_as(hidden_states)


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
