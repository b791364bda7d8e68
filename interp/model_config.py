"""Which model a run uses and how it is held in memory. Imports neither torch nor transformers."""

from dataclasses import dataclass
from typing import Literal, get_args

from interp.errors import UserError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)
DEVICES = ("auto", "cpu", "cuda", "mps")
ORGANISM = "organism:"


@dataclass(frozen=True)
class ModelConfig:
    """A checkpoint and how to load it.

    ``path`` is ``organism:<name>`` (bundled in ``interp/organisms``), a local folder, or a hub id ``owner/name``, of
    which ``revision`` is a branch, tag or commit. ``dtype="auto"`` is float32 on a CPU and bfloat16 on a GPU;
    ``device="auto"`` is the GPU where there is one. ``chat_template`` (Jinja) replaces the processor's own, for
    checkpoints that ship none. ``licence`` is that of the weights and ``memory_gib`` what they need in bfloat16; both
    are for people to read.

    Raises:
        UserError: an empty path, an unknown dtype or device, or a memory need that is not above 0.
    """

    name: str
    path: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    attn_implementation: str = "sdpa"
    trust_remote_code: bool = False
    licence: str = ""
    memory_gib: float | None = None
    chat_template: str | None = None

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
                f"unknown device {self.device!r}; known: {', '.join(DEVICES)}, cuda:<number>; mend model.device"
            )
        if self.memory_gib is not None and not self.memory_gib > 0:
            raise UserError(f"memory_gib {self.memory_gib} is not above 0; leave it out where it is not known")
