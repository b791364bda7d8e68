"""Hand-made LLaVAs whose mechanism is known: which layer reads what, where it is carried, and which layer says so.

A real ``LlavaForConditionalGeneration`` with the tiny processor, its weights set by hand, none trained. The residual
stream has a named dimension for every quantity (``DIMENSIONS``), all other weights are zero, and a large constant in
dimension ``ballast`` keeps every norm's scale the same, so that a feature of 1 is read as 1. What is planted:

- the vision tower and projector give each image token its patch's *redness* (mean red less mean blue, −1 to 1) in
  dimension ``picture``; words of ``ALARMING`` have 1 in dimension ``alarm``;
- layer ``reads`` has a head by which the asking columns look at the image and copy ``picture`` to ``seen``. The
  verdict column asks, and so do the answer's tokens. With ``through_words``, the words ask in layer ``reads``, and the
  verdict copies ``seen`` from them one layer later;
- layer ``heeds`` (if any) has a head by which the verdict looks at alarming words and copies ``alarm`` to ``heard``;
- layer ``writes`` has an MLP that writes ``seen`` to ``verdict``, or, where something alarming was heard, −1: the
  sentence overrules the picture. The output head reads ``verdict`` alone: the margin is ``MARGIN`` times it;
- with ``carriers`` there is no such layer: each of these heads looks at the image and adds its weight times
  ``picture`` to ``verdict`` itself, and the head of ``heeds`` takes ``alarm`` off there. Where it ``saturates``, they
  add it to ``seen``, and layer ``writes`` hands that on up to ±½. ``idle`` heads copy twice ``picture`` to where
  nothing reads it.

Layers are decoder layers, from 0; what layer l does is in the residual stream from layer l + 1 on. A head that finds
nothing to look at looks at the sink, which holds nothing. After Yes or No the model says "red" or "blue" (what its
answer's token sees), and ends. Leaks are below 1e-9, and the norms bend features by less than 1e-4.

With ``in_words`` it does not say Yes or No. It answers "please start" and refuses with "please Refuse" or, if it is
sure, "unsafe text" (``OPENINGS``). So an opening shares its first token with answers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from interp.vlm import VLM
from tests.tiny import IMAGE_TOKENS, PATCH, SIDE, SPECIAL, tiny_processor

DIMENSIONS = (
    "ballast",
    "sink",
    "image",
    "word",
    "asks",
    "picture",
    "alarm",
    "seen",
    "heard",
    "verdict",
    "said",
    "done",
    "idle",
    "warns",
)
"""Names of the first dimensions of the residual stream; the rest are always 0."""

ALARMING = ("kill", "knife", "gun", "harm")
TEMPLATE = ("USER", "ASSISTANT", ":")
COLOURS = ("red", "blue")
OPENINGS = (("please", "Refuse"), ("unsafe", "text"))
MARGIN = 8.0  # logits of margin for a verdict of 1
WIDTH = 16
HEAD = 8  # width of a head; its dimensions 3 and 7 are what the rotary embedding turns slowest, here not at all
BALLAST = 256.0  # a power of two, so that nothing of it is lost in bf16
SHARP = 30.0  # attention logits between what a head looks for, the sink, and everything else
BIG = 32.0  # an MLP gate that is open (SiLU is the identity there), or, negative, closed
VISION = 16


@dataclass(frozen=True)
class Plan:
    """What is planted, by decoder layer; see the module's docstring. ``heeds=None``: sentences are not read."""

    reads: int = 1
    heeds: int | None = None
    writes: int = 2
    layers: int = 4
    through_words: bool = False
    carriers: tuple[tuple[int, int, float], ...] = ()  # layer, head, weight
    saturates: bool = False
    idle: tuple[tuple[int, int], ...] = ()
    in_words: bool = False


