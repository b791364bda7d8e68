"""What may be chosen: a method and the values its fields may take. Imports neither torch nor transformers."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from interp.errors import UserError
from mitigation.method import TrainableMethod
from mitigation.wrappers import Shifted


@dataclass(frozen=True)
class Candidate:
    """A mitigation under choice.

    ``method`` answers as it is, or learns first (``mitigation.method``); ``grid`` maps fields of the method that
    answers to the values to try, all combinations of which are settings. With ``threshold`` a constant on the Yes/No
    margin is chosen beside each; without it the constant is 0.
    """

    method: Any
    grid: dict[str, list[Any]] = field(default_factory=dict)
    threshold: bool = True

    def __post_init__(self) -> None:
        """Checks method and grid.

        Raises:
            UserError: not a method, or a field of the grid without values or with one of them twice.
        """
        if not callable(getattr(self.method, "generate", None)) and not self.learns:
            raise UserError(f"method={self.method!r}: is no method; give one of those in conf/method/")
        for name, values in self.grid.items():
            if not values or len({repr(value) for value in values}) < len(values):
                raise UserError(f"grid.{name}={values}: must be a list of one or more different values")

    @property
    def learns(self) -> bool:
        """Whether the method has to see labelled cases first."""
        return isinstance(self.method, TrainableMethod)

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination of values, the first field slowest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


def set_to(method: Any, setting: Mapping[str, Any], *, shift: float = 0.0) -> Any:
    """``method`` with these fields, and with ``shift`` logits more on its Yes/No margin than it has then.

    Raises:
        UserError: a field that the method does not have, or a value that it refuses.
    """
    inner, own = (method.method, method.shift) if isinstance(method, Shifted) else (method, 0.0)
    known = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
    if unknown := [name for name in setting if name not in known]:
        raise UserError(f"{type(inner).__name__} has no field {unknown[0]!r}; known: {', '.join(known)}; mend its grid")
    changed = dataclasses.replace(inner, **setting) if setting else inner
    if "shift" in known:  # a constant is all that this method is
        return dataclasses.replace(changed, shift=changed.shift + own + shift)
    return Shifted(changed, own + shift) if own + shift else changed


def name_of(setting: Mapping[str, Any]) -> str:
    """A setting in words, for tables and the records of choosing."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in setting.items()
    )
