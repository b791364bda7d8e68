"""What a client may ask: the body of a chat completion, checked and turned into one question with its settings.

What would change the answer and cannot be done here is refused, never left out in silence. Imports no torch.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class BadRequest(Exception):
    """A request that cannot be answered as it is, in one sentence; ``field`` is the parameter at fault.

    ``status`` is the HTTP status, ``code`` OpenAI's short name of the error.
    """

    def __init__(self, sentence: str, field: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(sentence)
        self.field, self.status, self.code = field, status, code


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _ImageUrl(_Strict):
    url: str


class _TextPart(_Strict):
    type: Literal["text"]
    text: str


class _ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: _ImageUrl  # with "detail", which is ignored


_Part = Annotated[_TextPart | _ImagePart, Field(discriminator="type")]


class _Message(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None


class _StreamOptions(_Strict):
    include_usage: bool = False


class _Body(_Strict):
    """The body; parameters that are not listed stand in ``model_extra``."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    model: str
    messages: list[_Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-LARGEST_SEED, le=LARGEST_SEED)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_ALTERNATIVES)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    metadata: dict[str, str] | None = None


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


@dataclass(frozen=True)
class Question:
    """One request: a question about at most one picture, given as its URL, and how it is to be answered.

    ``seed`` is None where the client gave none, ``key`` likewise.
    """

    model: str
    text: str
    image_url: str | None
    system: str | None
    decoding: Decoding
    choices: int = 1
    seed: int | None = None
    key: str | None = None
    stream: bool = False
    include_usage: bool = False


def read_question(body: bytes, *, default_tokens: int, most_tokens: int) -> Question:
    """The question in the body of a request.

    An answer has ``default_tokens`` tokens at most where the client names no number, and may ask for ``most_tokens``.

    Raises:
        BadRequest: it is no chat completion, or asks for what cannot be done here.
    """
    try:
        asked = _Body.model_validate_json(body)
    except ValidationError as error:
        raise _in_a_sentence(error) from None
    except (ValueError, RecursionError) as error:  # pragma: no cover - pydantic reports what it can as its own
        raise BadRequest(f"the body is not JSON ({type(error).__name__})") from None
    _refuse_unknown(asked.model_extra or {})
    text, image_url, system = _turns(asked.messages)
    return Question(
        model=asked.model,
        text=text,
        image_url=image_url,
        system=system,
        decoding=_decoding(asked, default_tokens, most_tokens),
        choices=asked.n or 1,
        seed=asked.seed,
        key=(asked.metadata or {}).get(KEY),
        stream=bool(asked.stream),
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
    )


def _decoding(asked: _Body, default_tokens: int, most_tokens: int) -> Decoding:
    given = [value for value in (asked.max_completion_tokens, asked.max_tokens) if value is not None]
    if len(set(given)) > 1:
        raise BadRequest("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
    tokens = given[0] if given else default_tokens
    if tokens > most_tokens:
        rule = f"this server gives at most {most_tokens} tokens an answer (task.max_tokens)"
        raise BadRequest(f"max_tokens={tokens}: {rule}", "max_tokens")
    stops = [asked.stop] if isinstance(asked.stop, str) else list(asked.stop or ())
    if len(stops) > MOST_STOPS or any(not 0 < len(stop) <= LONGEST_STOP for stop in stops):
        rule = f"at most {MOST_STOPS} strings of 1 to {LONGEST_STOP} characters are allowed"
        raise BadRequest(f"stop: {rule}", "stop")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise BadRequest("top_logprobs needs logprobs=true", "top_logprobs")
    greedy = not asked.temperature
    return Decoding(
        max_tokens=tokens,
        temperature=asked.temperature or 0.0,
        top_p=1.0 if greedy or asked.top_p is None else asked.top_p,
        stop=tuple(dict.fromkeys(stops)),
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
    if message.content is None or isinstance(message.content, str):
        return message.content or "", []
    words = [part.text for part in message.content if isinstance(part, _TextPart)]
    pictures = [part.image_url.url for part in message.content if isinstance(part, _ImagePart)]
    return "\n".join(words), pictures


def _refuse_unknown(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if value is None or name in IGNORED or value in NEUTRAL.get(name, ()):
            continue
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        if name in NEUTRAL:
            raise BadRequest(f"{shown} is not supported here; leave it out", shown)
        raise BadRequest(f"unknown parameter {shown!r}; leave it out, lest you think that it did something", shown)


def _in_a_sentence(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    place = place if len(place) <= 80 else f"{place[:80]}..."
    message = str(first["msg"]).rstrip(".")[:200]
    return BadRequest(f"{place}: {message}" if place else f"the body cannot be read: {message}", place or None)
