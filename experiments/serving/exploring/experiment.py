"""One experiment, whole: picture, words, arms, and what is changed inside. All that a request carries, checked.

The page's address holds the same values, ``answers`` computes them. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from experiments.serving.server import BadRequest

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
LONGEST = 20_000  # characters of a request
CELLS = 12  # of a side of the grid that is painted on
Action = Literal["ask", "look", "heads", "lens", "windows", "patch", "occlude"]
Layers = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


@dataclass(frozen=True, config=STRICT)
class Arm:
    """A way of answering by its name, with the settings that differ from its own."""

    name: Annotated[str, Field(max_length=200)] = "baseline"
    settings: dict[Annotated[str, Field(max_length=60)], float | int | bool | str | None] = field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Change:
    """What is different inside while an arm answers; layers are the first and the last of a run of decoder layers.

    ``cut``: the verdict does not see the picture there. ``grey``: cells of a 12 × 12 grid, row by row, painted over.
    ``attention``: logits added to attention on the picture, in ``attended`` layers (None: all).
    """

    cut: Layers | None = None
    grey: tuple[Annotated[int, Field(ge=0, lt=CELLS * CELLS)], ...] = ()
    attention: Annotated[float, Field(ge=-20, le=20)] = 0.0
    attended: Layers | None = None

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """Return the painted cells, joined along rows, as shares of the picture's sides (``interp.grey_out``)."""
        rows: list[tuple[int, int, int]] = []
        for cell in sorted(set(self.grey)):
            row, column = divmod(cell, CELLS)
            if rows and rows[-1][0] == row and rows[-1][2] == column:
                rows[-1] = (row, rows[-1][1], column + 1)
            else:
                rows.append((row, column, column + 1))
        return [(left / CELLS, row / CELLS, right / CELLS, (row + 1) / CELLS) for row, left, right in rows]


@dataclass(frozen=True, config=STRICT)
class Experiment:
    """What is asked. ``picture`` and ``other`` are names (``experiments.serving.pictures``), "" for none.

    ``framed``: whether the question of the benchmark (is this safe, Yes or No?) stands around the words. ``arms`` are
    the one or two that answer; what looks inside looks at the arm of number ``arm``.
    """

    action: Action = "ask"
    picture: Annotated[str, Field(max_length=300)] = ""
    text: Annotated[str, Field(max_length=LONGEST)] = ""
    framed: bool = True
    arms: Annotated[tuple[Arm, ...], Field(min_length=1, max_length=2)] = (Arm(),)
    arm: Annotated[int, Field(ge=0, le=1)] = 0
    change: Change = Change()
    other: Annotated[str, Field(max_length=300)] = ""
    tokens: Annotated[int, Field(ge=1, le=512)] = 16

    @property
    def looked_at(self) -> Arm:
        """Return the examined arm."""
        return self.arms[min(self.arm, len(self.arms) - 1)]


_READ = TypeAdapter(Experiment)


def read_experiment(value: Any) -> Experiment:
    """Return the experiment in a parsed request.

    Raises:
        BadRequest: it is none; names the first fault.
    """
    try:
        return _READ.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise BadRequest(f"{_place(first['loc'])}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _place(where: Sequence[int | str]) -> str:
    return ".".join(str(part)[:60] for part in where) or "the request"
