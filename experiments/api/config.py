"""A model behind an OpenAI-compatible endpoint: where it is and how it is asked. Imports neither torch nor openai.

The key is named by its environment variable and never held here: this object is printed, hashed and written to disk.
"""

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from interp.checkpoints.config import check_keywords
from interp.errors import UserError
from interp.thoughts import check_marks

TOKEN_FIELDS = ("max_tokens", "max_completion_tokens")
CHOICES = {"token_field": TOKEN_FIELDS, "logprobs": ("off", "auto"), "engine": (None, "vllm")}
LOWEST = {"concurrency": 1, "timeout": 0.01, "retries": 0, "max_tokens": 1, "temperature": 0,
          "requests_per_minute": 0.01, "max_image_side": 1}  # fmt: skip
KEYWORDS = "chat_template_kwargs"  # what vLLM and SGLang call the keywords of a chat template
SHORTEST_SECRET = 8  # characters; what is shorter is a placeholder ("EMPTY") that a local server is content with
# What a request is made of anyway; ``extra_body`` may add to it and not replace it.
OWN_FIELDS = ("model", "messages", "temperature", "logprobs", "top_logprobs", "stream", "n", *TOKEN_FIELDS)


@dataclass(frozen=True)
class ApiConfig:
    """One model of one endpoint.

    Args:
        base_url: ends before ``/chat/completions``.
        key_env: the environment variable that holds the key; None for a server that asks for none.
        temperature: None leaves it to the endpoint.
        max_tokens: replaces the run's ``max_new_tokens``. Models that reason unseen need room for it.
        token_field: the field of a request that holds the number of tokens.
        requests_per_minute: None sets no pace.
        timeout: seconds of one attempt.
        retries: attempts after the first.
        logprobs: ``auto`` asks for log-probabilities, and goes on without them if the endpoint has none.
        max_image_side: larger pictures are scaled down to it (pixels).
        engine: ``vllm`` asks in vLLM's own words: for tokens by their ids and for the log-probabilities of a prompt
            (``experiments.api.engine``).
        extra_body: is sent along with every request.
        template: is sent as its ``chat_template_kwargs``: the keywords of the server's chat template.
        thinking: the marks of a thought in a reply's text, if they are not known (``interp.thoughts``).

    Raises:
        UserError: an address that is not http(s), holds a secret or a query, or a value out of range.
    """

    name: str
    model: str
    base_url: str
    key_env: str | None = None
    temperature: float | None = 0.0
    max_tokens: int | None = None
    token_field: str = "max_tokens"
    concurrency: int = 8
    requests_per_minute: float | None = None
    timeout: float = 300.0
    retries: int = 6
    logprobs: str = "off"
    max_image_side: int | None = None
    engine: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] | None = field(default=None, repr=False)
    thinking: dict[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError(f"model {self.name!r} names no model of its endpoint; set model.model=<its id there>")
        _check_address(self.base_url)
        # The value is not repeated: whoever mistakes this field for the key's would see it written out.
        if self.key_env is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", self.key_env):
            raise UserError(
                "model.key_env is not the name of an environment variable (capitals, digits, '_'); it names the "
                "variable with the key and is never the key itself; correct it"
            )
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                allowed = ", ".join(map(str, choices))
                raise UserError(f"model.{name}={value!r} is not known; known: {allowed}; choose one")
        for name, low in LOWEST.items():
            if (value := getattr(self, name)) is not None and not low <= value < float("inf"):
                raise UserError(f"model.{name}={value} is out of range; it is at least {low:g}; mend it")
        if reserved := sorted(set(self.extra_body) & set(OWN_FIELDS)):
            raise UserError(f"model.extra_body.{reserved[0]} is set by the request itself; remove it")
        if self.thinking is not None:
            check_marks(self.thinking)
        if self.template:
            check_keywords(self.template)
            if KEYWORDS in self.extra_body:
                raise UserError(f"model.extra_body.{KEYWORDS} and model.template are both set; set only one of them")

    @property
    def rendering(self) -> dict[str, Any]:
        """Return a request's arguments for the server's chat template; empty if there are none."""
        return {KEYWORDS: dict(self.template)} if self.template else {}

    @property
    def by_token(self) -> bool:
        """Return whether the server is asked for tokens by their ids."""
        return self.engine is not None and self.logprobs != "off" and self.temperature == 0

    @property
    def local(self) -> bool:
        """Return whether the endpoint is this machine."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    def key(self) -> str | None:
        """Return the key from the environment; None if the endpoint needs none.

        Raises:
            UserError: the key is not in the environment, is in the configuration, or would travel unencrypted. The
                sentence never holds the key.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            if self.local:
                return None
            raise UserError(f"{self.key_env} is not set; {self.name} needs a key; export {self.key_env}=<your key>")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UserError(f"{self.key_env} has characters that no key has; set it to only the key")
        if len(key) >= SHORTEST_SECRET and key in f"{self!r}{self.template}":
            raise UserError(f"the key in {self.key_env} is also in the configuration, which is saved; remove it there")
        if urlsplit(self.base_url).scheme != "https" and not self.local:
            raise UserError(
                f"{self.base_url} is not encrypted, and the key in {self.key_env} would be sent to it; use https, a "
                "tunnel to 127.0.0.1, or model.key_env=null if the server needs no key"
            )
        return key

    def identity(self) -> dict[str, Any]:
        """Return every setting that can change an answer, without secrets."""
        names = ("model", "base_url", "temperature", "max_tokens", "logprobs", "max_image_side", "extra_body")
        engine = {} if self.engine is None else {"engine": self.engine}
        return {name: getattr(self, name) for name in names} | engine | self.rendering


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  # a property that raises
    except ValueError:
        parts = urlsplit("")
    if parts.username or parts.password or parts.query or parts.fragment:
        # Again without the value, which may hold a secret.
        raise UserError(
            "model.base_url holds a user name, a query or a fragment; it is saved with every run and may hold no "
            "secret; give only the address, and put the key into the variable that model.key_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"model.base_url={address!r} is not an http(s) address; e.g. http://127.0.0.1:8000/v1")
