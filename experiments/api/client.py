"""Requests to an endpoint: openai's client with its own retries, a rate limit, and a cache of answers on disk.

Every outcome has a type. Requests are evenly spaced. Each answer is cached in a file named by the hash of its request;
the cache holds neither prompts nor keys.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

from experiments.api.config import SHORTEST_SECRET, ApiConfig
from experiments.api.reply import FailureKind, Garbage, Reply, classify, first_token_list, one_line, read_completion
from experiments.runs.failure_text import failure_text
from experiments.runs.store import read_object
from experiments.types import Status
from interp.atomic import atomic_write
from interp.errors import UserError

KEPT = (Status.ANSWERED, Status.TRUNCATED)  # cached; any other outcome may differ next time
MOST_BYTES = 8 << 20  # of a reply
MOST_BYTES_OF_ENGINE = 64 << 20  # which lists tokens at each of the prompt's
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


class Failed(Exception):
    """A request without an answer, whose outcome is ``reply``."""

    def __init__(self, reply: Reply, kind: FailureKind = FailureKind.FAILED) -> None:
        super().__init__(reply.reason)
        self.reply, self.kind = reply, kind


class Pace:
    """Spaces the requests of all threads evenly."""

    def __init__(self, requests_per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 60 / requests_per_minute if requests_per_minute else 0.0
        self._clock = clock
        self._free = clock()  # when the next request may leave
        self._lock = Lock()

    def reserve(self) -> float:
        """Reserves the next free slot and returns the seconds until then."""
        with self._lock:
            moment = self._clock()
            start = max(moment, self._free)
            self._free = start + self._interval
            return start - moment


@dataclass(frozen=True)
class AnswerCache:
    """A cache of answers in ``folder``, which is created on first use. Safe for several threads and processes."""

    folder: Path

    def get(self, key: str) -> Reply | None:
        """The answer cached under ``key``; None where there is none, it cannot be read, or it is a failure's text."""
        cached = self.read(key)
        try:
            status, text, margin = Status(cached["status"]), cached["text"], cached["margin"]
        except (KeyError, ValueError):
            return None
        if status not in KEPT or not isinstance(text, str) or not isinstance(margin, float | int | None):
            return None
        if failure_text(text):  # kept before such texts were known
            return None
        value, model, bound = (
            math.nan if margin is None else float(margin),
            str(cached.get("model", "")),
            cached.get("bound"),
        )
        thought = str(cached.get("thought", ""))
        return Reply(status, text, "", value, model, bound if bound in (1, -1) else 0, thought)

    def put(self, key: str, answer: Reply) -> None:
        """Caches an answer of the model; other outcomes, and answers with a reason to doubt them, are not kept.

        Raises:
            UserError: the folder cannot be written.
        """
        if answer.status not in KEPT or answer.reason:
            return
        margin = answer.margin if math.isfinite(answer.margin) else None
        extras = {name: value for name in ("bound", "thought") if (value := getattr(answer, name))}
        self.write(
            key, {"status": answer.status.value, "text": answer.text, "margin": margin, "model": answer.model} | extras
        )

    def read(self, key: str) -> dict[str, Any]:
        """What ``write`` has put there; empty where there is nothing that can be read."""
        return read_object(self._path(key))

    def write(self, key: str, value: dict[str, Any]) -> None:
        """Caches any JSON object.

        Raises:
            UserError: the folder cannot be written.
        """
        path = self._path(key)
        try:
            with atomic_write(path) as draft:
                draft.write_text(json.dumps(value), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"cannot write {path} ({error.strerror}); answers are kept there; make room and run the command again"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class Endpoint:
    """The connection to one endpoint; safe for several threads. Only this object holds the key; it never shows it.

    Nothing more is sent while ``stop`` is set.
    """

    def __init__(self, config: ApiConfig) -> None:
        self.config, self.stop = config, Event()
        self._pace = Pace(config.requests_per_minute)
        self._logprobs = config.logprobs == "auto"
        self._key = config.key()
        self._client, self._http = _client(config, self._key, self._wait)

    def ask(self, messages: list[dict[str, Any]], max_tokens: int, *, with_image: bool, again: bool = True) -> Reply:
        """The answer to ``messages``, or the status of a request without one.

        An empty or garbled one is asked for ``again``, once. ``with_image`` says whether there is a picture in them.

        Raises:
            UserError: the endpoint refuses the key, the model or the account, so that no request can succeed.
        """
        fields = self._fields(messages, max_tokens)
        try:
            answer = read_completion(self.sent(fields, with_image=with_image))
        except Failed as failure:
            if failure.kind is FailureKind.NO_LOGPROBS:
                self._logprobs = False
                return self.ask(messages, max_tokens, with_image=with_image)
            return failure.reply
        except Garbage as error:
            answer = _failed(str(error))
        if again and answer.status in (Status.EMPTY, Status.TRANSPORT_FAILED):
            return self.ask(messages, max_tokens, with_image=with_image, again=False)
        text, thought, model = map(self._without_key, (answer.text, answer.thought, answer.model))
        return replace(answer, text=text, thought=thought, reason=self._clean(answer.reason), model=model)

    def sent(self, fields: dict[str, Any], *, with_image: bool) -> bytes:
        """The body of the reply to a chat request of these ``fields``, after all attempts.

        Raises:
            Failed: there is none.
            Garbage: a reply that breaks off, is too long or too slow.
            UserError: the endpoint refuses the key, the model or the account, so that no request can succeed.
        """
        import openai

        try:
            return self._send(fields)
        except openai.APIStatusError as error:
            status, body, logprobs = error.status_code, error.response.text, "logprobs" in fields
            kind = classify(status, body, with_image=with_image, with_logprobs=logprobs)
            if kind is FailureKind.NO_LOGPROBS:
                raise Failed(_failed(self._clean(f"{status}: {_message(body)}")), kind) from error
            raise Failed(self._refused(error, kind), kind) from error
        except openai.APITimeoutError as error:
            raise Failed(_failed(f"no reply within {self.config.timeout:g} s")) from error
        except Garbage:
            raise
        except (openai.OpenAIError, OSError, ValueError) as error:
            raise Failed(_failed(self._clean(_innermost(error)))) from error

    def first_list(self, messages: list[dict[str, Any]], *, with_image: bool) -> dict[str, float]:
        """The log-probabilities of the tokens that are listed for the first one of an answer, by their words.

        Raises:
            Failed: no reply, or none with such a list.
            UserError: as ``sent``.
        """
        fields = self._fields(messages, 1) | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        try:
            body = json.loads(self.sent(fields, with_image=with_image))
            listed = first_token_list(body["choices"][0].get("logprobs"))
        except (Garbage, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Failed(_failed(self._clean(f"no reply that can be read ({error})"))) from error
        if not listed:
            raise Failed(
                _failed("the reply lists no log-probabilities, which contrasts and protocol=score are read from")
            )
        return listed

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request to the server's own ``path`` (``/tokenize``), outside the protocol's.

        Raises:
            UserError: the server has no such path, or cannot be reached.
        """
        import httpx2

        address = self.config.base_url.rstrip("/").removesuffix("/v1") + path
        try:
            reply = self._http.post(address, json=body | {"model": self.config.model})
            value = reply.json() if reply.status_code == 200 else {}
        except (httpx2.HTTPError, ValueError) as error:
            raise UserError(
                f"{address} cannot be read ({self._clean(str(error))}); is the server still there?"
            ) from error
        if not isinstance(value, dict) or not value:
            raise UserError(
                f"{address} answers {reply.status_code}: {self._clean(_message(reply.text))}; model.engine=vllm needs "
                "a vLLM server that has model.model; look at both, or set model.engine=null"
            )
        return value

    def _wait(self) -> None:
        """Before each attempt, until its turn comes."""
        import openai

        if self.stop.wait(self._pace.reserve()):
            raise openai.OpenAIError("stopped before it was sent")

    def _send(self, fields: dict[str, Any]) -> bytes:
        """The body of the reply; the timeout covers all of it, however slowly it arrives.

        Raises:
            openai.OpenAIError: as the client does; Garbage for a reply that breaks off, is too long or too slow.
        """
        import httpx2

        begun, most = time.monotonic(), MOST_BYTES if self.config.engine is None else MOST_BYTES_OF_ENGINE
        call = self._client.chat.completions.with_streaming_response
        try:
            with call.create(model=self.config.model, **fields) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > most:
                        raise Garbage(f"the reply is longer than {most:,} bytes")
                    if time.monotonic() - begun > self.config.timeout:
                        raise Garbage(f"no reply within {self.config.timeout:g} s")
                return body
        except httpx2.HTTPError as error:  # while the body is read, the client does not translate errors
            raise Garbage(f"the connection broke: {error}") from error

    def _fields(self, messages: list[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"messages": messages, self.config.token_field: max_tokens}
        if self.config.temperature is not None:
            fields["temperature"] = self.config.temperature
        if self._logprobs:
            fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        if self.config.extra_body or self.config.rendering:
            fields["extra_body"] = self.config.extra_body | self.config.rendering
        return fields

    def _refused(self, error: Any, kind: FailureKind) -> Reply:
        """The outcome that an error status means.

        Raises:
            UserError: no request can succeed.
        """
        reason = self._clean(f"{error.status_code}: {_message(error.response.text)}")
        if kind is FailureKind.STOP:
            way_out = self._way_out(error.status_code)
            raise UserError(f"{self.config.base_url} refuses {self.config.model}: {reason}; {way_out}")
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


def _client(config: ApiConfig, key: str | None, wait: Callable[[], None]) -> Any:
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; models over an API need it; pip install openai") from error

    def only_what_is_needed(request: Any) -> None:
        wait()
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
    client = openai.OpenAI(api_key="unused", base_url=config.base_url, http_client=http, max_retries=config.retries)
    return client, http


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
