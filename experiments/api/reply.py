"""The one reader of an endpoint's replies: text, thought, log-probabilities, tokens. The input is not trusted."""

import json
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from experiments.runs.responses import BLOCKED, POLICY, failure_text
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
AROUND_TOKENS = " \t\r\n▁Ġ"
BEFORE = 8  # tokens before an answer that are kept with it
NOTHING = -9999.0  # vLLM's log-probability of what it does not list
WITHOUT = (
    "the reply lacks token ids or log-probabilities, which model.engine=vllm asks for; take vLLM 0.32 or later, or "
    "model.engine=null"
)


class FailureKind(StrEnum):
    """What an error status means, after all attempts."""

    BLOCKED = "blocked"
    BAD_IMAGE = "bad_image"
    NO_LOGPROBS = "no_logprobs"
    STOP = "stop"  # every further request would fail too
    FAILED = "failed"


@dataclass(frozen=True)
class Tokens:
    """What vLLM says of one request, token by token.

    Args:
        ids: the generated tokens.
        lists: for each of them, the log-probabilities of the named tokens by id; empty if none were asked for.
        before: the last tokens that the server read, of ``length``.
        lists_before: for each of these tokens, the log-probabilities of the likeliest tokens by id.
        ended: whether the model ended the answer.
    """

    ids: list[int]
    lists: list[dict[int, float]]
    before: list[int]
    lists_before: list[dict[int, float]]
    length: int
    ended: bool
    model: str = ""


@dataclass(frozen=True)
class Reply:
    """The outcome of one request.

    Args:
        model: the name under which the endpoint answered.
        thought: what the model thought before, if the endpoint gives it apart.
        listed: the log-probabilities of the tokens listed for the answer's first one, by their words.
        hidden: whether other tokens than the answer's are listed: it thought first.
        tokens: None unless vLLM's token ids were asked for.
        kind: of a refusal, or of a request that did not get through.
    """

    status: Status
    text: str = ""
    reason: str = ""
    model: str = ""
    thought: str = ""
    listed: dict[str, float] = field(default_factory=dict)
    hidden: bool = False
    tokens: Tokens | None = None
    kind: FailureKind | None = None


class Garbage(Exception):
    """A reply that does not follow the protocol; another attempt may succeed."""


