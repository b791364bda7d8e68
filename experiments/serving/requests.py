"""What a client may ask: the body of a chat completion, checked and turned into one question with its settings.

What would change the answer and cannot be done here is refused, never left out in silence. Imports no torch.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from starlette.exceptions import HTTPException

MOST_CHOICES = 16
MOST_STOPS = 4
LONGEST_STOP = 256  # characters
MOST_ALTERNATIVES = 20  # of a token, in top_logprobs
LARGEST_SEED = 2**63 - 1
KEY = "key"  # of the metadata: the case that a request's noise and draws belong to

# Parameters that change an answer, and the values of them that do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0, 0.0),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}
# Parameters that change no answer: of accounts, of caches, or of tools that nobody passed.
IGNORED = (
    "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    "user", "verbosity",
)  # fmt: skip


class BadRequest(HTTPException):
    """A request that cannot be answered as it is, in one sentence (``detail``); ``field`` is the parameter at fault.

    ``status`` is the HTTP status, ``code`` OpenAI's short name of the error.
    """

    def __init__(self, sentence: str, field: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(status, sentence)
        self.field, self.code = field, code


class Full(BadRequest):
    """No room for more requests."""

    def __init__(self) -> None:
        sentence = "this server has as many requests waiting as it takes; try again in a moment"
        super().__init__(sentence, status=429, code="rate_limit_exceeded")


class Failed(BadRequest):
    """A request that this program could not answer though it should have; the log says why."""

    def __init__(self) -> None:
        super().__init__("something went wrong here; the server's log says what", status=500)


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


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Body(_Strict):
    """The body; parameters that are not listed stand in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[_Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-LARGEST_SEED, le=LARGEST_SEED)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]],
        Field(max_length=MOST_STOPS),
        BeforeValidator(_listed),
    ] = []
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    metadata: dict[str, str] = {}

    @property
    def key(self) -> str | None:
        """The case that its noise and draws belong to, where the client says it."""
        return self.metadata.get(KEY)


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
    """One request as ``asked``: a question about at most one picture, given as its URL, and how it is decoded."""

    asked: Body
    decoding: Decoding
    text: str
    image_url: str | None
    system: str | None


def read_question(body: bytes, *, default_tokens: int, most_tokens: int) -> Question:
    """The question in the body of a request.

    An answer has ``default_tokens`` tokens at most where the client names no number, and may ask for ``most_tokens``.

    Raises:
        BadRequest: it is no chat completion, or asks for what cannot be done here.
    """
    try:
        asked = Body.model_validate_json(body)
    except ValidationError as error:
        raise _in_a_sentence(error) from None
    _refuse_unknown(asked.model_extra or {})
    return Question(asked, _decoding(asked, default_tokens, most_tokens), *_turns(asked.messages))


def _decoding(asked: Body, default_tokens: int, most_tokens: int) -> Decoding:
    given = [value for value in (asked.max_completion_tokens, asked.max_tokens) if value is not None]
    if len(set(given)) > 1:
        raise BadRequest("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
    tokens = given[0] if given else default_tokens
    if tokens > most_tokens:
        rule = f"this server gives at most {most_tokens} tokens an answer (task.max_tokens)"
        raise BadRequest(f"max_tokens={tokens}: {rule}", "max_tokens")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise BadRequest("top_logprobs needs logprobs=true", "top_logprobs")
    return Decoding(
        max_tokens=tokens,
        temperature=asked.temperature,
        top_p=asked.top_p if asked.temperature else 1.0,
        stop=tuple(dict.fromkeys(asked.stop)),
        alternatives=(asked.top_logprobs or 0) if asked.logprobs else None,
    )


def _turns(messages: list[_Message]) -> tuple[str, str | None, str | None]:
    """The user's words, the URL of the picture, and the system prompt."""
    system: str | None = None
    user: _Message | None = None
    for message in messages:
        if message.role in ("system", "developer"):
            if system is not None or user is not None:
                raise BadRequest("one system turn is understood here, before the user's; join them", "messages")
            words, pictures = _content(message)
            if pictures:
                raise BadRequest("a picture in the system turn; put it into the user's", "messages")
            system = words
        elif message.role == "user" and user is None:
            user = message
        else:
            what = "a second user turn" if message.role == "user" else f"a turn of role {message.role!r}"
            rule = "a request here is one question, with at most a system turn before it"
            raise BadRequest(f"{what}: {rule}; conversations of several turns are not supported", "messages")
    if user is None:
        raise BadRequest("there is no user turn; the question stands in one", "messages")
    words, pictures = _content(user)
    if len(pictures) > 1:
        raise BadRequest(f"{len(pictures)} pictures; a question here is about one at most", "messages")
    if not words.strip():
        raise BadRequest("the user turn has no words; ask something about the picture", "messages")
    return words, pictures[0] if pictures else None, system


def _content(message: _Message) -> tuple[str, list[str]]:
    """The words of a turn, parts on lines of their own, and the URLs of its pictures."""
    if isinstance(message.content, str):
        return message.content, []
    words = [part.text for part in message.content if isinstance(part, _TextPart)]
    pictures = [part.image_url.url for part in message.content if isinstance(part, _ImagePart)]
    return "\n".join(words), pictures


def _refuse_unknown(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if name in IGNORED or value in NEUTRAL.get(name, ()):
            continue
        short = name if len(name) <= 40 else f"{name[:40]}..."
        if name in NEUTRAL:
            raise BadRequest(f"{short} is not supported here; leave it out", short)
        raise BadRequest(f"unknown parameter {short!r}; leave it out, lest you think that it did something", short)


def _in_a_sentence(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False)[0]
    *where, last = first["loc"] or ("",)
    message = str(first["msg"]).rstrip(".")[:200]
    if where[:1] == ["messages"] and len(where) > 1:
        turn = f"messages.{where[1]}"
        if len(where) == 2 and first["type"] == "extra_forbidden":
            rule = f"a picture is a part of content: {PARTS}"
            return BadRequest(f"{turn}: {str(last)[:40]!r} is not understood here; leave it out; {rule}", "messages")
        if "parts" in first["loc"]:
            place = f"{turn}.content.{first['loc'][4]}" if len(first["loc"]) > 4 else f"{turn}.content"
            return BadRequest(f"{place}: {_part_fault(first, message)}; a part is {PARTS}; write it so", "messages")
        if last == "words":
            what = type(first["input"]).__name__
            return BadRequest(f"{turn}.content is of type {what}; it is words, or a list of parts: {PARTS}", "messages")
    place = ".".join(str(part) for part in first["loc"])
    place = place if len(place) <= 80 else f"{place[:80]}..."
    return BadRequest(f"{place}: {message}" if place else f"the body cannot be read: {message}", place or None)


def _part_fault(found: Any, message: str) -> str:
    """What is wrong with a part of a turn's content, by pydantic's finding."""
    if found["type"] == "union_tag_invalid":
        return f"parts of type {str(found['input'].get('type'))[:40]!r} are not taken"
    if found["type"] == "union_tag_not_found":
        return "a part without a type"
    tag, *inside = found["loc"][5:] or ("",)
    name = ".".join(str(each) for each in inside)
    return f"{name[:80]} of a part of type {tag!r}: {message}" if tag else f"no part: {message}"
