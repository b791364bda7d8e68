"""Conversations in the chat format of OpenAI and transformers: read, checked, and rewritten part by part.

A conversation is a system text, turns of user and assistant in alternation, the last of them the user's, and perhaps
the beginning of an answer (an assistant's message at the end).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from PIL import Image

from interp.errors import UserError
from interp.pictures import as_seen

Part = str | Image.Image


@dataclass(frozen=True)
class Message:
    """A turn of a conversation: who speaks, and texts and pictures in their order."""

    role: str  # "user" or "assistant"
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All texts of the turn, a line each."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """The pictures of the turn."""
        return tuple(part for part in self.parts if not isinstance(part, str))

    def with_text(self, text: str) -> "Message":
        """Return the turn with another text. New words around the old ones leave each picture where it is.

        Raises:
            UserError: other words for several texts with pictures between them.
        """
        if text == self.text:
            return self
        texts = [index for index, part in enumerate(self.parts) if isinstance(part, str)]
        parts = list(self.parts)
        before, same, after = text.partition(self.text)
        if len(texts) <= 1:
            index = texts[0] if texts else len(parts)
            parts[index : index + 1] = [text]
        elif same:
            parts[texts[0]] = f"{before}{parts[texts[0]]}"
            parts[texts[-1]] = f"{parts[texts[-1]]}{after}"
        else:
            raise UserError(
                f"Prompt: other words for {len(texts)} texts of one turn, which have pictures between them; a method "
                "that rewrites the question needs one text a turn; put the pictures before the text"
            )
        return replace(self, parts=tuple(parts))


@dataclass(frozen=True)
class Conversation:
    """What ``read`` finds in messages."""

    system: str | None
    turns: tuple[Message, ...]
    answer: str  # how the answer begins, "" if it does not


def read(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Return the conversation of messages with ``role`` and ``content`` (a text, or a list of texts and pictures).

    Raises:
        UserError: not such messages; no user's turn at the end; two turns of one role in a row; a picture in a turn
            that is not the user's.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UserError(f"messages is a {type(messages).__name__}; give a list of role and content, as in a chat")
    turns = [_message(message, number) for number, message in enumerate(messages, 1)]
    system = turns.pop(0).text if turns and turns[0].role == "system" else None
    answer = turns.pop().text if turns and turns[-1].role == "assistant" else ""
    if not turns or turns[-1].role != "user":
        last = f"the last message is by {turns[-1].role!r}" if turns else "there is no message of the user"
        raise UserError(f"messages: {last}; a conversation ends with a turn of the user; add the question")
    if turns[0].role == "assistant":
        raise UserError("messages: the first turn is by 'assistant'; a conversation begins with a turn of the user")
    for index, (before, turn) in enumerate(pairwise(turns)):
        if turn.role == before.role or turn.role == "system":
            number = index + 2 + (system is not None)
            raise UserError(
                f"messages: message {number} is by {turn.role!r} and follows {before.role!r}; user and assistant take "
                "turns, and a system text comes first; join the two messages into one"
            )
    return Conversation(system, tuple(turns), answer)


def _message(message: Any, number: int) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if role not in ("system", "user", "assistant") or not isinstance(content, str | list | tuple):
        raise UserError(
            f"messages: message {number} is {_short(message)}; it needs a role (system, user, assistant) and a content "
            "(a text, or a list of parts)"
        )
    parts = (content,) if isinstance(content, str) else tuple(_part(part, number) for part in content)
    if role != "user" and any(not isinstance(part, str) for part in parts):
        raise UserError(
            f"messages: message {number} is by {role!r} and has a picture; only the user shows pictures; move it to a "
            "turn of the user"
        )
    return Message(role, parts)


def _part(part: Any, number: int) -> Part:
    if isinstance(part, Mapping):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return str(part["text"])
        if part.get("type") == "image" and isinstance(part.get("image"), Image.Image):
            return seen(part["image"])
    raise UserError(
        f"messages: message {number} has a part {_short(part)}; a part is "
        '{"type": "text", "text": …} or {"type": "image", "image": <PIL.Image.Image>}; load pictures first'
    )


def seen(image: Image.Image) -> Image.Image:
    """Return the picture as a model sees it.

    Raises:
        UserError: it cannot be decoded.
    """
    try:
        return as_seen(image)
    except Exception as error:  # decoders raise whatever bad bytes provoke
        raise UserError(
            f"Prompt: image cannot be decoded ({type(error).__name__}: {error}); a prompt takes a whole picture; "
            "replace its file"
        ) from error


def with_images(
    turns: Sequence[Message], change: Callable[[Image.Image], Image.Image | None], only: Sequence[int] = ()
) -> tuple[Message, ...]:
    """Return the turns with each picture changed, or left out if ``change`` gives None.

    ``only`` are the numbers of the pictures to change, from 1 over the whole conversation; empty: all.
    """
    number, changed = 0, []
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            new: Part | None = part
            if not isinstance(part, str):
                number += 1
                new = change(part) if not only or number in only else part
            parts += [] if new is None else [new if isinstance(new, str) else seen(new)]
        changed.append(replace(turn, parts=tuple(parts) or ("",)))
    return tuple(changed)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