def read_completion(raw: bytes, *, prompt_tokens: int | None = None) -> Reply:
    """Return the answer in the body of a reply with status 200.

    Args:
        prompt_tokens: if vLLM's token ids were asked for, how many of the prompt's are returned, the last ones.

    Raises:
        Garbage: it is not a chat completion, or lacks token ids that were asked for.
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
    message, finish, fault = choice.get("message"), _finish(choice), choice.get("error")
    model = one_line(str(body.get("model") or ""))
    blocked = finish.partition(":")[0].strip() in BLOCKED
    if not isinstance(message, dict) and not blocked:
        raise Garbage("the reply has no message")
    message = message if isinstance(message, dict) else {}
    text, thought = _text(message), _thought(message)
    if blocked:
        return Reply(Status.PROVIDER_BLOCKED, text, f"finish_reason {one_line(finish)}", model=model)
    if finish not in CUT and (finish in BROKEN or fault or failure_text(text)):
        what = f"finish_reason {finish or 'missing'}" + (f", {json.dumps(fault)}" if fault else "")
        return Reply(Status.TRANSPORT_FAILED, reason=one_line(what if finish in BROKEN or fault else text), model=model)
    listed, hidden = _first_list(choice.get("logprobs"), text, bool(thought) or _thought_unseen(body))
    if finish in CUT:  # without any text, its thought was cut off
        status, reason = Status.TRUNCATED, ""
    elif not text:
        status, reason = Status.EMPTY, f"no text; finish_reason {one_line(finish) or 'missing'}"
    else:
        status, reason = Status.ANSWERED, "" if finish in ENDED else f"finish_reason {one_line(finish)}"
    tokens = None if prompt_tokens is None else _tokens(body, finish, prompt_tokens)
    return Reply(status, text, reason, model, thought, listed, hidden, tokens)


def _thought_unseen(body: dict[str, Any]) -> bool:
    """Return whether the endpoint counts tokens of a thought."""
    try:
        return int(body["usage"]["completion_tokens_details"]["reasoning_tokens"]) > 0
    except (TypeError, KeyError, ValueError):
        return False


def _first_list(logprobs: Any, text: str, thought: bool) -> tuple[dict[str, float], bool]:
    """Return the tokens listed for the answer's first one, and whether others are listed instead.

    An endpoint may keep a thought to itself but list its tokens. So the listed tokens must spell the answer: from the
    first one if nothing was thought, else from any one to the end.
    """
    try:
        steps = [(str(step["token"]), step["top_logprobs"]) for step in logprobs["content"]]
        first = 0
        if steps and (thought or not text.startswith(steps[0][0].strip(AROUND_TOKENS))):
            spelt = ["".join(token for token, _ in steps[start:]).strip() for start in range(len(steps))]
            if not text or text not in spelt:
                return {}, True
            first = spelt.index(text)
        listed = {str(each["token"]): float(each["logprob"]) for each in steps[first][1]}
    except (TypeError, KeyError, ValueError, IndexError):
        return {}, False
    return {token: value for token, value in listed.items() if math.isfinite(value)}, False


def _tokens(body: dict[str, Any], finish: str, count: int) -> Tokens:
    """Return token ids and their lists; ``count`` of the tokens that the server read."""
    try:
        choice, prompt = body["choices"][0], [int(token) for token in body["prompt_token_ids"]]
        content = (choice.get("logprobs") or {}).get("content") or []
        lists = [
            {int(each["token"].removeprefix("token_id:")): float(each["logprob"]) for each in step["top_logprobs"]}
            for step in content
        ]
        given = (body.get("prompt_logprobs") or [])[-count:]
        return Tokens(
            ids=[int(token) for token in choice["token_ids"]],
            lists=[{token: value for token, value in step.items() if value > NOTHING} for step in lists],
            before=prompt[-count:],
            lists_before=[
                {int(token): float(each["logprob"]) for token, each in (step or {}).items()} for step in given
            ],
            length=len(prompt),
            ended=finish not in CUT,
            model=str(body.get("model") or ""),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise Garbage(WITHOUT) from error


def classify(status: int, body: str, *, with_image: bool, with_logprobs: bool) -> FailureKind:
    """Return the meaning of a reply with an error status; ``body`` is its text."""
    if status in (400, 403, 422, 451) and POLICY.search(body):
        return FailureKind.BLOCKED
    if status in (400, 404, 422, 501) and with_logprobs and re.search("log_?prob", body, re.IGNORECASE):
        return FailureKind.NO_LOGPROBS
    if with_image and (status == 413 or (status in (400, 415, 422) and IMAGE.search(body))):
        return FailureKind.BAD_IMAGE
    if status in (401, 402, 403, 404, 405) or (status == 429 and "insufficient_quota" in body):
        return FailureKind.STOP
    return FailureKind.FAILED


def one_line(text: str) -> str:
    """Return one printable line of at most 300 characters, for reasons: no control codes, no lone surrogates."""
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
    """Return why the answer ended, in lower case; SGLang gives an object with a type."""
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    return str(reason or "").strip().lower()


def _text(message: dict[str, Any]) -> str:
    """Return the content, or the refusal that some endpoints put into a separate field."""
    content = message.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        return ""
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    return content.encode("utf-8", "replace").decode("utf-8").strip()


def _thought(message: dict[str, Any]) -> str:
    """Return the thought: ``reasoning`` (vLLM, OpenRouter) or ``reasoning_content`` (DeepSeek, SGLang)."""
    given = message.get("reasoning") or message.get("reasoning_content")
    return _text({"content": given}) if isinstance(given, str) else ""


def word_of(token: str) -> str:
    """Return a token's word, in lower case and without surrounding characters."""
    return token.strip(f"{AROUND_TOKENS}\"'*.,:").lower()
