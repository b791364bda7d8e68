"""Which model a run uses and how it is held in memory. Imports neither torch nor transformers, so it is checked first."""

from dataclasses import dataclass
from typing import Literal, get_args

from interp.errors import UserError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)
ORGANISM_PREFIX = "organism:"


@dataclass(frozen=True)
class ModelConfig:
    """A checkpoint and how to load it.

    ``path`` is ``organism:<name>`` (bundled in ``interp/organisms``), a local folder, or a hub id. ``revision`` is a hub
    branch, tag or commit. ``dtype="auto"`` is float32 on a CPU and bfloat16 on a GPU; ``device="auto"`` is the GPU where
    there is one. ``memory_gib`` is what the weights need in bfloat16, ``licence`` that of the weights; both are for
    people to read.

    Raises:
        UserError: an empty path, or a dtype or device that is none.
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

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(
                f"model {self.name!r} has an empty path; it must be organism:<name>, a local folder or a hub id; "
                "set model.path"
            )
        if self.dtype not in DTYPES:
            raise UserError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}; set model.dtype to one of them")
        if self.device.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise UserError(
                f"device {self.device!r} is not auto, cpu, cuda, cuda:<number> or mps; set model.device to one of them"
            )
        if self.memory_gib is not None and self.memory_gib <= 0:
            raise UserError(f"memory_gib {self.memory_gib} is not above 0; leave it out where it is not known")
