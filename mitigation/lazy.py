"""A second branch that is forwarded only where it can matter, in groups of rows (exact; specs: vcd, "An exact saving").

Where one token alone passes the plausibility cutoff, the contrast cannot change the choice. Such a row's step is left
out; if a later one needs the branch, what was left out is caught up in one chunk. Knows nothing of scores.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mitigation.branch import SecondBranch

# More groups fit the rows more tightly and read the weights more often a step: the last one takes all rows left over.
MAX_GROUPS = 4


@dataclass(frozen=True)
class Skips:
    """What one ``generate`` call cost, in rows: ``steps`` counts row × step, while the row had not ended.

    ``skipped`` of them were decided without the second branch. ``prefills`` rows had their noised prompt forwarded,
    ``skipped_prefills`` never.
    """

    steps: int = 0
    skipped: int = 0
    prefills: int = 0
    skipped_prefills: int = 0


class Consulted(NamedTuple):
    """The second branch's float32 logits for ``rows``; ``where`` is their tensor, or None for all rows in order."""

    rows: frozenset[int]
    where: Int[Tensor, "some"] | None
    logits: Float[Tensor, "some vocab"]


@dataclass
class _Group:
    branch: SecondBranch
    rows: frozenset[int]
    index: Int[Tensor, "some"] | None
    fed: int | None = None  # generated tokens that the branch has seen; None before its prompt

    def advance(self, generated: Int[Tensor, "row new"]) -> Consulted:
        """Catches up with everything generated so far. No group is asked twice at one step."""
        own = generated if self.index is None else generated.index_select(0, self.index)
        if self.fed is None:
            self.fed, logits = 0, self.branch.start()
        if own.shape[1] > self.fed:
            logits = self.branch.extend(own[:, self.fed :])
            self.fed = own.shape[1]
        return Consulted(self.rows, self.index, logits)


class LazyBranch:
    """``whole`` is the eager branch over all rows, of which only parts are ever started."""

    def __init__(self, whole: SecondBranch) -> None:
        self._whole = whole
        self.reset()

    def reset(self) -> None:
        """Forgets everything, for another call of ``generate``."""
        self._groups: list[_Group] = []

    @property
    def started(self) -> int:
        """Rows whose prompt was forwarded."""
        return sum(len(group.rows) for group in self._groups)

    def consult(self, generated: Int[Tensor, "row new"], *, unsure: Set[int], alive: Sequence[int]) -> list[Consulted]:
        """Logits for at least the rows ``unsure``, after the tokens ``generated`` so far.

        Rows that need the branch for the first time together form a group. ``alive`` are the rows not yet ended.
        """
        if not unsure:
            return []
        groups = [group for group in self._groups if unsure & group.rows]
        known = frozenset().union(*(group.rows for group in self._groups))
        if new := unsure - known:
            last = len(self._groups) == MAX_GROUPS - 1
            groups.append(self._group(sorted(set(alive) - known if last else new), len(generated)))
        return [group.advance(generated) for group in groups]

    def _group(self, rows: list[int], total: int) -> _Group:
        if len(rows) == total:
            group = _Group(self._whole, frozenset(rows), None)
        else:
            index = torch.tensor(rows, device=self._whole.prompt_ids.device)
            group = _Group(self._whole.part(rows), frozenset(rows), index)
        self._groups.append(group)
        return group
