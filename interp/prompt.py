"""A question to a model, and how it is rendered: text by the processor's chat template, pictures as RGB."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2.exceptions import TemplateError
from PIL import Image, ImageOps

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.layout import Layout

MARK = "\ue000"  # a private-use character, which occurs in no template, vocabulary or question
DATE = "26 Jul 2024"  # the one that Llama 3.2's own template falls back on


@dataclass(frozen=True)
class Prompt:
    """One question, with one picture or none.

    ``key`` identifies the case: all random draws for it depend only on ``key`` and a seed.
    ``request`` is the part of ``text`` that is asked about, without the question around it, and ``shows`` a sentence of
    what the picture shows; both "" where they are not known. No model is told of them unless a method does so.

    Raises:
        UserError: ``image`` is no picture of PIL, such as a list of two.
    """

    text: str
    image: Image.Image | None = None
    system: str | None = None
    key: str = ""
    request: str = ""
    shows: str = ""

    def __post_init__(self) -> None:
        if self.image is not None and not isinstance(self.image, Image.Image):
            kind = type(self.image).__name__
            raise UserError(
                f"Prompt: image is a {kind}; a prompt takes one picture as a PIL.Image.Image, or None; to ask about "
                "several, paste them into one picture, or ask about each in a prompt of its own"
            )


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list, where one alone may be given."""
    return [prompts] if isinstance(prompts, Prompt) else list(prompts)


def inverted(prompt: Prompt) -> Prompt:
    """The prompt with the negative of its picture, which has the same size and so as many tokens."""
    return prompt if prompt.image is None else replace(prompt, image=ImageOps.invert(prompt.image.convert("RGB")))


def render(processor: Any, prompt: Prompt, *, layout: "Layout", name: str) -> str:
    """Renders the prompt with ``processor``'s chat template, up to where the answer begins. The image is a placeholder.

    A date that the template asks for is ``DATE``. A template that wants the system text as a string gets one.

    Raises:
        UserError: the processor has no chat template, the template rejects or drops the system prompt, or placeholders
            and images differ in number (the question itself may contain a placeholder).
    """
    check_chat_template(processor, name)
    picture = [{"type": "image"}] if prompt.image is not None else []
    messages = [{"role": "user", "content": [*picture, {"type": "text", "text": prompt.text}]}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
    # A date that a template would add (Llama 3.2 does, to words without a picture) would change prompts day by day.
    dated = {"date_string": DATE} if "date_string" in str(processor.chat_template) else {}
    try:
        text = processor.apply_chat_template(messages, add_generation_prompt=True, **dated)
        if prompt.system is not None and str(messages[0]["content"]) in text:  # it wants a string, and printed a list
            messages[0]["content"] = prompt.system
            text = processor.apply_chat_template(messages, add_generation_prompt=True, **dated)
    except TemplateError as error:
        raise UserError(
            f"the chat template of {name} refuses this prompt ({error}); many have no system role; leave the system "
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
    """Checks that there is a chat template. A guessed prompt format would change what is measured.

    Raises:
        UserError: the processor has none.
    """
    if not getattr(processor, "chat_template", None):
        raise UserError(
            f"the processor of {name} has no chat template; prompts are rendered through one; set model.chat_template "
            "(in Python: processor.chat_template) to a Jinja template, as in the checkpoint's model card"
        )


def _check_placeholders(text: str, processor: Any, *, images: int, layout: "Layout", name: str) -> None:
    token = getattr(processor, "image_placeholder_token", None) or getattr(processor, "image_token", None)
    if token is None:
        return
    found = text.count(str(token))
    if found == 0 and layout.geometry == "queries":
        return  # InstructBLIP's processor prepends the image tokens itself
    if found != images:
        raise UserError(
            f"{found} image placeholders {str(token)!r} for {images} images in a prompt of {name}; there must be as "
            "many; take the placeholder out of the prompt's words, or fix the chat template"
        )


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB, which every image processor accepts. Transparency is dropped, as processors do.

    16-bit greyscale is scaled down: PIL would clip it, turning every value above 255 white.
    """
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.float64)
        deep = image.mode != "I" or grey.max() > 255  # older versions of PIL open a 16-bit PNG as I
        image = Image.fromarray((grey / 257 if deep else grey).clip(0, 255).round().astype(np.uint8))
    return image.convert("RGB")
