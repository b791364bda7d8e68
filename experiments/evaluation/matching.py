"""Which cases are looked at: failures of one arm and, within each subset, successes that are as alike as can be.

Pure: knows nothing of models. Everything is decided by ids, tags and the seed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.types import SCORED_SUBSETS, Sample, Status
from interp.errors import UserError

UNLIKE = {"template": 4.0, "wrapper": 2.0}  # what a difference in a tag costs; another scenario costs 1
KNOWN_SHOWN = 5  # ids that an error names


@dataclass(frozen=True)
class Case:
    """A case to look at; ``match`` is the id of its counterpart (success of a failure and the other way round)."""

    sample: Sample
    failed: bool
    match: str | None = None


@dataclass(frozen=True)
class Chosen:
    """One subset's cases: the first ``pairs`` failures and all successes match one to one, further failures do not."""

    cases: tuple[Case, ...]
    failures: int  # in the whole run
    successes: int

    @property
    def pairs(self) -> int:
        """Failures that have a matched success."""
        return sum(case.failed and case.match is not None for case in self.cases)


def choose(
    samples: Sequence[Sample], records: Iterable[Mapping[str, Any]], *, arm: str, limit: int | None, seed: int
) -> dict[str, Chosen]:
    """Subset → its cases, for every subset that has an answered case with an image; at most ``limit`` failures each.

    A failure is an answer of ``arm`` whose verdict is not the gold one (no verdict is wrong, too); transport and image
    failures are no answers. A failure and its success are of one subset; among those, pairs are formed so that the
    sum of their differences in template, wrapper and scenario is least.

    Raises:
        UserError: no record of ``arm``.
    """
    records = list(records)
    own = {record["case"]: record for record in records if record["arm"] == arm}
    if not own:
        known = sorted({record["arm"] for record in records})
        raise UserError(
            f"no answer of arm {arm!r} in this run; known: {', '.join(known) or 'none'}; choose among these"
        )
    usable = answered(samples, records, arm=arm)
    found: dict[str, Chosen] = {}
    for subset in SCORED_SUBSETS:
        members = _shuffled([sample for sample in usable if sample.subset == subset], seed)
        wrong = [sample for sample in members if own[sample.id]["verdict"] != sample.gold]
        right = [sample for sample in members if own[sample.id]["verdict"] == sample.gold]
        if members:
            found[subset] = Chosen(_matched(wrong, right, limit), len(wrong), len(right))
    return found


def answered(samples: Sequence[Sample], records: Iterable[Mapping[str, Any]], *, arm: str) -> list[Sample]:
    """The cases with an image that ``arm`` answered at all: nothing failed in transport, and the image opened."""
    done = {r["case"] for r in records if r["arm"] == arm and not Status(r["status"]).excluded}
    return [sample for sample in samples if sample.image is not None and sample.id in done]


def _shuffled(samples: list[Sample], seed: int) -> list[Sample]:
    """In an order that depends on ids and seed alone, so that none of a benchmark's sections comes first."""
    return sorted(samples, key=lambda sample: _hash(f"{seed}:{sample.id}"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _matched(wrong: Sequence[Sample], right: Sequence[Sample], limit: int | None) -> tuple[Case, ...]:
    cost = np.array([[unlikeness(a, b) for b in right] for a in wrong]).reshape(len(wrong), len(right))
    rows, columns = linear_sum_assignment(cost)
    best = np.argsort(cost[rows, columns], kind="stable")[:limit]
    pairs = [(wrong[rows[i]], right[columns[i]]) for i in best]
    taken = {failure.id for failure, _ in pairs}
    alone = [sample for sample in wrong if sample.id not in taken]
    alone = alone if limit is None else alone[: limit - len(pairs)]
    return (
        *(Case(failure, True, success.id) for failure, success in pairs),
        *(Case(failure, True) for failure in alone),
        *(Case(success, False, failure.id) for failure, success in pairs),
    )


def unlikeness(a: Sample, b: Sample) -> float:
    """How much two cases of one subset differ in what words they are made of; 0 for the same template and wrapper."""
    return float(a.scenario != b.scenario) + sum(
        weight for tag, weight in UNLIKE.items() if a.tags.get(tag) != b.tags.get(tag)
    )


def swapped(samples: Sequence[Sample], sample: Sample, *, seed: int) -> Sample | None:
    """The case whose image replaces ``sample``'s: its counterfactual twin, else one of another cluster, by hash.

    Where possible the other case has the opposite truth. None where no other image is there.
    """
    others = [other for other in samples if other.image is not None and other.id != sample.id]
    twins = [other for other in others if sample.pair is not None and other.pair == sample.pair]
    if twins:
        return twins[0]
    strangers = [other for other in others if other.cluster != sample.cluster]
    opposite = [other for other in strangers if other.gold != sample.gold] or strangers
    return min(opposite, key=lambda other: _hash(f"{seed}:{sample.id}:{other.id}"), default=None)


def case_of(samples: Sequence[Sample], case: str) -> Sample:
    """The sample with the id ``case``; UserError, naming some known ones, where there is none."""
    for sample in samples:
        if sample.id == case:
            return sample
    shown = ", ".join(sample.id for sample in samples[:KNOWN_SHOWN])
    rest = f" and {len(samples) - KNOWN_SHOWN} more" if len(samples) > KNOWN_SHOWN else ""
    raise UserError(f"no case '{case}' in this benchmark; known: {shown}{rest}; choose among these")
