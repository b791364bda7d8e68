"""Processors that stand in for published ones: pictures cut and resized as theirs, and a tokenizer of a few words.

For models without weights, whose answers mean nothing. torch and transformers are imported where one is made.
"""

from collections.abc import Callable, Sequence
from typing import Any

CHAT_WORDS = "Yes No yes no USER ASSISTANT user assistant system . , : ? !"
MARKS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def stand_in(config: Any, image: dict[str, Any], *, words: Sequence[str], longest: int) -> Any:
    """A processor for ``config`` whose tokenizer tells ``words`` apart, for prompts of up to ``longest`` tokens.

    ``image`` are settings of the image processor, where they are not the usual ones. Sets the ids of the marks in
    ``config``.
    """
    from interp.checkpoints.word_level import build_tokenizer

    tokenizer: Any = build_tokenizer([CHAT_WORDS, *words])
    tokenizer.model_max_length = longest
    processor = STAND_INS[config.model_type](config, image, tokenizer)
    text = config.text_config
    text.bos_token_id, text.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    text.pad_token_id = tokenizer.pad_token_id
    return processor


def _llava(config: Any, image: dict[str, Any], tokenizer: Any) -> Any:
    import transformers as hf

    from interp.checkpoints.word_level import CHAT_TEMPLATE

    vision = config.vision_config
    side = {"height": vision.image_size, "width": vision.image_size}
    given: dict[str, Any] = image or {"size": side, "crop_size": side}
    many = config.model_type == "llava_next"
    processor = (hf.LlavaNextProcessor if many else hf.LlavaProcessor)(
        image_processor=(hf.LlavaNextImageProcessorPil if many else hf.CLIPImageProcessorPil)(**given),
        tokenizer=tokenizer,
        patch_size=vision.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=1,  # CLIP's class token, which "default" drops again
        chat_template=CHAT_TEMPLATE,
    )
    config.image_token_index = config.image_token_id = processor.image_token_id
    return processor


def _qwen(config: Any, image: dict[str, Any], tokenizer: Any) -> Any:
    import transformers as hf

    kinds = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
    published = getattr(hf, f"{kinds[config.model_type]}Processor")

    def accept(self: Any, name: str, argument: Any) -> Any:
        if name == "video_processor":  # which it insists on, and which needs torchvision
            return None
        return published.check_argument_for_proper_class(self, name, argument)

    without = type("WithoutVideos", (published,), {"check_argument_for_proper_class": accept})
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.image_token, tokenizer.video_token = "<|image_pad|>", "<|video_pad|>"
    vision = config.vision_config
    given: dict[str, Any] = {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size} | image
    processor = without(
        image_processor=hf.Qwen2VLImageProcessorPil(**given),
        tokenizer=tokenizer,
        video_processor=None,
        chat_template=CHATML,
    )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config.image_token_id, config.video_token_id = ids["<|image_pad|>"], ids["<|video_pad|>"]
    config.vision_start_token_id, config.vision_end_token_id = ids["<|vision_start|>"], ids["<|vision_end|>"]
    return processor


STAND_INS: dict[str, Callable[[Any, dict[str, Any], Any], Any]] = {
    "llava": _llava,
    "llava_next": _llava,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
}
