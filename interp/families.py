"""The structure of each model family: module paths, the image token, and how image tokens lie in the picture.

``LAYOUTS`` is keyed by ``model_type``. Modules are not found by counting layers or matching names, which could pick a
vision tower that is deeper than the decoder. Paths are those of transformers 5.23, relative to the
``*ForConditionalGeneration`` model; the tests build a model of each family and check them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from interp.errors import UserError

if TYPE_CHECKING:
    from PIL import Image
    from transformers import BatchFeature

Geometry = Literal["patches", "anyres", "thw", "tiles", "queries", "cross_attention"]
"""How one image's tokens are arranged:

``patches``  one contiguous run, row-major over the picture;
``anyres``   one run: a base grid of the whole picture, then the unpadded high-resolution grid with a newline column;
``thw``      one run, row-major, with the grid from ``image_grid_thw`` divided by the merge size;
``tiles``    one run per tile (row-major tiles, then the whole picture), with delimiter tokens between the runs;
``queries``  one run of learned queries without a location in the picture;
``cross_attention``  not in the sequence: the picture's features are only the keys of cross-attention layers.
"""

PARTS = ("language_model", "layers", "final_norm", "lm_head", "vision_tower", "projector")
NORMED_AFTER = {
    name: {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
    for name in ("gemma2", "gemma3_text")
}
"""Decoders (``model_type`` of the text config) with a norm behind each sublayer, before it is added to the stream."""


@dataclass(frozen=True)
class Layout:
    """The layout of one model family. The six paths are dotted names under the top-level model.

    ``attention`` and ``mlp`` are the two sublayers of a decoder layer, ``heads_out`` is the linear map in the attention
    that adds up its heads. ``text_config`` is the decoder's entry in the model's config, the only one whose attention
    implementation may be switched ("": the config itself).
    ``image_token`` is the config attribute with the id of the tokens that image features replace. ``crossing_layers``
    is the text config's attribute that lists which of ``layers`` attend to the picture and have no self-attention;
    ``crossing_blocks`` the path of blocks that do so between the layers.
    ``position_kind`` is ``"mrope"`` if a token's position is more than its column. ``prompt`` is ``"pieces"`` if the
    processor does not accept rendered text (``encode_pieces``). ``along`` are inputs with one row per token that every
    decoding step needs. ``note`` is a caveat for readers of attention maps.
    """

    model_type: str
    language_model: str
    layers: str
    final_norm: str
    lm_head: str
    vision_tower: str
    projector: str
    geometry: Geometry
    position_kind: Literal["1d", "mrope"] = "1d"
    attention: str = "self_attn"
    heads_out: str = "o_proj"
    mlp: str = "mlp"
    text_config: str = "text_config"
    image_token: str = "image_token_id"
    crossing_layers: str = ""
    crossing_blocks: str = ""
    prompt: Literal["text", "pieces"] = "text"
    along: tuple[str, ...] = ()
    note: str = ""

    @property
    def cross_attended(self) -> bool:
        """Whether the picture is read by cross-attention, so that the sequence has no image tokens."""
        return self.geometry == "cross_attention"

    def path(self, part: str) -> str:
        """The dotted path of ``part``.

        Raises:
            UserError: an unknown part.
        """
        if part not in PARTS:
            raise UserError(f"no part '{part}' in a layout; known: {', '.join(PARTS)}")
        return str(getattr(self, part))

    def module(self, model: Any, part: str) -> Any:
        """The module at ``part`` of ``model``.

        Raises:
            UserError: the model has no module at that path.
        """
        path = self.path(part)
        try:
            return model.get_submodule(path)
        except AttributeError as error:
            raise UserError(
                f"the {self.model_type} model has no '{path}' ({part}); "
                f"its layout does not fit this checkpoint or version; correct the entry in interp/families.py"
            ) from error

    def attentions(self, model: Any) -> dict[int, Any]:
        """Decoder layer → its self-attention module, without the layers that have only cross-attention."""
        crossing = self._crossing(model)
        layers = enumerate(self.module(model, "layers"))
        return {i: layer.get_submodule(self.attention) for i, layer in layers if i not in crossing}

    def sublayers(self, model: Any, kind: Literal["attention", "mlp"]) -> dict[int, Any]:
        """Decoder layer → the module whose output is what its ``kind`` adds to the residual stream.

        That is the sublayer itself or the norm behind it. Layers that have only cross-attention are left out.
        """
        after = NORMED_AFTER.get(getattr(model.config.get_text_config(), "model_type", ""), {})
        name = after.get(kind) or (self.attention if kind == "attention" else self.mlp)
        layers = self.module(model, "layers")
        return {i: layers[i].get_submodule(name) for i in self.attentions(model)}

    def head_sums(self, model: Any) -> dict[int, Any]:
        """Decoder layer → the linear map that takes the outputs of its heads, side by side, and adds them up."""
        return {i: module.get_submodule(self.heads_out) for i, module in self.attentions(model).items()}

    def crossings(self, model: Any) -> dict[int, Any]:
        """Decoder layer → the whole block that reads the picture by cross-attention there, or just before it."""
        if self.crossing_blocks:
            every = model.config.get_text_config().cross_layer_interval
            return {i * every: block for i, block in enumerate(model.get_submodule(self.crossing_blocks))}
        return {i: self.module(model, "layers")[i] for i in self._crossing(model)}

    def _crossing(self, model: Any) -> Sequence[int]:
        """The layers that have only cross-attention."""
        return getattr(model.config.get_text_config(), self.crossing_layers) if self.crossing_layers else ()

    def image_token_id(self, config: Any) -> int:
        """The id of image tokens in ``input_ids``, from the config: the processor's may be a begin marker.

        Raises:
            UserError: the family reads its pictures by cross-attention.
        """
        self.require_image_tokens()
        return int(getattr(config, self.image_token))

    def require_image_tokens(self, name: str = "") -> None:
        """Checks that the sequence has image tokens. Without them their share of attention is undefined, not 0.

        Raises:
            UserError: the family reads its pictures by cross-attention.
        """
        if self.cross_attended:
            raise UserError(
                f"no image tokens in the sequence of {name or self.model_type}: it reads pictures by cross-attention, "
                "so shares, maps and edges of image tokens do not apply; use occlude_image or an image swap,"
                " or choose another family"
            )

    def require_places(self, name: str = "") -> None:
        """Checks that image tokens have locations in the picture, as maps need.

        Raises:
            UserError: they are learned queries, or the sequence has none.
        """
        self.require_image_tokens(name)
        if self.geometry == "queries":
            raise UserError(
                f"no maps over the picture for {name or self.model_type}: its image tokens are learned queries that "
                "stand for no place; read their share of attention, or use occlude_image"
            )


_STANDARD: dict[str, Any] = {
    "language_model": "model.language_model",
    "layers": "model.language_model.layers",
    "final_norm": "model.language_model.norm",
    "lm_head": "lm_head",
    "vision_tower": "model.vision_tower",
    "projector": "model.multi_modal_projector",
}
_QWEN: dict[str, Any] = _STANDARD | {"vision_tower": "model.visual", "projector": "model.visual.merger"}
_IDEFICS: dict[str, Any] = {
    "language_model": "model.text_model",
    "layers": "model.text_model.layers",
    "final_norm": "model.text_model.norm",
    "lm_head": "lm_head",
    "vision_tower": "model.vision_model",
    "projector": "model.connector",
}

_ALL = (
    Layout("llava", **_STANDARD, geometry="patches"),
    Layout(
        "llava_next",
        **_STANDARD,
        geometry="anyres",
        note="newline columns lie inside the image run: they count as image mass and are left out of maps",
    ),
    Layout("qwen2_vl", **_QWEN, geometry="thw", position_kind="mrope"),
    Layout("qwen2_5_vl", **_QWEN, geometry="thw", position_kind="mrope"),
    Layout(
        "qwen3_vl",
        **_QWEN,
        geometry="thw",
        position_kind="mrope",
        note="vision features are added again in early layers (DeepStack): an ablated image position is refilled",
    ),
    Layout(
        "instructblip",
        language_model="language_model.model",
        layers="language_model.model.layers",
        final_norm="language_model.model.norm",
        lm_head="language_model.lm_head",
        vision_tower="vision_model",
        projector="language_projection",
        geometry="queries",
        note="image tokens are Q-Former queries before BOS: they stand for no place in the picture",
    ),
    Layout("idefics3", **_IDEFICS, geometry="tiles"),
    Layout("smolvlm", **_IDEFICS, geometry="tiles"),
    Layout("internvl", **_STANDARD, geometry="tiles"),
    Layout(
        "paligemma",
        **_STANDARD,
        geometry="patches",
        note="image first; the prompt attends to itself in both directions",
    ),
    Layout("gemma3", **_STANDARD, geometry="patches", note="an image's tokens attend to each other in both directions"),
    Layout(
        "idefics",
        language_model="model",
        layers="model.layers",
        final_norm="model.norm",
        lm_head="lm_head",
        vision_tower="model.vision_model",
        projector="model.perceiver_resampler",
        geometry="cross_attention",
        crossing_blocks="model.gated_cross_attn_layers",
        text_config="",  # the decoder's settings are the config's own
        prompt="pieces",
        along=("image_attention_mask",),
        note="pictures are read by gated cross-attention between the layers: tokens attend to text alone",
    ),
    Layout(
        "mllama",
        **_STANDARD | {"vision_tower": "model.vision_model"},
        geometry="cross_attention",
        crossing_layers="cross_attention_layers",
        along=("cross_attention_mask",),
        note="pictures are read by cross-attention layers of their own, which have no self-attention",
    ),
)

LAYOUTS: dict[str, Layout] = {layout.model_type: layout for layout in _ALL}


def layout_for(model_or_config: Any) -> Layout:
    """The layout of a model or config.

    Raises:
        UserError: an unsupported family, or an encoder-decoder language model.
    """
    config = getattr(model_or_config, "config", model_or_config)
    model_type = getattr(config, "model_type", None)
    if model_type not in LAYOUTS:
        raise UserError(f"no layout for '{model_type}'; known: {', '.join(LAYOUTS)}; add one in interp/families.py")
    if getattr(getattr(config, "text_config", None), "is_encoder_decoder", False):
        raise UserError(
            f"no layout for '{model_type}' with an encoder-decoder language model; only decoder-only ones are covered; "
            f"take a decoder-only checkpoint (for instructblip: the Vicuna ones)"
        )
    return LAYOUTS[model_type]


def encode_pieces(
    processor: Any, texts: Sequence[str], pictures: "Sequence[Image.Image]", *, name: str = "the model"
) -> "BatchFeature":
    """IDEFICS inputs from rendered text: ``input_ids``, ``attention_mask``, ``pixel_values``, ``image_attention_mask``.

    Its own processor takes each prompt as a list of texts and pictures, and downloads any piece that looks like a URL,
    which a question may contain. There is one picture per text, or none at all. Tokens from the placeholder on see the
    prompt's picture. Without pictures the pixels are 0 and masked, as the processor does for plain text. Rows are
    padded on the left.

    Raises:
        UserError: a text whose placeholders do not match its pictures in number.
    """
    import torch
    from transformers import BatchFeature

    begin = processor.tokenizer.bos_token
    whole = [text if text.startswith(begin) else begin + text for text in texts]
    tokens = processor.tokenizer(whole, add_special_tokens=False, padding=True, return_tensors="pt")
    ids = tokens["input_ids"]
    places = ids == processor.image_token_id
    wanted = 1 if pictures else 0
    wrong = (places.sum(dim=1) != wanted).nonzero().flatten().tolist()
    if wrong:
        raise UserError(
            f"{int(places[wrong[0]].sum())} image placeholders for {wanted} images in a prompt of {name}; there must "
            "be as many; take the placeholder out of the prompt's words, or fix the chat template"
        )
    if pictures:
        pixels = torch.as_tensor(processor.image_processor(list(pictures), return_tensors="pt"))
    else:
        pixels = torch.zeros(len(texts), *processor.default_image_dims)
    return BatchFeature(
        {
            "input_ids": ids,
            "attention_mask": tokens["attention_mask"],
            "pixel_values": pixels[:, None],
            "image_attention_mask": (places.cumsum(dim=1) > 0).long()[..., None],
        }
    )
