"""What a client may ask: the body of a chat completion, checked and turned into one question with its settings.

What would change the answer and cannot be done here is refused, never left out in silence. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from PIL import Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from experiments.serving.pictures import FIELD, read_picture
from experiments.serving.server import BadRequest
from interp.errors import UserError
from interp.messages import read
from interp.prompt import Prompt

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


class _Part(_Strict):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: dict[str, Any] | None = None  # also "detail"
    cache_control: Any = None  # of a provider's cache


_Role = Literal["system", "user", "assistant"]
MOST_PICTURES = 16  # of a request
PARTS = '{"type": "text", "text": "…"} or {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}'


class _Message(_Strict):
    role: Annotated[_Role, BeforeValidator(lambda role: "system" if role == "developer" else role)]
    content: str | list[_Part] = ""
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
    """One request: its body, how the answer is decoded, and the prompt without a key."""

    body: Body
    decoding: Decoding
    prompt: Prompt


def read_question(body: bytes, *, default_tokens: int, most_tokens: int, most_pixels: int) -> Question:
    """Return the question in the body of a request.

    An answer has ``default_tokens`` tokens at most where the client names no number, and may ask for ``most_tokens``.
    A picture has ``most_pixels`` pixels at most.

    Raises:
        BadRequest: it is no chat completion, or asks for what cannot be done here.
    """
    try:
        parsed = Body.model_validate_json(body)
    except ValidationError as error:
        raise _in_a_sentence(error) from None
    _refuse_unknown(parsed.model_extra or {})
    return Question(parsed, _decoding(parsed, default_tokens, most_tokens), _prompt(parsed.messages, most_pixels))


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


def _prompt(messages: list[_Message], most_pixels: int) -> Prompt:
    """Return the prompt. In a turn with one picture it comes before the words, which are on lines of their own."""
    left = iter(range(MOST_PICTURES))

    def picture(part: Mapping[str, Any]) -> Image.Image:
        if next(left, None) is None:
            raise BadRequest(f"a request here has {MOST_PICTURES} pictures at most; leave pictures out", FIELD)
        return read_picture(str((part.get("image_url") or {}).get("url")), most_pixels)

    try:
        system, turns, _ = read([message.model_dump(exclude_none=True) for message in messages], picture)
    except UserError as error:
        raise error if isinstance(error, BadRequest) else BadRequest(str(error), FIELD) from None
    turns = tuple(t if len(t.images) > 1 else replace(t, parts=(*t.images, t.text)) for t in turns)
    prompt = Prompt(system=system).with_turns(turns)
    if not prompt.text.strip():
        raise BadRequest("the last turn has no words; ask something about the picture", FIELD)
    return prompt


def _refuse_unknown(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if name not in IGNORED and value not in OFF:
            short = name if len(name) <= 40 else f"{name[:40]}..."
            raise BadRequest(f"unknown parameter {short!r}; leave it out: it would have no effect", short)


def _in_a_sentence(error: ValidationError) -> BadRequest:
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    path = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[_Part]"))[:80]
    sentence = f"{path or 'the body cannot be read'}: {str(first['msg']).rstrip('.')[:200]}"
    if path.startswith("messages."):
        return BadRequest(f"{sentence}; content is words, or a list of parts: {PARTS}", "messages")
    return BadRequest(sentence, path or None)