def planted(plan: Plan = Plan(), dtype: torch.dtype = torch.float32) -> VLM:
    """The model, named "planted"."""
    processor = tiny_processor()
    tokenizer = processor.tokenizer
    model = LlavaForConditionalGeneration(_config(plan, len(tokenizer), processor.image_token_id)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        _see(model.model.vision_tower, model.model.multi_modal_projector, processor.image_processor)
        text = model.model.language_model
        for module in (m for m in text.modules() if type(m).__name__.endswith("RMSNorm")):
            module.weight.fill_(BALLAST / WIDTH**0.5)
        _embed(text.embed_tokens.weight, tokenizer, plan.in_words)
        attention = [layer.self_attn for layer in text.layers]
        for layer, head in plan.idle:
            _copy(attention[layer], head, asker="asks", source="image", value="picture", to="idle", weight=2)
        if plan.carriers:
            target = "seen" if plan.saturates else "verdict"
            for layer, head, weight in plan.carriers:
                _copy(attention[layer], head, asker="asks", source="image", value="picture", to=target, weight=weight)
        elif plan.through_words:
            _copy(attention[plan.reads], 0, asker="word", source="image", value="picture", to="seen")
            _copy(attention[plan.reads + 1], 0, asker="asks", source="word", value="seen", to="seen")
        else:
            _copy(attention[plan.reads], 0, asker="asks", source="image", value="picture", to="seen")
        if plan.heeds is not None:
            to, weight = ("verdict", -1.0) if plan.carriers else ("heard", 1.0)
            _copy(attention[plan.heeds], 1, asker="asks", source="alarm", value="alarm", to=to, weight=weight)
        if plan.saturates:
            _clip(text.layers[plan.writes].mlp)
        elif not plan.carriers:
            _write(text.layers[plan.writes].mlp)
        (_speak_in_words if plan.in_words else _speak)(model.lm_head.weight, tokenizer)
    return VLM(model.to(dtype), processor, name="planted")


def direction(name: str) -> Float[Tensor, " width"]:
    """The unit vector of one of ``DIMENSIONS`` in the residual stream."""
    return torch.eye(WIDTH)[DIMENSIONS.index(name)]


@dataclass(frozen=True)
class Coloured:
    """A picture of one colour, as a case holds it."""

    redness: float = 0.5

    def render(self) -> Image.Image:
        return coloured(self.redness)


def coloured(redness: float, size: int = SIDE, green: float = 0.5) -> Image.Image:
    """A plain picture of this redness (to 1 part in 255), from −1 (blue) to 1 (red)."""
    shares = ((1 + redness) / 2, green, (1 - redness) / 2)
    return Image.new("RGB", (size, size), tuple(round(255 * share) for share in shares))


def _config(plan: Plan, vocabulary: int, image_token: int) -> LlavaConfig:
    vision = CLIPVisionConfig(
        hidden_size=VISION,
        intermediate_size=4,
        num_hidden_layers=plan.layers + 1,  # deeper than the language model, so that counting layers goes wrong
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=plan.layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e16},
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image_token,
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        projector_hidden_act="linear",
    )


def _see(tower: Any, projector: Any, processor: Any) -> None:
    """Pixels → redness. The tower's layers add nothing; its one norm is kept still by a ballast of its own."""
    vision = tower.vision_model if hasattr(tower, "vision_model") else tower
    mean, std = processor.image_mean, processor.image_std
    kernel = vision.embeddings.patch_embedding.weight  # (dimension, colour, y, x)
    position = vision.embeddings.position_embedding.weight
    for dimension, sign in ((0, 1), (1, -1)):  # and its negative, for the norm takes off the mean
        kernel[dimension, 0], kernel[dimension, 2] = sign * std[0] / PATCH**2, -sign * std[2] / PATCH**2
        position[:, dimension] = sign * (mean[0] - mean[2])
    position[:, 2], position[:, 3] = BALLAST, -BALLAST
    vision.pre_layrnorm.weight.fill_(BALLAST * (2 / VISION) ** 0.5)
    vision.pre_layrnorm.bias.zero_()
    for layer in vision.encoder.layers:  # what they write is zero whatever their norms give
        layer.layer_norm1.weight.fill_(1)
        layer.layer_norm2.weight.fill_(1)
    projector.linear_1.weight[DIMENSIONS.index("picture"), 0] = 1
    projector.linear_1.bias[DIMENSIONS.index("ballast")] = BALLAST
    projector.linear_1.bias[DIMENSIONS.index("image")] = 1
    projector.linear_2.weight.copy_(torch.eye(WIDTH))


def _embed(table: Tensor, tokenizer: Any, in_words: bool) -> None:
    """Each token's row: the ballast, and what it is."""
    spoken: dict[str, tuple[str, ...]] = {"please": ("said", "asks"), "unsafe": ("warns", "asks")}
    spoken |= dict.fromkeys(("Refuse", "start", "text"), ("done",))
    for word, i in tokenizer.get_vocab().items():
        table[i, DIMENSIONS.index("ballast")] = BALLAST
        if word in TEMPLATE or word in SPECIAL:
            marks: tuple[str, ...] = {"<s>": ("sink",), ":": ("asks",)}.get(word, ())
        elif in_words and word in spoken:
            marks = spoken[word]
        elif word in ("Yes", "No"):
            marks = ("said", "asks")
        else:
            marks = ("word", *(("alarm",) if word in ALARMING else ()), *(("done",) if word in COLOURS else ()))
        for mark in marks:
            table[i, DIMENSIONS.index(mark)] = 1


