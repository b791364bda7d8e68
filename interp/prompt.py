"""A prompt as text, through the processor's own chat template, and its image as RGB. Knows nothing of the model."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2.exceptions import TemplateError
from PIL import Image

from interp.errors import UserError
from interp.families import Layout

if TYPE_CHECKING:
    from interp.vlm import Prompt


def render(processor: Any, prompt: "Prompt", *, layout: Layout, name: str) -> str:
    """System text, image placeholder and words as the checkpoint's chat template arranges them, up to the answer.

    Raises:
        UserError: the processor has no chat template, the template refuses or drops the system prompt, or there are not
            as many image placeholders as images (the prompt's own words may contain one).
    """
    check_chat_template(processor, name)
    picture = [{"type": "image"}] if prompt.image is not None else []
    messages = [{"role": "user", "content": [*picture, {"type": "text", "text": prompt.text}]}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
    try:
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(
            f"the chat template of {name} refuses this prompt ({error}); many know no system role; leave the system "
            "prompt out, or put its words before the question"
        ) from error
    if prompt.system is not None and prompt.system.strip() not in text:
        raise UserError(
            f"the chat template of {name} drops the system prompt; an arm that sets one would change nothing; put its "
            "words before the question"
        )
    _check_placeholders(text, processor, images=len(picture), layout=layout, name=name)
    return text


def check_chat_template(processor: Any, name: str) -> None:
    """UserError where the processor has no chat template; guessing a prompt's wording would change what is measured."""
    if not getattr(processor, "chat_template", None):
        raise UserError(
            f"the processor of {name} has no chat template; prompts are rendered through one; set model.chat_template "
            "(in Python: processor.chat_template) to a Jinja template, as the checkpoint's model card words its prompts"
        )


def _check_placeholders(text: str, processor: Any, *, images: int, layout: Layout, name: str) -> None:
    token = getattr(processor, "image_token", None)
    if token is None:
        return
    found = text.count(str(token))
    if found == 0 and layout.geometry == "queries":
        return  # InstructBLIP's processor puts the image tokens in front by itself
    if found != images:
        raise UserError(
            f"{found} image placeholders {str(token)!r} for {images} images in a prompt of {name}; there must be as "
            "many; take the placeholder out of the prompt's words, or mend the chat template"
        )


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB, as every image processor wants it; transparency is dropped, as the processors drop it.

    16-bit greys are scaled: PIL would clip them, and turn every value above 255 white.
    """
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.float64)
        deep = image.mode != "I" or grey.max() > 255  # older versions of PIL open a 16-bit PNG as I
        image = Image.fromarray((grey / 257 if deep else grey).clip(0, 255).round().astype(np.uint8))
    return image.convert("RGB")
