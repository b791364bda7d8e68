"""Requests to an endpoint: retries, rate limit, and a cache of answers on disk.

Requests go through the ``openai`` client, but retries are our own, so that every outcome has a type. They are evenly
spaced, with backoff after a fault, and respect Retry-After. Each answer is cached in a file named by the hash of its
request; the cache holds neither prompts nor keys.
"""

import hashlib
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any

from experiments.api.config import SHORTEST_SECRET, ApiConfig
from experiments.api.reply import FailureKind, Garbage, Reply, classify, one_line, read_completion
from experiments.runs.resumption import read_object
from experiments.types import Status
from interp.errors import UserError

FIRST_BACKOFF = 0.5  # seconds
LONGEST_BACKOFF = 30.0
KEPT = (Status.ANSWERED, Status.TRUNCATED)  # cached; any other outcome may differ next time
MOST_BYTES = 8 << 20  # of a reply
PATIENCE = 300.0  # seconds; where an endpoint asks to wait longer, the request is left to the continued run
TOP_LOGPROBS = 20  # the most that OpenAI lists
# The headers sent besides the authorization: none that identify this machine, and none that the client takes from
# OPENAI_* variables, which may belong to another endpoint.
HEADERS = (
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "user-agent",
    "x-stainless-raw-response",  # tells the client to leave the body to us
)


