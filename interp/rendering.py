"""A prompt as text, through the processor's own chat template, and its image as RGB. Knows nothing of the model."""

from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError
from PIL import Image

from interp.errors import UserError
from interp.layout import Layout

if TYPE_CHECKING:
    from interp.vlm import Prompt


def render(processor: Any, prompt: "Prompt", *, layout: Layout, name: str = "this model") -> str:
    """System text, image placeholder and words as the checkpoint's chat template arranges them, up to the answer.

    Raises:
        UserError: the processor has no chat template, the template refuses or drops the system prompt, or the prompt's own
            words contain the image placeholder.
    """
    content: list[dict[str, str]] = [{"type": "image"}] if prompt.image is not None else []
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": prompt.text}]}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
    if not processor.chat_template:
        raise UserError(
            f"the processor of {name} has no chat template; a prompt is rendered through one; set model.chat_template (in "
            "Python: processor.chat_template) to the Jinja template of the checkpoint's model card"
        )
    try:
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(
            f"the chat template of {name} refuses this prompt ({error}); it may know no system role; leave the system "
            "prompt out or put its words before the question"
        ) from error
    _check(text, processor, prompt, layout, name)
    return text


def _check(text: str, processor: Any, prompt: "Prompt", layout: Layout, name: str) -> None:
    if prompt.system is not None and prompt.system.strip() not in text:
        raise UserError(
            f"the chat template of {name} drops the system prompt; an arm that sets one would change nothing; put its words "
            "before the question"
        )
    token = getattr(processor, "image_token", None)
    images = int(prompt.image is not None)
    if token is None or layout.geometry == "queries" and not text.count(str(token)):
        return  # InstructBLIP's processor puts the image tokens in front by itself
    if text.count(str(token)) != images:
        raise UserError(
            f"{text.count(str(token))} image placeholders {token!s} for {images} images in a prompt of {name}; they must be "
            "as many; take the placeholder out of the prompt's words, or mend the chat template"
        )


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB, as every image processor wants it."""
    return image.convert("RGB")
