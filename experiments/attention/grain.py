"""How fine the attention maps of single cases are kept, so that a report of many stays one file. Imports no torch."""

from dataclasses import dataclass

FILE = "attention/cases.json"
BUDGET = 12_000_000  # bytes of all maps together
TYPICAL_WORDS = 80  # text tokens of a prompt, for the estimate


@dataclass(frozen=True)
class Grain:
    """How fine the maps are: answer tokens, cells a side of the picture, groups of heads (0: only their mean)."""

    tokens: int
    cells: int
    groups: int

    def bytes(self, layers: int) -> int:
        """Of one case under one arm."""
        return self.tokens * layers * (1 + self.groups) * (self.cells**2 + TYPICAL_WORDS)


# From fine to coarse; the first that fits is taken, else the last.
GRAINS = (Grain(3, 12, 4), Grain(3, 12, 2), Grain(2, 12, 2), Grain(2, 8, 2), Grain(2, 8, 0), Grain(1, 8, 0))


def finest(*, layers: int, maps: int) -> Grain:
    """The finest grain at which ``maps`` (cases × arms) of a model of ``layers`` layers fit the budget, or the last."""
    return next((grain for grain in GRAINS if grain.bytes(layers) * maps <= BUDGET), GRAINS[-1])
