"""A question to a model, and how it is rendered by the processor's chat template."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError
from PIL import Image, ImageOps

from interp.errors import UserError
from interp.families import PRESETS
from interp.messages import Message, Place, parts_of, pixels, read, seen, with_parts

if TYPE_CHECKING:
    from interp.module_map import ModuleMap

MARK = "\ue000"  # a private-use character, which occurs in no template, vocabulary or question
TODAY = datetime(2024, 7, 26)  # the date that Llama 3.2's own template falls back on
DATE = TODAY.strftime("%d %b %Y")
DIRECTIVES = [f"%{letter}" for letter in (*"aAbBdemyYjHIMSp", "-d", "-m", "%")]


@dataclass(frozen=True)
class Prompt:
    """One question with one picture or none, or a conversation (``messages``) with several turns and pictures.

    ``messages`` are in the chat format of OpenAI and transformers (``interp.messages``). Then ``text`` is the text of
    the last user turn, ``image`` the first picture and ``system`` the system text. An assistant's message at the end is
    the beginning of the answer. Messages that are one text after one picture are the same prompt as text and picture.
    Pictures are kept as a model sees them (``interp.messages.as_seen``).

    ``key`` identifies the case: all random draws for it depend only on ``key`` and a seed. ``request`` is the part of
    ``text`` that is asked about, without the question around it, and ``shows`` a sentence of what the picture shows;
    both "" where they are not known. No model is told of them unless a method does so. ``answer_prefix`` is the
    beginning of the answer, such as a thought: tokens, or texts that the model's tokenizer divides.

    ``dataclasses.replace`` changes the text, the system text and a single picture of a conversation too.

    Raises:
        UserError: ``image`` is no picture of PIL, or one that cannot be decoded; messages that are no conversation, or
            given next to a text or a picture.
    """

    text: str = ""
    image: Image.Image | None = None
    system: str | None = None
    key: str = ""
    request: str = ""
    shows: str = ""
    answer_prefix: tuple[int | str, ...] = ()
    messages: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.image is not None and not isinstance(self.image, Image.Image):
            raise UserError(
                f"Prompt: image is a {type(self.image).__name__}; a prompt takes one picture as a PIL.Image.Image, or "
                "None; to ask about several, give messages=[…], or paste them into one picture"
            )
        if self.image is not None:
            vars(self).update(image=seen(self.image))
        if not isinstance(self.messages, tuple) or not all(isinstance(each, Message) for each in self.messages):
            self._store(self._read())
        elif self.messages:
            self._store(self._updated(self.messages))

    def _store(self, turns: tuple[Message, ...]) -> "Prompt":
        """Store the turns of a conversation, or only text and picture if it is not more than these."""
        images = [image for turn in turns for image in turn.images]
        simple = len(turns) == 1 and turns[0].parts == (*images[:1], turns[0].text)
        vars(self).update(text=turns[-1].text, image=next(iter(images), None), messages=() if simple else turns)
        return self

    def _read(self) -> tuple[Message, ...]:
        """Return the turns of messages in the chat format, and store the system text and the begun answer."""
        if self.text or self.image is not None:
            raise UserError("Prompt: messages next to text or image; the messages have both; leave text and image out")
        system, turns, answer = read(self.messages, answer_prefix=True)
        if self.system is not None and system is not None:
            raise UserError("Prompt: system next to messages with a system text; leave one of them out")
        begun = (answer, *self.answer_prefix) if answer else self.answer_prefix
        vars(self).update(system=self.system if system is None else system, answer_prefix=begun)
        return turns

    def _updated(self, turns: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the turns with the text and the picture that ``dataclasses.replace`` gave."""
        turns = (*turns[:-1], turns[-1].with_text(self.text))
        images = [image for turn in turns for image in turn.images]
        if self.image is (images[0] if images else None):
            return turns
        if self.image is not None and len(images) != 1:
            raise UserError(
                f"Prompt: one picture in place of {len(images)}; a conversation with several pictures is changed by "
                "prompt.with_images; use that"
            )
        places = parts_of(turns)
        return with_parts(turns, {places[f"image:{number}"][0]: self.image for number in range(1, len(images) + 1)})

    @property
    def turns(self) -> tuple[Message, ...]:
        """The turns of user and assistant; a question with a picture is one turn of the user."""
        return tuple(self.messages) or (Message("user", (*filter(None, [self.image]), self.text)),)

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """All pictures in their order."""
        return tuple(image for turn in self.turns for image in turn.images)

    def with_images(self, change: Callable[[Image.Image], Image.Image | None], only: Sequence[int] = ()) -> "Prompt":
        """Return the prompt with each picture changed (None: removed), or ``only`` those with these numbers, from 1.

        Raises:
            UserError: a number beyond the pictures of the prompt.
        """
        check_numbers(only, len(self.images), self.key or self.text)
        places, pictures = self.parts, enumerate(self.images, 1)
        new = {places[f"image:{n}"][0]: change(image) for n, image in pictures if not only or n in only}
        return self.with_parts(new)

    @property
    def parts(self) -> dict[str, list[Place]]:
        """Where the parts are, by name: ``user:1``, ``assistant:1``, ``image:1`` … (``interp.messages.parts_of``)."""
        return parts_of(self.turns)

    def with_parts(self, changes: Mapping[Place, str | Image.Image | None]) -> "Prompt":
        """Return the prompt with other texts and pictures in places (turn and part, from 0); None removes a picture."""
        return self.with_turns(with_parts(self.turns, changes))

    def with_turns(self, turns: Sequence[Message]) -> "Prompt":
        """Return the prompt with these turns instead of its own."""
        return copy(self)._store(tuple(turns))

    @property
    def content(self) -> tuple[Any, ...]:
        """What the model reads of the prompt, to compare and hash: texts, and digests of the pictures."""
        return (self.text, self.system, pixels(self.image), *(turn.outline(pixels) for turn in self.messages))


