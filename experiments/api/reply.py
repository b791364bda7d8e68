"""Parsing of an endpoint's replies. The input is not trusted."""

import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from experiments.runs.failure_text import BLOCKED, POLICY, failure_text
from experiments.types import Status

CUT = {"length", "max_tokens", "max_output_tokens", "max_length", "model_length"}
# What stands there where the answer came to its end; anything else is noted with the answer, which is not cached.
ENDED = {"", "stop", "eos", "eos_token", "end_turn", "stop_sequence", "completed", "tool_calls", "function_call"}
# Where the server broke off: OpenRouter and Mistral, vLLM and SGLang, Zhipu, DeepSeek.
BROKEN = {
    *("error", "abort", "aborted", "cancelled", "canceled", "network_error", "server_error", "timeout"),
    "insufficient_system_resource",
}
FAULTY = (
    r"(invalid|unsupported|not supported|corrupt|unable|could not|cannot|can't|fail|too (large|big|small)"
    r"|exceed|decod|format|must be)"
)
IMAGE = re.compile(rf"{FAULTY}.{{0,80}}\bimages?\b|\bimages?\b.{{0,80}}{FAULTY}", re.IGNORECASE | re.DOTALL)
LONGEST_REASON = 300


@dataclass(frozen=True)
class Reply:
    """The outcome of one request. ``margin`` is log P(Yes) − log P(No) at the first token, NaN where not reported."""

    status: Status
    text: str = ""
    reason: str = ""
    margin: float = math.nan
    model: str = ""  # the name under which the endpoint answered
    bound: int = 0  # the margin is at least (1) or at most (-1) that much; 0: it is exact
    thought: str = ""  # what it thought before, where the endpoint gives it apart


class Garbage(Exception):
    """A reply that does not follow the protocol; another attempt may succeed."""


class FailureKind(StrEnum):
    """What an error status means, after all attempts."""

    BLOCKED = "blocked"
    BAD_IMAGE = "bad_image"
    NO_LOGPROBS = "no_logprobs"
    STOP = "stop"  # every further request would fail too
    FAILED = "failed"


def read_completion(raw: bytes) -> Reply:
    """The answer in the body of a reply with status 200.

    Raises:
        Garbage: it is not a chat completion.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"the reply is not JSON: {one_line(raw[:80].decode(errors='replace'))!r}") from error
    if not isinstance(body, dict):
        raise Garbage("the reply is not a JSON object")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return _without_choice(body)
    choice = choices[0]
    message = choice.get("message")
    finish = _finish(choice)
    blocked = finish.partition(":")[0].strip() in BLOCKED
    if not isinstance(message, dict):
        if blocked:
            return Reply(Status.PROVIDER_BLOCKED, reason=f"finish_reason {one_line(finish)}")
        raise Garbage("the reply has no message")
    text, thought = _text(message), _thought(message)
    model = one_line(str(body.get("model") or ""))
    if blocked:
        return Reply(Status.PROVIDER_BLOCKED, text, f"finish_reason {one_line(finish)}", model=model)
    fault = choice.get("error")
    if finish not in CUT and (finish in BROKEN or fault or failure_text(text)):
        what = f"finish_reason {finish or 'missing'}" + (f", {json.dumps(fault)}" if fault else "")
        return Reply(Status.TRANSPORT_FAILED, reason=one_line(what if finish in BROKEN or fault else text), model=model)
    if not text and thought and finish in CUT:
        return Reply(Status.TRUNCATED, model=model, thought=thought)
    if not text:
        why = f"no text; finish_reason {one_line(finish) or 'missing'}"
        return Reply(Status.EMPTY, reason=why, model=model, thought=thought)
    margin, bound = first_token_margin(choice.get("logprobs"))
    if finish in CUT:
        return Reply(Status.TRUNCATED, text, "", margin, model, bound, thought)
    unknown = "" if finish in ENDED else f"finish_reason {one_line(finish)}"
    return Reply(Status.ANSWERED, text, unknown, margin, model, bound, thought)


def classify(status: int, body: str, *, with_image: bool, with_logprobs: bool) -> FailureKind:
    """What a reply with an error status means; ``body`` is its text."""
    if status in (400, 403, 422, 451) and POLICY.search(body):
        return FailureKind.BLOCKED
    if status in (400, 404, 422, 501) and with_logprobs and re.search("log_?prob", body, re.IGNORECASE):
        return FailureKind.NO_LOGPROBS
    if with_image and (status == 413 or (status in (400, 415, 422) and IMAGE.search(body))):
        return FailureKind.BAD_IMAGE
    if status in (401, 402, 403, 404, 405) or (status == 429 and "insufficient_quota" in body):
        return FailureKind.STOP
    return FailureKind.FAILED


def first_token_margin(logprobs: Any) -> tuple[float, int]:
    """log P(Yes) − log P(No) over the listed first tokens, NaN where neither word is among them; and ``Reply.bound``.

    Endpoints list only the most likely tokens. If one of the two words is not listed, the least likely listed token
    replaces it. The margin is then a lower bound in absolute value.
    """
    listed = first_token_list(logprobs)
    found = [[value for token, value in listed.items() if word_of(token) == word] for word in ("yes", "no")]
    if not any(found):
        return math.nan, 0
    yes, no = (_log_sum(values) if values else min(listed.values()) for values in found)
    return yes - no, bool(found[0]) - bool(found[1])


def first_token_list(logprobs: Any) -> dict[str, float]:
    """The tokens that a reply lists for its first, with their log-probabilities; empty where it lists none."""
    try:
        listed = [(str(entry["token"]), float(entry["logprob"])) for entry in logprobs["content"][0]["top_logprobs"]]
    except (TypeError, KeyError, IndexError, ValueError):
        return {}
    return {token: value for token, value in listed if math.isfinite(value)}


def one_line(text: str) -> str:
    """One printable line of at most 300 characters, for reasons: no control codes, no lone surrogates."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _without_choice(body: dict[str, Any]) -> Reply:
    error = body.get("error")
    body_text = json.dumps({k: v for k, v in body.items() if k != "usage"})
    if POLICY.search(body_text):
        return Reply(Status.PROVIDER_BLOCKED, reason=one_line(body_text))
    raise Garbage(
        f"an error in place of an answer: {one_line(json.dumps(error))}" if error else "the reply has no choice"
    )


def _finish(choice: dict[str, Any]) -> str:
    """Why the answer ended, in lower case; SGLang gives an object with a type."""
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    return str(reason or "").strip().lower()


def _text(message: dict[str, Any]) -> str:
    """The content, or the refusal that some endpoints put into a separate field."""
    content = message.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        return ""
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    return content.encode("utf-8", "replace").decode("utf-8").strip()


def _thought(message: dict[str, Any]) -> str:
    """What the model thought first: ``reasoning`` (vLLM, OpenRouter) or ``reasoning_content`` (DeepSeek, SGLang)."""
    given = message.get("reasoning") or message.get("reasoning_content")
    return _text({"content": given}) if isinstance(given, str) else ""


def word_of(token: str) -> str:
    """A token's word, in lower case and without what stands around it."""
    return token.strip(" \t\r\n▁Ġ\"'*.,:").lower()


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))