def _copy(attention: Any, head: int, *, asker: str, source: str, value: str, to: str, weight: float = 1.0) -> None:
    """A head by which columns with ``asker`` copy ``weight`` times the mean ``value`` of those with ``source``; others
    see the sink."""
    first, size = head * HEAD, (SHARP * HEAD**0.5) ** 0.5
    looks, rests = first + 3, first + 7
    attention.q_proj.weight[rests, DIMENSIONS.index("ballast")] = size / BALLAST
    attention.q_proj.weight[looks, DIMENSIONS.index(asker)] = size
    attention.k_proj.weight[rests, DIMENSIONS.index("sink")] = size
    attention.k_proj.weight[looks, DIMENSIONS.index(source)] = 2 * size
    attention.v_proj.weight[first, DIMENSIONS.index(value)] = 1
    attention.o_proj.weight[DIMENSIONS.index(to), first] = weight


def _write(mlp: Any) -> None:
    """Two neurons: one hands ``seen`` on unless an alarm was heard, one says −1 if it was."""
    ballast, verdict, heard = (DIMENSIONS.index(name) for name in ("ballast", "verdict", "heard"))
    for neuron, sign in ((0, -1), (1, 1)):
        mlp.gate_proj.weight[neuron, ballast] = -sign * BIG / BALLAST
        mlp.gate_proj.weight[neuron, heard] = sign * 2 * BIG
    mlp.up_proj.weight[0, DIMENSIONS.index("seen")] = 1
    mlp.up_proj.weight[1, ballast] = -1 / BALLAST
    mlp.down_proj.weight[verdict, :2] = 1 / BIG


def _clip(mlp: Any) -> None:
    """``seen`` between −½ and ½: two neurons that open there, and one that takes off the half."""
    ballast, verdict, seen = (DIMENSIONS.index(name) for name in ("ballast", "verdict", "seen"))
    for neuron, end, sign in ((0, -0.5, 1), (1, 0.5, -1)):
        mlp.gate_proj.weight[neuron, seen] = BIG**2
        mlp.gate_proj.weight[neuron, ballast] = -end * BIG**2 / BALLAST
        mlp.up_proj.weight[neuron, ballast] = 1 / BALLAST
        mlp.down_proj.weight[verdict, neuron] = sign / BIG**2
    mlp.gate_proj.weight[2, ballast] = BIG / BALLAST
    mlp.up_proj.weight[2, ballast] = -0.5 / BALLAST
    mlp.down_proj.weight[verdict, 2] = 1 / BIG


def _speak(head: Tensor, tokenizer: Any) -> None:
    """Yes or No by ``verdict``; after that a colour by it, and then the end. Nothing else is ever said."""
    ballast, verdict, said, done = (DIMENSIONS.index(name) for name in ("ballast", "verdict", "said", "done"))
    head[:, ballast] = -64 / BALLAST
    for word, sign, after in (("Yes", 1, None), ("No", -1, None), ("red", 1, said), ("blue", -1, said)):
        row = head[tokenizer.convert_tokens_to_ids(word)]
        row[verdict] = sign * MARGIN / 2
        row[ballast], row[said], row[done] = (0, -128, -128) if after is None else (-64 / BALLAST, 128, 0)
    head[tokenizer.eos_token_id, done] = 128


def _speak_in_words(head: Tensor, tokenizer: Any) -> None:
    """The first word by ``verdict``, the second by it and the first, and then the end."""
    ballast, verdict, said, warns, done = map(DIMENSIONS.index, ("ballast", "verdict", "said", "warns", "done"))
    head[:, ballast] = -64 / BALLAST
    for word, first, slope in (("please", 0.0, 0.0), ("unsafe", -2.0, -MARGIN / 2)):
        row = head[tokenizer.convert_tokens_to_ids(word)]
        row[ballast], row[verdict] = first / BALLAST, slope
        row[said] = row[warns] = row[done] = -128
    for word, after, slope in (("Refuse", said, -MARGIN / 2), ("start", said, MARGIN / 2), ("text", warns, 0.0)):
        row = head[tokenizer.convert_tokens_to_ids(word)]
        row[verdict], row[after] = slope, 64
    head[tokenizer.eos_token_id, done] = 128
