"""Which checkpoint a run uses, and how to load it. Imports neither torch nor transformers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interp.errors import UserError
from interp.thoughts import check_marks

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
ORGANISM = "organism:"
OWN_KEYWORDS = ("messages", "add_generation_prompt")  # of a chat template, which every request sets
POSITIVE = ("memory_gib", "min_pixels", "max_pixels", "answer_tokens")


@dataclass(frozen=True)
class ModelConfig:
    """A checkpoint and how to load it.

    ``path`` is ``organism:<name>`` (bundled in ``interp/organisms``), a local folder, or a hub id ``owner/name``.
    ``revision`` is the hub's branch, tag or commit. ``dtype="auto"`` is float32 on a CPU and bfloat16 on a GPU.
    ``device="auto"`` is the GPU if there is one. ``device_map`` spreads a model over all GPUs and, if they are too
    small, this machine's memory, as accelerate's map of that name does. ``chat_template`` (Jinja) replaces the
    processor's own; ``template`` are its keywords (``{"enable_thinking": False}``). ``thinking`` names the marks of a
    thought (``interp.thoughts``), if they are not known: ``{"open": "<reflect>", "close": "</reflect>"}``.
    ``answer_tokens`` is how long an answer may be, a thought included, where the run says nothing else
    (``max_new_tokens``).

    ``min_pixels`` and ``max_pixels`` limit the area of pictures (height × width) in families that keep a picture's
    native resolution; None keeps the checkpoint's.

    ``force`` loads it also where its weights and one prompt seem not to fit (``interp.checkpoints.memory``).

    For people to read: ``family`` (the name of its row in the contract table), ``licence`` (of the weights), ``gated``
    (whether the hub asks for a login) and ``memory_gib`` (of the weights in bfloat16). ``memory_gib`` is also used if
    the size of the weights is not known.

    Raises:
        UserError: an empty path; an unknown dtype, device or map; both a device and a map; a size or limit that is not
            above 0.
    """

    name: str
    path: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    attn_implementation: str = "sdpa"
    family: str = ""
    licence: str = ""
    gated: bool = False
    memory_gib: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    chat_template: str | None = None
    template: dict[str, Any] | None = None
    thinking: dict[str, str] | None = None
    answer_tokens: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(
                f"model {self.name!r} has an empty path; it is {ORGANISM}<name>, a folder or a hub id; set model.path"
            )
        for name, known in (("dtype", DTYPES), ("device_map", (None, *DEVICE_MAPS))):
            if (value := getattr(self, name)) not in known:
                names = ", ".join(each for each in known if each)
                raise UserError(f"unknown {name} {value!r}; known: {names}; set model.{name} to one of them")
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UserError(
                f"unknown device {self.device!r}; known: auto, cpu, mps, cuda, cuda:<number>; set model.device"
            )
        for name in POSITIVE:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UserError(f"model.{name}={value} is not above 0; leave it out to keep the default")
        if self.device_map is not None and self.device != "auto":
            raise UserError(
                f"device {self.device} and device_map {self.device_map} are both given; both place the model; "
                "leave one out"
            )
        if self.template:
            check_keywords(self.template)
        if self.thinking is not None:
            check_marks(self.thinking)


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Check the keywords that a chat template is to be given: ``{"enable_thinking": False}``.

    Raises:
        UserError: a name that no template can read or that each request sets, or a value that is no JSON.
    """
    for name, value in keywords.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(f"model.template.{name}={value!r} cannot be written as JSON; give a JSON value") from error
        if name in OWN_KEYWORDS or not str(name).isidentifier():
            raise UserError(
                f"model.template.{name} is no keyword of a chat template, or each request sets it; leave it out"
            )


def is_other(recorded: str | None, here: str) -> bool:
    """Return whether two digests tell two models apart; one that is unknown or of another version does not."""
    return bool(recorded) and recorded != here and str(recorded).partition("@")[2] == here.partition("@")[2]
