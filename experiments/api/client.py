"""Requests to an endpoint, with retries and a rate limit. Every outcome has a type. Nothing is cached."""

import json
import math
import random
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock
from typing import Any

from experiments.api.config import SHORTEST_SECRET, TOKEN_FIELDS, ApiConfig
from experiments.api.reply import FailureKind, Garbage, Reply, classify, one_line, read_completion
from experiments.types import Status
from interp.errors import UserError

AT_MOST = re.compile(r"at most \d+ image", re.IGNORECASE)  # what vLLM says of more pictures than it was started for
SAME_REFUSALS = 5  # of requests in one wording, before any was answered: every further one would be refused too
MOST_BYTES = 64 << 20  # of a reply; vLLM lists tokens at each of the prompt's
MOST_BYTES_OF_TEXT = 8 << 20
TOP_LOGPROBS = 20  # the most that OpenAI lists
RETRIED = (408, 409, 429)  # and 500 or more
FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0  # seconds between attempts; they double
LONGEST_RETRY_AFTER = 60.0  # seconds that an endpoint may ask us to wait


class Endpoint:
    """The connection to one endpoint; safe for several threads. Only this object holds the key; it never shows it.

    Nothing more is sent while ``stop`` is set. Requests of all threads are evenly spaced.
    """

    def __init__(self, config: ApiConfig) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise UserError(
                f"{error.name} is not installed; models over an API need it; pip install {error.name}"
            ) from error
        self.config, self.stop, self._logprobs = config, Event(), config.logprobs == "auto"
        self._lock, self._free = Lock(), time.monotonic()  # when the next request may leave
        self._answered, self._refusals = False, Counter[str]()  # refusals by their words
        self.requests = 0  # sent for answers; attempts at the same one count once
        self._key = config.key()
        self._http = httpx2.Client(
            timeout=config.timeout,
            follow_redirects=False,  # the prompt and the key are for this endpoint alone
            trust_env=not config.local,  # a proxy cannot reach our loopback
            limits=httpx2.Limits(max_connections=config.concurrency),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )

    def ask(self, messages: list[dict[str, Any]], most: int, *, again: bool = True) -> Reply:
        """Return the answer to ``messages`` with at most ``most`` tokens, or the status of a request without one.

        Args:
            again: whether to ask for an empty or garbled answer once more.

        Raises:
            UserError: no request can succeed: the endpoint refuses the key, the model, the account or a field.
        """
        config = self.config
        fields: dict[str, Any] = {"messages": messages, config.token_field: most}
        if config.temperature is not None:
            fields["temperature"] = config.temperature
        if self._logprobs:
            fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        fields |= config.extra_body | config.rendering
        reply = self.send(fields)
        if reply.kind is FailureKind.NO_LOGPROBS:
            self._logprobs = False
            return self.ask(messages, most, again=again)
        if again and reply.kind is None and reply.status in (Status.EMPTY, Status.TRANSPORT_FAILED):
            return self.ask(messages, most, again=False)
        return reply

    def send(self, fields: dict[str, Any], *, prompt_tokens: int | None = None) -> Reply:
        """Return the reply to a chat request of these ``fields``, after all attempts.

        Args:
            prompt_tokens: see ``read_completion``.

        Raises:
            UserError: as ``ask``.
        """
        with self._lock:
            self.requests += 1
        try:
            status, body = self._attempted("chat/completions", fields)
            if status == 200:
                reply = read_completion(body, prompt_tokens=prompt_tokens)
            else:
                reply = self._refused(status, body.decode(errors="replace"), fields)
        except Garbage as error:
            reply = Reply(Status.TRANSPORT_FAILED, reason=str(error))
        except OSError as error:
            reply = Reply(Status.TRANSPORT_FAILED, reason=str(error), kind=FailureKind.FAILED)
        self._answered |= reply.status is not Status.TRANSPORT_FAILED
        text, thought, model, reason = map(self._without_key, (reply.text, reply.thought, reply.model, reply.reason))
        return replace(reply, text=text, thought=thought, model=model, reason=one_line(reason))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request to the server's own ``path`` (``/tokenize``), outside the protocol's.

        Raises:
            UserError: the server has no such path, or cannot be reached.
        """
        address = f"{self.config.base_url.rstrip('/').removesuffix('/v1')}{path}"
        value: Any = None
        try:
            status, raw = self._attempted(address, body)
            fault = f"answers {status}: {_message(raw.decode(errors='replace'))}"
            value = json.loads(raw) if status == 200 else None
        except (Garbage, OSError, ValueError) as error:
            fault = f"cannot be read ({error})"
        if not isinstance(value, dict) or not value:
            raise UserError(
                f"{address} {one_line(self._without_key(fault))}; model.engine=vllm needs a vLLM server that has "
                "model.model; check both, or set model.engine=null"
            )
        return value

    def _attempted(self, path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        """Return status and body of the reply, after all attempts.

        Raises:
            OSError: there is none.
            Garbage: it is too long.
        """
        import httpx2

        address = path if path.startswith("http") else f"{self.config.base_url.rstrip('/')}/{path}"
        delay, fault = FIRST_DELAY, "stopped before it was sent"
        for attempts_left in range(self.config.retries, -1, -1):
            with self._lock:
                start = max(time.monotonic(), self._free)
                self._free = start + 60 / (self.config.requests_per_minute or math.inf)
            if self.stop.wait(start - time.monotonic()):
                break
            wait = delay * random.uniform(0.75, 1)
            try:
                status, headers, body = self._once(address, {"model": self.config.model} | fields)
            except (httpx2.HTTPError, TimeoutError) as error:
                slow = isinstance(error, httpx2.TimeoutException | TimeoutError)
                fault = f"no reply within {self.config.timeout:g} s" if slow else f"{type(error).__name__}: {error}"
            else:
                with suppress(ValueError):
                    wait = float(headers.get("retry-after", wait))
                if not attempts_left or wait > LONGEST_RETRY_AFTER or not (status in RETRIED or status >= 500):
                    return status, body
            delay = min(2 * delay, LONGEST_DELAY)
            if attempts_left:
                self.stop.wait(wait)
        raise OSError(fault)

    def _once(self, address: str, fields: dict[str, Any]) -> tuple[int, Any, bytes]:
        """Return status, headers and body of a reply. The timeout covers all of it, however slowly it arrives."""
        start, most = time.monotonic(), MOST_BYTES_OF_TEXT if self.config.engine is None else MOST_BYTES
        with self._http.stream("POST", address, json=fields) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > most:
                    raise Garbage(f"the reply is longer than {most:,} bytes")
                if time.monotonic() - start > self.config.timeout:
                    raise TimeoutError
            return response.status_code, response.headers, bytes(body)

    def _refused(self, status: int, body: str, fields: dict[str, Any]) -> Reply:
        """Return the outcome that an error status means.

        Raises:
            UserError: no request can succeed.
        """
        pictured = any(isinstance(turn["content"], list) for turn in fields["messages"])
        kind = classify(status, body, with_image=pictured, with_logprobs="logprobs" in fields)
        reason = f"{status}: {_message(body)}"
        if AT_MOST.search(body):
            reason += "; start vLLM with --limit-mm-per-prompt '{\"image\": N}', with N pictures of a request"
        self._refusals[reason] += 1
        alike = status in (400, 422) and self._refusals[reason] >= SAME_REFUSALS and not self._answered
        if kind is FailureKind.STOP or (kind is FailureKind.FAILED and alike):
            raise UserError(
                f"{self.config.base_url} refuses {self.config.model}: {one_line(self._without_key(reason))}; "
                f"{self._way_out(status, body)}"
            )
        statuses = {FailureKind.BLOCKED: Status.PROVIDER_BLOCKED, FailureKind.BAD_IMAGE: Status.BAD_IMAGE}
        return Reply(statuses.get(kind, Status.TRANSPORT_FAILED), reason=reason, kind=kind)

    def _way_out(self, status: int, body: str) -> str:
        if status in (401, 403):
            return f"look at the key in {self.config.key_env or 'no variable: model.key_env is not set'}"
        if status in (402, 429):
            return "add credit and run the same command again to go on"
        if other := [name for name in TOKEN_FIELDS if name != self.config.token_field and name in body]:
            return f"set model.token_field={other[0]}"
        if status in (400, 422):
            return "every request is refused alike; change what its words name: model.temperature, model.extra_body, …"
        return "look at model.model and model.base_url"

    def _without_key(self, text: str) -> str:
        # Endpoints echo the key in their errors, and a hostile one may do so in its answers.
        return text.replace(self._key, "[key]") if self._key and len(self._key) >= SHORTEST_SECRET else text


def _message(body: str) -> str:
    """Return the message in an error's body, or the whole body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    for field in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(field):
            value = value[field]
    return value if isinstance(value, str) else json.dumps(value)
