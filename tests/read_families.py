"""Small random models of families that no table of ours names, each with its real processor class.

A model is its family's default configuration with small numbers (``TEXT``, ``VISION``), a tokenizer has the special
tokens that the processor's source asks for, and a chat has one line a turn. ``READ`` is one recipe a family: only what
these rules do not give. Recipes in ``NEEDS_TORCHVISION`` build where torchvision can be imported; ``tests/fakes``
has the few functions of it that image processors call, for machines without (``PYTHONPATH=tests/fakes``).
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import transformers as hf
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from tests.family_parts import bpe, image_part_alone
from tests.family_parts import build as build_family
from tests.tiny import Pieces

Values = Mapping[str, Any]
CHAT = (
    "{% for m in messages %}[{{ m['role'] }}] {% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
SQUARE = {"height": 32, "width": 32}
AREA = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
HALF_MROPE = MROPE | {"partial_rotary_factor": 0.5}
HYBRID = {"num_hidden_layers": 4, "head_dim": 16, "rope_parameters": HALF_MROPE}
OWN = object()  # the family's own default stays

TEXT: dict[str, Any] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(
        ("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts", "first_k_dense_replace"), 1
    ),
    **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("num_attention_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 2),
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "sliding_window": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_kv_shared_layers": 0,
    "tie_word_embeddings": False,
}
VISION: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "projection_dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "depth"), 3),
    **dict.fromkeys(("num_heads", "num_attention_heads"), 2),
    **dict.fromkeys(("out_hidden_size", "image_size"), 32),
    "num_position_embeddings": 16,
    "patch_size": 8,
    "head_dim": 8,
    "initializer_range": 0.3,
    "vision_use_head": False,
}


@dataclass(frozen=True)
class Recipe:
    """What a family's small model needs beyond the rules.

    ``image`` are settings of the image processor, ``processor`` of the processor, ``named`` tokens that the tokenizer
    has as attributes, ``marks`` further special tokens, ``ids`` config attributes that are a token's id, ``around``
    what stands around the placeholder in a chat, ``placeholder`` the placeholder itself if not ``image_token``.
    ``parts`` are sub-configs that are made by hand: model type and settings by name.
    """

    image: Values = field(default_factory=dict)
    processor: Values = field(default_factory=dict)
    named: Values = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    ids: Values = field(default_factory=dict)
    text: Values = field(default_factory=dict)
    vision: Values = field(default_factory=dict)
    top: Values = field(default_factory=dict)
    parts: Values = field(default_factory=dict)
    around: str = "%s"
    placeholder: str = ""
    video: Any = None
    processor_class: str = ""
    image_class: str = ""


def _qwen(**more: Any) -> Recipe:
    """Qwen's tokens and patches."""
    given: dict[str, Any] = {
        "image": {"patch_size": 8, "size": AREA},
        "named": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        "marks": ("<|vision_start|>", "<|vision_end|>"),
        "around": "<|vision_start|>%s<|vision_end|>",
        "processor_class": "Qwen3VLProcessor",
        "ids": {
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        },
        "vision": {"spatial_merge_size": 2},
    }
    for name, value in more.items():
        given[name] = {**given[name], **value} if isinstance(value, Mapping) and name in given else value
    return Recipe(**given)


def _glm(rope: Values = MROPE, **more: Any) -> Recipe:
    """GLM's tokens."""
    marks = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    ids = {f"{what}_{end}_token_id": f"<|{word}_of_{what}|>" for what in ("image", "video")
           for end, word in (("start", "begin"), ("end", "end"))}  # fmt: skip
    return Recipe(
        image={"patch_size": 8, "size": AREA},
        named={"image_token": "<|image|>", "video_token": "<|video|>"},
        marks=marks,
        ids={"video_token_id": "<|video|>", **ids},
        around="<|begin_of_image|>%s<|end_of_image|>",
        text={"rope_parameters": rope},
        vision={"spatial_merge_size": 2},
        **more,
    )