def check_numbers(only: Sequence[int], count: int, name: str) -> None:
    """Check the numbers of pictures to change.

    Raises:
        UserError: one that the prompt ``name`` does not have.
    """
    if wrong := [number for number in only if not 1 <= number <= count]:
        raise UserError(f"images={list(only)}: '{name}' has {count} pictures, no picture {wrong[0]}; they count from 1")


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list, where one alone may be given."""
    return [prompts] if isinstance(prompts, Prompt) else list(prompts)


def inverted(prompt: Prompt) -> Prompt:
    """Return the prompt with the negatives of its pictures, which have the same sizes and so as many tokens."""
    return prompt.with_images(ImageOps.invert)


def render(processor: Any, prompt: Prompt, *, module_map: "ModuleMap", name: str) -> str:
    """Render the prompt with ``processor``'s chat template, up to where the answer begins. The image is a placeholder.

    Today is ``TODAY`` for a template that asks. A template that wants the system text as a string gets one.

    Raises:
        UserError: the processor has no chat template, the template rejects or drops the system prompt, or placeholders
            and images differ in number (the question itself may contain a placeholder).
    """
    check_chat_template(processor, name, model_type=module_map.model_type)
    if still_open := [number for number, turn in enumerate(prompt.turns, 1) if not turn.parts]:
        raise UserError(
            f"turn {still_open[0]} of {len(prompt.turns)} has no answer yet; the default task asks the "
            "model for it; elsewhere, give the earlier answers (benchmark.turns=given)"
        )
    messages = [turn.as_chat() for turn in prompt.turns]
    if prompt.system is not None:
        messages.insert(0, Message("system", (prompt.system,)).as_chat())
    dated = _dated(processor.chat_template)
    try:
        text = processor.apply_chat_template(messages, add_generation_prompt=True, **dated)
        strings = [message for message in messages if message["role"] != "user" and str(message["content"]) in text]
        for message in strings:  # it wants a string
            message["content"] = "\n".join(part["text"] for part in message["content"])
        if strings:
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
    for number, turn in enumerate(prompt.turns if prompt.messages else (), 1):
        if dropped := [part for part in turn.parts if isinstance(part, str) and part.strip() not in text]:
            raise UserError(
                f"the chat template of {name} drops the text {dropped[0][:40]!r} of turn {number} of "
                f"{len(prompt.turns)} ({turn.role}); it takes fewer turns; ask single questions, or set "
                "model.chat_template"
            )
    _check_placeholders(text, processor, images=len(prompt.images), module_map=module_map, name=name)
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
    """Check that there is a chat template. A guessed prompt format would change what is measured.

    Raises:
        UserError: the processor has none; names the option of ``model=`` that has one for the family.
    """
    if getattr(processor, "chat_template", None):
        return
    way = "set model.chat_template (in Python: processor.chat_template) to a Jinja template, as in the model card"
    if (preset := PRESETS.get(model_type)) is not None:
        current = f"model={preset} model.path={path or 'FOLDER'}"
        way = f"{current} has one for this family ({model_type}); or {way}"
    raise UserError(f"the processor of {name} has no chat template; prompts are rendered through one; {way}")


def with_keywords(template: Any, keywords: Mapping[str, Any], *, name: str) -> Any:
    """Return the chat template (Jinja, or several by their names) in which ``keywords`` have their values.

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
    """Return a JSON value as Jinja writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _check_placeholders(text: str, processor: Any, *, images: int, module_map: "ModuleMap", name: str) -> None:
    token = getattr(processor, "image_placeholder_token", None) or getattr(processor, "image_token", None)
    if token is None:
        return
    count = text.count(str(token))
    if images > 1 and (count < images or module_map.geometry == "queries"):
        raise UserError(
            f"{images} images in a prompt of {name}, which takes {'one' if count < 2 else count} there: "
            f"its chat template or processor leaves the others out; ask about fewer images, or take another model"
        )
    if count == 0 and module_map.geometry == "queries":
        return  # InstructBLIP's processor prepends the image tokens itself
    if count != images:
        raise UserError(
            f"{count} image placeholders {str(token)!r} for {images} images in a prompt of {name}; there must be as "
            "many; take the placeholder out of the prompt's words, or fix the chat template"
        )
