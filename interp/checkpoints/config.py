"""Which checkpoint a run uses, and how to load it. Imports neither torch nor transformers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interp.errors import UserError
from interp.thoughts import check_marks

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
ORGANISM = "organism:"
OWN_KEYWORDS = ("messages", "add_generation_prompt")  # of a chat template, which every request sets
BOUNDS = ("min_pixels", "max_pixels", "longest_edge", "max_tiles")


@dataclass(frozen=True)
class ModelConfig:
    """A checkpoint and how to load it.

    ``path`` is ``organism:<name>`` (bundled in ``interp/organisms``), a local folder, or a hub id ``owner/name``.
    ``revision`` is the hub's branch, tag or commit. ``dtype="auto"`` is float32 on a CPU and bfloat16 on a GPU.
    ``device="auto"`` is the GPU if there is one. ``device_map`` spreads a model over all GPUs and, if they are too
    small, this machine's memory, as accelerate's map of that name does. ``trust_remote_code`` runs Python code from the
    checkpoint's repository. ``chat_template`` (Jinja) replaces the processor's own; ``template`` are its keywords
    (``{"enable_thinking": False}``). ``thinking`` names the marks of a thought (``interp.thoughts``), if they are not
    known: ``{"open": "<reflect>", "close": "</reflect>"}``. ``answer_tokens`` is how long an answer may be, a thought
    included, where the run says nothing else (``max_new_tokens``).

    Limits on picture size; None keeps the checkpoint's. ``min_pixels`` and ``max_pixels`` are areas (height × width)
    for families that keep a picture's native resolution. ``longest_edge`` is the side (pixels) that pictures are scaled
    to before tiling. ``max_tiles`` is the number of tiles. Which limits apply depends on the family
    (``interp.checkpoints.load.set_bounds``).

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
    trust_remote_code: bool = False
    family: str = ""
    licence: str = ""
    gated: bool = False
    memory_gib: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    longest_edge: int | None = None
    max_tiles: int | None = None
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
        if self.dtype not in DTYPES:
            raise UserError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}; set model.dtype to one of them")
        kind, _, number = self.device.partition(":")
        if kind not in DEVICES or (":" in self.device and not (kind == "cuda" and number.isdigit())):
            raise UserError(
                f"unknown device {self.device!r}; known: {', '.join(DEVICES)}, cuda:<number>; correct model.device"
            )
        if self.memory_gib is not None and not self.memory_gib > 0:
            raise UserError(f"memory_gib {self.memory_gib} is not above 0; leave it out if it is not known")
        if self.answer_tokens is not None and self.answer_tokens < 1:
            raise UserError(f"model.answer_tokens={self.answer_tokens} is below 1; an answer has one token or more")
        self._check_map()
        self._check_bounds()
        if self.template:
            check_keywords(self.template)
        if self.thinking is not None:
            check_marks(self.thinking)

    def _check_map(self) -> None:
        if self.device_map is not None and self.device_map not in DEVICE_MAPS:
            raise UserError(
                f"unknown device_map {self.device_map!r}; known: {', '.join(DEVICE_MAPS)}; set model.device_map=auto"
            )
        if self.device_map is not None and self.device != "auto":
            raise UserError(
                f"device {self.device} and device_map {self.device_map} are both given; both place the model; "
                "leave one out"
            )

    def _check_bounds(self) -> None:
        for name, value in self.pixel_bounds:
            if value < 1:
                raise UserError(f"model.{name}={value} is not above 0; null keeps the checkpoint's own")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise UserError(
                f"model.min_pixels={self.min_pixels} is above model.max_pixels={self.max_pixels}; change one of them"
            )

    @property
    def pixel_bounds(self) -> tuple[tuple[str, int], ...]:
        """Name and value of each limit that is set."""
        return tuple((name, value) for name in BOUNDS if (value := getattr(self, name)) is not None)


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Checks the keywords that a chat template is to be given: ``{"enable_thinking": False}``.

    Raises:
        UserError: a name that no template can read or that each request sets, or a value that is no JSON.
    """
    for name, value in keywords.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise UserError(f"model.template: {name!r} is no name that a chat template can read; names have letters, "
                            "digits and _; mend it")  # fmt: skip
        if name in OWN_KEYWORDS:
            raise UserError(f"model.template.{name} is set by the request itself; leave it out")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"model.template.{name}={value!r} cannot be written as JSON; a chat template is given texts, finite "
                "numbers, true, false, null, lists and objects of them; mend it"
            ) from error
