"""What a model does not say of itself, by family: how image tokens lie in the picture, cross-attention, caveats.

Everything else of a model is read from it (``interp.module_map``). ``FACTS`` is keyed by ``model_type``. A family that
is not in it works, but for maps over the picture if its processor does not say how image tokens lie.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from interp.errors import UserError

if TYPE_CHECKING:
    from PIL import Image
    from transformers import BatchFeature

Geometry = Literal["patches", "anyres", "thw", "tiles", "queries", "cross_attention", "unknown"]
"""How one image's tokens are arranged:

``patches``  one contiguous run, row-major over the picture;
``anyres``   one run: a base grid of the whole picture, then the unpadded high-resolution grid with a newline column;
``thw``      one run, row-major, with the grid from ``image_grid_thw`` divided by the merge size;
``tiles``    one run per tile (row-major tiles, then the whole picture), with delimiter tokens between the runs;
``queries``  one run of learned queries without a location in the picture;
``cross_attention``  not in the sequence: the picture's features are only the keys of cross-attention layers;
``unknown``  as the processor says in numbers, if it does (``interp.image_grid``).
"""

FACTS: Mapping[str, Mapping[str, Any]] = {
    "llava": {"geometry": "patches"},
    "llava_next": {
        "geometry": "anyres",
        "note": "newline columns lie inside the image run: they count as image mass and are left out of maps",
    },
    "qwen2_vl": {"geometry": "thw"},
    "qwen2_5_vl": {"geometry": "thw"},
    "qwen3_vl": {
        "geometry": "thw",
        "note": "vision features are added again in early layers (DeepStack): an ablated image position is refilled",
    },
    "instructblip": {
        "lower_case": True,
        "geometry": "queries",
        "projector": "language_projection",
        "note": "image tokens are Q-Former queries before BOS: they stand for no place in the picture",
    },
    "vipllava": {"geometry": "patches"},
    "idefics3": {"geometry": "tiles"},
    "smolvlm": {"geometry": "tiles"},
    "internvl": {"geometry": "tiles"},
    "paligemma": {
        "lower_case": True,
        "geometry": "patches",
        "note": "image first; the prompt attends to itself in both directions",
    },
    "gemma3": {"geometry": "patches", "note": "an image's tokens attend to each other in both directions"},
    "idefics": {
        "geometry": "cross_attention",
        "projector": "model.perceiver_resampler",
        "crossing_blocks": "model.gated_cross_attn_layers",
        "prompt": "pieces",
        "along": ("image_attention_mask",),
        "note": "pictures are read by gated cross-attention between the layers: tokens attend to text alone",
    },
    "mllama": {
        "geometry": "cross_attention",
        "crossing_layers": "cross_attention_layers",
        "along": ("cross_attention_mask",),
        "note": "pictures are read by cross-attention layers of their own, which have no self-attention",
    },
}
"""Fields of ``interp.module_map.ModuleMap`` that cannot be read from a model. ``crossing_layers`` is the text config's
attribute that lists which layers attend to the picture and have no self-attention; ``crossing_blocks`` the path of
blocks that do so between the layers. ``prompt`` is ``"pieces"`` if the processor does not accept rendered text
(``encode_pieces``). ``lower_case`` is whether the family was tuned to answer "yes" and "no". ``along`` are inputs with
one row per token that every decoding step needs. ``note`` is a caveat for readers of attention maps."""

PRESETS: Mapping[str, str] = {
    "idefics": "idefics_9b_instruct",
    "instructblip": "instructblip_vicuna_7b",
    "paligemma": "paligemma2_3b",
}
"""By ``model_type``, the option of ``model=`` that has a chat template where the published processors have none."""

PER_TOKEN = frozenset(name for facts in FACTS.values() for name in facts.get("along", ()))
"""Every input that some family needs by token and decoding step."""


def encode_pieces(
    processor: Any, texts: Sequence[str], images: "Sequence[Sequence[Image.Image]]", *, name: str = "the model"
) -> "BatchFeature":
    """IDEFICS inputs from rendered text: ``input_ids``, ``attention_mask``, ``pixel_values``, ``image_attention_mask``.

    Its processor takes each prompt as a list of texts and pictures. It downloads any piece that looks like a URL, which
    a question may contain. All texts have pictures (``images``), or none has. Tokens from a placeholder on see
    its picture, up to the next placeholder. Without pictures the pixels are 0 and masked, as the processor does for
    plain text. Rows are padded on the left, and with empty pictures.

    Raises:
        UserError: a text whose placeholders do not match its pictures in number.
    """
    import torch
    from transformers import BatchFeature

    begin = processor.tokenizer.bos_token
    begun_texts = [text if text.startswith(begin) else begin + text for text in texts]
    tokens = processor.tokenizer(begun_texts, add_special_tokens=False, padding=True, return_tensors="pt")
    ids = tokens["input_ids"]
    places = ids == processor.image_token_id
    for row, pictures in zip(places, images, strict=True):
        if (count := int(row.sum())) != len(pictures):
            raise UserError(
                f"{count} image placeholders for {len(pictures)} images in a prompt of {name}; there must "
                "be as many; take the placeholder out of the prompt's words, or fix the chat template"
            )
    most = max(1, *map(len, images))
    pixels = torch.zeros(len(texts), most, *processor.default_image_dims)
    for row, pictures in enumerate(images):
        if pictures:
            made = torch.as_tensor(processor.image_processor(list(pictures), return_tensors="pt"))
            pixels[row, : len(pictures)] = made
    seen = (places.cumsum(dim=1)[..., None] == torch.arange(1, most + 1)).long()
    return BatchFeature(
        {
            "input_ids": ids,
            "attention_mask": tokens["attention_mask"],
            "pixel_values": pixels,
            "image_attention_mask": seen,
        }
    )