class Pace:
    """Spaces the requests of all threads evenly, and delays them all while the endpoint asks for it."""

    def __init__(self, requests_per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 60 / requests_per_minute if requests_per_minute else 0.0
        self._clock = clock
        self._free = clock()  # when the next request may leave
        self._lock = Lock()

    def reserve(self) -> float:
        """Reserves the next free slot and returns the seconds until then."""
        with self._lock:
            now = self._clock()
            at = max(now, self._free)
            self._free = at + self._interval
            return at - now

    def hold(self, seconds: float) -> None:
        """Delays further requests by ``seconds``."""
        with self._lock:
            self._free = max(self._free, self._clock() + seconds)


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds before attempt ``attempt`` + 1: doubling from half a second, less up to a half by jitter."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(attempt, 16)) * rng.uniform(0.5, 1.0)


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a Retry-After header asks for (a number or a date); None where it cannot be read."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError):
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None  # not NaN


def content_key(sent: dict[str, Any]) -> str:
    """The hash of a request whose images are given by the digests of their pixels."""
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class AnswerCache:
    """A cache of answers in ``folder``, which is created on first use. Safe for several threads and processes."""

    folder: Path

    def get(self, key: str) -> Reply | None:
        """The answer cached under ``key``; None where there is none, or it cannot be read."""
        kept = read_object(self._path(key))
        try:
            status, text, margin = Status(kept["status"]), kept["text"], kept["margin"]
        except (KeyError, ValueError):
            return None
        if status not in KEPT or not isinstance(text, str) or not isinstance(margin, float | int | None):
            return None
        return Reply(status, text, "", math.nan if margin is None else float(margin), str(kept.get("model", "")))

    def put(self, key: str, answer: Reply) -> None:
        """Caches an answer of the model; other outcomes are not kept.

        Raises:
            UserError: the folder cannot be written.
        """
        if answer.status not in KEPT:
            return
        margin = answer.margin if math.isfinite(answer.margin) else None
        value = {"status": answer.status.value, "text": answer.text, "margin": margin, "model": answer.model}
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as draft:
                json.dump(value, draft)
            os.replace(draft.name, path)
        except OSError as error:
            raise UserError(
                f"cannot write {path} ({error.strerror}); answers are kept there; make room and run the command again"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class _Again(Exception):
    """Worth another attempt, after ``wait`` seconds if the endpoint said so. ``last`` is the answer if none follows."""

    def __init__(self, last: Reply, wait: float | None = None) -> None:
        super().__init__(last.reason)
        self.last, self.wait = last, wait


@dataclass(frozen=True)
class Request:
    """The fields of a chat completion beside the model's name; ``with_image`` says whether a picture is among them."""

    messages: list[dict[str, Any]]
    max_tokens: int
    with_image: bool


class Endpoint:
    """The connection to one endpoint; safe for several threads. Only this object holds the key; it never shows it."""

    def __init__(self, config: ApiConfig, *, rng: random.Random | None = None) -> None:
        self.config = config
        self._rng = rng or random.Random()
        self._pace = Pace(config.requests_per_minute)
        self._logprobs = config.logprobs == "auto"
        self._key = config.key()
        self._client = _client(config, self._key)

    def ask(self, request: Request, stop: threading.Event) -> Reply:
        """The answer, or the status of a request without one. ``stop`` ends the waiting between attempts.

        Raises:
            UserError: the endpoint refuses the key, the model or the account, so that no request can succeed.
        """
        last = _failed("stopped before it was sent")
        empty = 0
        for attempt in range(self.config.retries + 1):
            if stop.wait(self._pace.reserve()):
                return last
            try:
                return self._attempt(request)
            except _Again as again:
                last = again.last
                wait = backoff(attempt, self._rng) if again.wait is None else again.wait
            empty += last.status is Status.EMPTY
            if empty == 2:
                return last  # empty twice: no further attempt
            if wait > PATIENCE:
                return Reply(last.status, reason=f"{last.reason}; asked to wait {wait:g} s")
            if attempt < self.config.retries and stop.wait(wait):
                return last
        return Reply(last.status, reason=f"{last.reason} ({self.config.retries + 1} attempts)")

    def _attempt(self, request: Request) -> Reply:
        import openai

        fields = self._fields(request)
        try:
            answer = read_completion(self._send(fields))
        except openai.APIStatusError as error:
            return self._refused(error, request, with_logprobs="logprobs" in fields)
        except openai.APITimeoutError as error:
            raise _Again(_failed(f"no reply within {self.config.timeout:g} s")) from error
        except Garbage as error:
            raise _Again(_failed(self._clean(str(error)))) from error
        except (openai.OpenAIError, OSError, ValueError) as error:
            raise _Again(_failed(self._clean(_innermost(error)))) from error
        if answer.status is Status.EMPTY:
            raise _Again(answer)
        return replace(answer, text=self._without_key(answer.text), model=self._without_key(answer.model))

    def _send(self, fields: dict[str, Any]) -> bytes:
        """The body of the reply; the timeout covers all of it, however slowly it arrives.

        Raises:
            openai.OpenAIError: as the client does; OSError where the connection broke; Garbage for a reply too long.
        """
        import httpx2
        import openai

        begun = time.monotonic()
        call = self._client.chat.completions.with_streaming_response
        try:
            with call.create(model=self.config.model, **fields) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise Garbage(f"the reply is longer than {MOST_BYTES:,} bytes")
                    if time.monotonic() - begun > self.config.timeout:
                        raise openai.APITimeoutError(request=response.http_request)
                return body
        except httpx2.TimeoutException as error:  # while the body is read, the client does not translate errors
            raise openai.APITimeoutError(request=error.request) from error
        except httpx2.HTTPError as error:
            raise OSError(f"the connection broke: {error}") from error

    def _fields(self, request: Request) -> dict[str, Any]:
        fields: dict[str, Any] = {"messages": request.messages, self.config.token_field: request.max_tokens}
        if self.config.temperature is not None:
            fields["temperature"] = self.config.temperature
        if self._logprobs:
            fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        if self.config.extra_body:
            fields["extra_body"] = dict(self.config.extra_body)
        return fields

    def _refused(self, error: Any, request: Request, *, with_logprobs: bool) -> Reply:
        """The outcome that an error status means.

        Raises:
            _Again: another attempt may succeed.
            UserError: no request can succeed.
        """
        status, body = error.status_code, error.response.text
        reason = self._clean(f"{status}: {_message(body)}")
        kind = classify(status, body, with_image=request.with_image, with_logprobs=with_logprobs)
        if kind is FailureKind.STOP:
            raise UserError(f"{self.config.base_url} refuses {self.config.model}: {reason}; {self._way_out(status)}")
        if kind is FailureKind.NO_LOGPROBS:
            self._logprobs = False
            raise _Again(_failed(reason), wait=0.0)
        if kind is FailureKind.RETRY:
            wait = retry_after(error.response.headers.get("retry-after"))
            if wait is not None and wait <= PATIENCE and status in (429, 503):
                self._pace.hold(wait)
            raise _Again(_failed(reason), wait)
        statuses = {FailureKind.BLOCKED: Status.PROVIDER_BLOCKED, FailureKind.BAD_IMAGE: Status.BAD_IMAGE}
        return Reply(statuses.get(kind, Status.TRANSPORT_FAILED), reason=reason)

    def _way_out(self, status: int) -> str:
        if status in (401, 403):
            return f"look at the key in {self.config.key_env or 'no variable: model.key_env is not set'}"
        if status in (402, 429):
            return "add credit and run the same command again to go on"
        return "look at model.model and model.base_url"

    def _clean(self, text: str) -> str:
        """One line for a record."""
        return one_line(self._without_key(text))

    def _without_key(self, text: str) -> str:
        # Endpoints echo the key in their errors, and a hostile one may do so in its answers.
        return text.replace(self._key, "[key]") if self._key and len(self._key) >= SHORTEST_SECRET else text


def _client(config: ApiConfig, key: str | None) -> Any:
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; models over an API need it; pip install openai") from error

    def only_what_is_needed(request: Any) -> None:
        for name in list(request.headers):
            if name.lower() not in HEADERS:
                del request.headers[name]
        if key:
            request.headers["authorization"] = f"Bearer {key}"

    http = httpx2.Client(
        timeout=config.timeout,
        follow_redirects=False,  # the prompt and the key are for this endpoint alone
        trust_env=not config.local,  # a proxy cannot reach our loopback
        event_hooks={"request": [only_what_is_needed]},
        limits=httpx2.Limits(max_connections=config.concurrency),
    )
    # The client logs its headers in debug mode, so it gets a dummy key; the hook above adds the real one.
    return openai.OpenAI(api_key="unused", base_url=config.base_url, http_client=http, max_retries=0)


def _failed(reason: str) -> Reply:
    return Reply(Status.TRANSPORT_FAILED, reason=reason)


def _message(body: str) -> str:
    """The message in an error's body, or the whole body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    for field in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(field):
            value = value[field]
    return value if isinstance(value, str) else json.dumps(value)


def _innermost(error: BaseException) -> str:
    """The root cause: the client's own message is always "Connection error."."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
