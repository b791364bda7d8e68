"""What a client may ask: the body of a chat completion, checked and turned into one question with its settings.

What would change the answer and cannot be done here is refused, never left out in silence. Imports no torch.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from experiments.serving.server import BadRequest

MOST_STOPS = 4
LONGEST_STOP = 256  # characters
MOST_ALTERNATIVES = 20  # of a token, in top_logprobs
LARGEST_SEED = 2**63 - 1
KEY = "key"  # of the metadata: the case that a request's noise and draws belong to
# Values with which a parameter that is not supported changes no answer.
OFF: tuple[Any, ...] = (0, "none", "auto", [], {}, ["text"], {"type": "text"})
# Parameters that change no answer: of accounts, of caches, or of tools that nobody passed.
IGNORED = ("parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
           "store", "user", "verbosity")  # fmt: skip


def _without_null(given: Any) -> Any:
    return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class _Strict(BaseModel):
    """Null is as good as left out."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    _nulls = model_validator(mode="before")(_without_null)


class _ImageUrl(_Strict):
    model_config = ConfigDict(extra="ignore")  # "detail"

    url: str


class _TextPart(_Strict):
    type: Literal["text"]
    text: str
    cache_control: Any = None  # of a provider's cache


class _ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: _ImageUrl
    cache_control: Any = None


_Part = Annotated[_TextPart | _ImagePart, Field(discriminator="type")]
MOST_PICTURES = 16  # of a request
PARTS = '{"type": "text", "text": "…"} or {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}'


def _kind(content: Any) -> str:
    return "parts" if isinstance(content, list) else "words"


class _Message(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[Annotated[str, Tag("words")] | Annotated[list[_Part], Tag("parts")], Discriminator(_kind)] = ""
    name: str = ""  # of who speaks, which no template here shows


class _StreamOptions(_Strict):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class Body(_Strict):
    """The body. Other parameters are in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[_Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-LARGEST_SEED, le=LARGEST_SEED)
    n: Literal[1] = 1
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]],
        Field(max_length=MOST_STOPS),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = []
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    metadata: dict[str, str] = {}


@dataclass(frozen=True)
class Decoding:
    """How an answer is decoded; requests that are equal in this are answered together.

    ``temperature`` 0 is greedy. ``alternatives`` is how many of the likeliest tokens are reported at each step, None
    for no log-probabilities at all.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    alternatives: int | None = None


class Question(NamedTuple):
    """One request: messages in the chat format, pictures as URLs, and how the answer is decoded."""

    body: Body
    decoding: Decoding
    messages: list[dict[str, Any]]


def read_question(body: bytes, *, default_tokens: int, most_tokens: int) -> Question:
    """Return the question in the body of a request.

    An answer has ``default_tokens`` tokens at most where the client names no number, and may ask for ``most_tokens``.

    Raises:
        BadRequest: it is no chat completion, or asks for what cannot be done here.
    """
    try:
        parsed = Body.model_validate_json(body)
    except ValidationError as error:
        raise _in_a_sentence(error) from None
    _refuse_unknown(parsed.model_extra or {})
    return Question(parsed, _decoding(parsed, default_tokens, most_tokens), _chat(parsed.messages))


def _decoding(body: Body, default_tokens: int, most_tokens: int) -> Decoding:
    given = [value for value in (body.max_completion_tokens, body.max_tokens) if value is not None]
    if len(set(given)) > 1:
        raise BadRequest("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
    tokens = given[0] if given else default_tokens
    if tokens > most_tokens:
        rule = f"this server gives at most {most_tokens} tokens an answer (task.max_tokens)"
        raise BadRequest(f"max_tokens={tokens}: {rule}", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs=true", "top_logprobs")
    return Decoding(
        max_tokens=tokens,
        temperature=body.temperature,
        top_p=body.top_p if body.temperature else 1.0,
        stop=tuple(dict.fromkeys(body.stop)),
        alternatives=(body.top_logprobs or 0) if body.logprobs else None,
    )


def _chat(messages: list[_Message]) -> list[dict[str, Any]]:
    """Return the messages in the chat format of ``interp.messages``, with a picture's URL in its place.

    In a turn with one picture it comes before the words, which are on lines of their own.
    """
    chat, pictures = [], 0
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        if role not in ("system", "user", "assistant"):
            rule = "a request here has at most one system turn, and turns of user and assistant"
            raise BadRequest(f"messages.{index} is a turn of role {message.role!r}; {rule}", "messages")
        given = message.content
        content = [_text(given)] if isinstance(given, str) else [_part(part) for part in given]
        images = [part for part in content if part["type"] == "image"]
        words = "\n".join(part["text"] for part in content if part["type"] == "text")
        pictures += len(images)
        if images and role != "user":
            raise BadRequest(f"a picture in the {role} turn; put it into the user's", "messages")
        chat.append({"role": role, "content": content if len(images) > 1 else [*images, _text(words)]})
    if pictures > MOST_PICTURES:
        raise BadRequest(f"{pictures} pictures; a request here has {MOST_PICTURES} at most", "messages")
    if chat[-1]["role"] != "user":
        raise BadRequest(
            f"the last turn is by {chat[-1]['role']!r}; a request ends with a turn of the user", "messages"
        )
    if not words.strip():
        raise BadRequest("the user turn has no words; ask something about the picture", "messages")
    return chat


def _part(part: _TextPart | _ImagePart) -> dict[str, Any]:
    return {"type": "image", "image": part.image_url.url} if isinstance(part, _ImagePart) else _text(part.text)


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _refuse_unknown(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if name not in IGNORED and value not in OFF:
            short = name if len(name) <= 40 else f"{name[:40]}..."
            raise BadRequest(f"unknown parameter {short!r}; leave it out: it would have no effect", short)


def _in_a_sentence(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"] if part not in ("parts", "words"))[:80]
    sentence = f"{path or 'the body cannot be read'}: {str(first['msg']).rstrip('.')[:200]}"
    if path.startswith("messages."):
        return BadRequest(f"{sentence}; content is words, or a list of parts: {PARTS}", "messages")
    return BadRequest(sentence, path or None)
