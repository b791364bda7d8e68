"""One of several processes of a launch where there is but one: it waits for nobody."""

from dataclasses import dataclass
from typing import TypeVar

from experiments.runs.launch import Launch

T = TypeVar("T")


@dataclass(frozen=True)
class Alone(Launch):
    """Rank ``rank`` of ``size``, and no other is there."""

    def everyones(self, value: T) -> list[T]:
        return [value]