PINPOINTS = [[32, 32], [32, 64], [64, 32], [64, 64]]
GEMMA4 = {
    name: VISION[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "patch_size")
}
GEMMA4 |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pooling_kernel_size": 2, "position_embedding_size": 64}
PERCEIVER = {"hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2}
PERCEIVER |= {"resampler_head_dim": 8, "num_key_value_heads": 1}
READ: dict[str, Recipe] = {
    "llava_onevision": Recipe(
        image={"size": SQUARE, "image_grid_pinpoints": PINPOINTS},
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        top={"image_grid_pinpoints": PINPOINTS},
        ids={"video_token_id": "<video>"},
    ),
    "mistral3": Recipe(
        image={"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}},
        processor={"patch_size": 8, "spatial_merge_size": 2},
        vision={"head_dim": 8, "image_size": 64},
    ),
    "vipllava": Recipe(
        image={"size": SQUARE, "crop_size": SQUARE},
        processor={"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        top={"vision_feature_layers": [-1, -2]},
    ),
    "qwen3_vl_moe": _qwen(
        vision={"deepstack_visual_indexes": [1]},
        text={"rope_parameters": MROPE},
        image_class="Qwen2VLImageProcessorPil",
    ),
    "qwen3_5": _qwen(text=HYBRID),
    "qwen3_5_moe": _qwen(text=HYBRID),
    "glm4v": _glm(),
    "glm46v": _glm(),
    "glm4v_moe": _glm(image_class="Glm4vImageProcessorPil", rope=MROPE | {"partial_rotary_factor": 1.0}),
    "gemma4": Recipe(
        image={"patch_size": 8, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        processor={"image_seq_length": 16},
        named={"image_token": "<|image|>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
        text={"num_hidden_layers": 6, "per_layer_config": OWN, "global_head_dim": OWN},
        ids={"boi_token_id": "<boi>", "eoi_token_id": "<eoi>"},
        parts={"vision_config": ("gemma4_vision", GEMMA4)},
    ),
    "aya_vision": Recipe(
        image={"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        processor={"patch_size": 8, "img_size": 32, "downsample_factor": 2},
        text={"num_hidden_layers": 4},
        top={"downsample_factor": 2},
        placeholder="<image>",
        marks=(
            *(f"TILE_{i}" for i in range(5)),
            *("TILE_GLOBAL", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"),
        ),
    ),
    "idefics2": Recipe(
        image={"size": {"shortest_edge": 24, "longest_edge": 32}},
        processor={"image_seq_len": 4},
        named={"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>"},
        marks=("<end_of_utterance>",),
        parts={"perceiver_config": ("idefics2_perceiver", PERCEIVER)},
    ),
    "deepseek_vl": Recipe(
        image={"size": SQUARE}, processor={"num_image_tokens": 16}, named={"image_token": "<image_placeholder>"}
    ),
    "ovis2": Recipe(
        image={"size": SQUARE, "crop_to_patches": True, "max_patches": 4},
        processor={"image_seq_length": 4},
        marks=("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
        placeholder="<image>",
        vision={"hidden_stride": 2, "vocab_size": 64, "num_visual_indicator_tokens": 5, "backbone_config": OWN},
        ids={
            "visual_indicator_token_ids": ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
            "image_token_id": "<IMG_ATOM>",
        },
        top={"hidden_size": 32, "vocab_size": 600},
    ),
    "minicpmv4_6": Recipe(
        image={"scale_resolution": 32, "patch_size": 8, "max_slice_nums": 4},
        video=SimpleNamespace(slice_mode=False, downsample_mode="16x"),
        text=HYBRID,
        top={"insert_layer_id": 1, "image_size": 32},
    ),
    "aria": Recipe(
        image={"max_image_size": 490, "min_image_size": 336},
        processor={"size_conversion": {490: 4, 980: 4}},
        named={"image_token": "<|img|>"},
        vision={"image_size": 980, "patch_size": 70},
        top={"projector_patch_to_query_dict": {49: 4, 196: 4}, "vision_feature_layer": -1},
    ),
    "deepseek_vl_hybrid": Recipe(
        image={"size": SQUARE, "high_res_size": SQUARE},
        processor={"num_image_tokens": 16},
        named={"image_token": "<image_placeholder>"},
    ),
}
NEEDS_TORCHVISION = frozenset(("mistral3",))
"""Families whose image processor exists with torchvision alone."""


def build(name: str, seed: int = 0) -> Pieces:
    """The small model of a family of ``READ``, float32, its weights drawn from ``seed`` alone."""
    recipe = READ[name]
    processor = _processor(name, recipe)
    placeholder = recipe.placeholder or processor.image_token
    processor.chat_template = CHAT.replace("IMAGE", recipe.around % placeholder)
    token = getattr(processor, "image_token_id", None)
    ids = {"image_token_id": processor.tokenizer.convert_tokens_to_ids(placeholder) if token is None else token}
    ids |= {key: processor.tokenizer.convert_tokens_to_ids(value if isinstance(value, str) else list(value))
            for key, value in recipe.ids.items()}  # fmt: skip
    config = _config(name, recipe, len(processor.tokenizer), ids)
    return build_family(AutoModelForImageTextToText.from_config, config, processor, seed=seed)


def _config(name: str, recipe: Recipe, vocabulary: int, ids: Values) -> Any:
    base: Any = CONFIG_MAPPING[name]()
    text = base.get_text_config(decoder=True)
    rules = TEXT | {"vocab_size": vocabulary, "vocab_size_per_layer_input": vocabulary}
    parts: dict[str, Any] = {}
    for part in base.sub_configs:
        found = getattr(base, part, None)
        if part in recipe.parts:
            kind, values = recipe.parts[part]
            parts[part] = CONFIG_MAPPING[kind](**values)
        elif found is not None and (found is text or "text" in part or part == "language_config"):
            parts[part] = _small(found, rules, recipe.text)
        elif found is not None and "vision" in part:
            parts[part] = _small(found, VISION, recipe.vision)
    return type(base)(**{**parts, **recipe.top, **ids})


def _small(config: Any, rules: Values, own: Values) -> Any:
    known = config.to_dict()
    values = {name: value for name, value in rules.items() if name in known}
    rope = known.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        values["rope_parameters"] = rope | {"mrope_section": MROPE["mrope_section"]}
    values |= own
    return type(config)(**{name: value for name, value in values.items() if value is not OWN})


def _processor(name: str, recipe: Recipe) -> Any:
    kind = getattr(hf, recipe.processor_class or PROCESSOR_MAPPING_NAMES[name])
    taken = inspect.signature(kind.__init__).parameters
    given = dict(recipe.processor)
    names: Any = IMAGE_PROCESSOR_MAPPING_NAMES.get(name) or {}
    image = recipe.image_class or names.get("pil") or names.get("torchvision")
    with image_part_alone():
        parts = {
            "image_processor": getattr(hf, image)(**recipe.image),
            "tokenizer": _tokenizer(kind, recipe),
            "video_processor": recipe.video,
            "feature_extractor": None,
            "audio_processor": None,
        }
        return kind(**{part: value for part, value in parts.items() if part in taken}, **given)


def _tokenizer(kind: Any, recipe: Recipe) -> Any:
    """Special tokens are the literals in the processor's source and its tokenizer's attributes."""
    path = inspect.getsourcefile(kind)
    source = re.sub(r'r?"""(?:.|\n)*?"""', "", open(path, encoding="utf-8").read())  # noqa: SIM115
    literals = re.findall(r"[\"'](<[^\"'{}\n \\]{1,40}>|\[[A-Z_]+\])[\"']", source)
    literals = [token for token in literals if not token.startswith(("<row", "<0x"))]
    asked = set(re.findall(r"tokenizer\.(\w+?_token)\b", source))
    asked |= set(re.findall(r"tokenizer,\s*[\"'](\w+?_token)[\"']", source))
    asked -= {"pad_token", "eos_token", "bos_token", "unk_token", "sep_token", "cls_token"}
    named = dict(recipe.named) | {name: f"<|{name}|>" for name in sorted(asked - recipe.named.keys())}
    return bpe(*dict.fromkeys([*literals, *recipe.marks, *named.values()]), byte_level=True, **named)
