"""A question to a model, and how it is rendered by the processor's chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError
from PIL import Image, ImageOps

from interp.errors import UserError
from interp.families import PRESETS
from interp.pictures import as_seen

if TYPE_CHECKING:
    from interp.layout import Layout

MARK = "\ue000"  # a private-use character, which occurs in no template, vocabulary or question
TODAY = datetime(2024, 7, 26)  # the date that Llama 3.2's own template falls back on
DATE = TODAY.strftime("%d %b %Y")
DIRECTIVES = [
    "%a",
    "%A",
    "%b",
    "%B",
    "%d",
    "%-d",
    "%e",
    "%m",
    "%-m",
    "%y",
    "%Y",
    "%j",
    "%H",
    "%I",
    "%M",
    "%S",
    "%p",
    "%%",
]


@dataclass(frozen=True)
class Prompt:
    """One question, with one picture or none. The picture is kept as a model sees it (``interp.pictures.as_seen``).

    ``key`` identifies the case: all random draws for it depend only on ``key`` and a seed.
    ``request`` is the part of ``text`` that is asked about, without the question around it, and ``shows`` a sentence of
    what the picture shows; both "" where they are not known. No model is told of them unless a method does so.
    ``begun`` are the tokens of an answer that has begun, such as a thought: whatever is asked then stands behind them.

    Raises:
        UserError: ``image`` is no picture of PIL, such as a list of two, or one that cannot be decoded.
    """

    text: str
    image: Image.Image | None = None
    system: str | None = None
    key: str = ""
    request: str = ""
    shows: str = ""
    begun: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.image is not None and not isinstance(self.image, Image.Image):
            kind = type(self.image).__name__
            raise UserError(
                f"Prompt: image is a {kind}; a prompt takes one picture as a PIL.Image.Image, or None; to ask about "
                "several, paste them into one picture, or ask about each in a prompt of its own"
            )
        if self.image is not None:
            object.__setattr__(self, "image", _seen(self.image))


def _seen(image: Image.Image) -> Image.Image:
    try:
        return as_seen(image)
    except Exception as error:  # decoders raise whatever bad bytes provoke
        raise UserError(
            f"Prompt: image cannot be decoded ({type(error).__name__}: {error}); a prompt takes a whole picture; "
            "replace its file"
        ) from error


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list, where one alone may be given."""
    return [prompts] if isinstance(prompts, Prompt) else list(prompts)


def inverted(prompt: Prompt) -> Prompt:
    """The prompt with the negative of its picture, which has the same size and so as many tokens."""
    return prompt if prompt.image is None else replace(prompt, image=ImageOps.invert(prompt.image))


def render(processor: Any, prompt: Prompt, *, layout: "Layout", name: str) -> str:
    """Renders the prompt with ``processor``'s chat template, up to where the answer begins. The image is a placeholder.

    Today is ``TODAY`` for a template that asks. A template that wants the system text as a string gets one.

    Raises:
        UserError: the processor has no chat template, the template rejects or drops the system prompt, or placeholders
            and images differ in number (the question itself may contain a placeholder).
    """
    check_chat_template(processor, name, model_type=layout.model_type)
    picture = [{"type": "image"}] if prompt.image is not None else []
    messages = [{"role": "user", "content": [*picture, {"type": "text", "text": prompt.text}]}]
    if prompt.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
    dated = _dated(processor.chat_template)
    try:
        text = processor.apply_chat_template(messages, add_generation_prompt=True, **dated)
        if prompt.system is not None and str(messages[0]["content"]) in text:  # it wants a string
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


def _dated(template: Any) -> dict[str, str]:
    """Return the arguments of ``apply_chat_template`` that tell a template of ``TODAY``.

    A date that a template adds (Llama 3.2, Granite) would change prompts day by day. transformers passes no function
    to a template, so the template gets ``strftime_now`` as a macro in its first line.
    """
    chosen = str(template.get("default", "") if isinstance(template, Mapping) else template)
    options = {"date_string": DATE} if "date_string" in chosen else {}
    if "strftime_now" in chosen:
        filled = "".join(f" | replace('{name}', '{TODAY.strftime(name)}')" for name in DIRECTIVES)
        macro = f"{{%- macro strftime_now(format) -%}}{{{{ format{filled} }}}}{{%- endmacro %}}\n"
        options["chat_template"] = macro + chosen
    return options


def check_chat_template(processor: Any, name: str, *, model_type: str, path: str = "") -> None:
    """Checks that there is a chat template. A guessed prompt format would change what is measured.

    Raises:
        UserError: the processor has none; names the option of ``model=`` that has one for the family.
    """
    if getattr(processor, "chat_template", None):
        return
    way = "set model.chat_template (in Python: processor.chat_template) to a Jinja template, as in the model card"
    if (preset := PRESETS.get(model_type)) is not None:
        own = f"model={preset} model.path={path or 'FOLDER'}"
        way = f"{own} has one for this family ({model_type}); or {way}"
    raise UserError(f"the processor of {name} has no chat template; prompts are rendered through one; {way}")


def with_keywords(template: Any, keywords: Mapping[str, Any], *, name: str) -> Any:
    """The chat template (Jinja, or several by their names) in which ``keywords`` have their values.

    They are set in its first lines, so that whoever renders with it or hashes it sees them.

    Raises:
        UserError: the template has no such keyword.
    """
    if not isinstance(template, str):
        return {key: with_keywords(one, keywords, name=name) for key, one in dict(template or {}).items()}
    for keyword in keywords:
        if not re.search(rf"\b{keyword}\b", template):
            raise UserError(f"model.template.{keyword}: the chat template of {name} never reads {keyword}, so that "
                            "nothing would change; take a name that stands in it, or leave it out")  # fmt: skip
    # A line each: transformers drops the line break behind a block, so that the template itself begins a line.
    lines = [f"{{% set {keyword} = {_literal(value)} %}}\n" for keyword, value in keywords.items()]
    return "".join(lines) + template


def _literal(value: Any) -> str:
    """A JSON value as Jinja writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


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
