"""Which cases a study looks at: failures of one arm and, within each subset, the successes most like them.

Everything is decided by ids, tags, verdicts and the seed; no model is involved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.metrics.case_groups import TAG, are_pair, hash_key
from experiments.types import SCORED_SUBSETS, Sample, Status
from interp.errors import UserError

TAG_COSTS = {"template": 4.0, "wrapper": 2.0}  # of a tag that differs within a pair; another scenario costs 1


@dataclass(frozen=True)
class MatchedCase:
    """A failure or a success; ``match`` is the id of its counterpart of the other kind, None where it has none."""

    sample: Sample
    failed: bool
    match: str | None = None


@dataclass(frozen=True)
class MatchedSubset:
    """The cases of one subset: first the ``pairs`` matched failures, then failures without a match, then successes."""

    cases: tuple[MatchedCase, ...]
    failures: int  # in the whole run
    successes: int

    @property
    def pairs(self) -> int:
        """Failures that have a matched success."""
        return sum(case.failed and case.match is not None for case in self.cases)


def match_failures(
    samples: Sequence[Sample], records: Iterable[Mapping[str, Any]], *, arm: str, limit: int | None, seed: int
) -> dict[str, MatchedSubset]:
    """Subset → its matched cases, for every subset with an answered case that has an image.

    A failure is an answer of ``arm`` whose verdict is not the gold one. An answer without a verdict is a failure too. A
    transport or image failure is not an answer. Pairs are formed within a subset, so that the sum of their differences
    in template, wrapper and scenario is smallest. At most ``limit`` failures of a subset are used (None: all).

    Raises:
        UserError: there is no record of ``arm``.
    """
    records = list(records)
    by_case = {record["case"]: record for record in records if record["arm"] == arm}
    if not by_case:
        arms = sorted({record["arm"] for record in records})
        raise UserError(f"no answer of arm {arm!r} in this run; known: {', '.join(arms) or 'none'}; choose among these")
    usable = sorted(answered(samples, records, arm=arm), key=lambda sample: hash_key(seed, sample.id))
    subsets: dict[str, MatchedSubset] = {}
    for subset in SCORED_SUBSETS:
        members = [sample for sample in usable if sample.subset == subset]
        wrong = [sample for sample in members if by_case[sample.id]["verdict"] != sample.gold]
        right = [sample for sample in members if by_case[sample.id]["verdict"] == sample.gold]
        if members:
            subsets[subset] = MatchedSubset(_matched(wrong, right, limit), len(wrong), len(right))
    return subsets


def answered(samples: Sequence[Sample], records: Iterable[Mapping[str, Any]], *, arm: str) -> list[Sample]:
    """Return the cases with an image that ``arm`` answered: neither the transport failed nor the image."""
    done = {r["case"] for r in records if r["arm"] == arm and not Status(r["status"]).excluded}
    return [sample for sample in samples if sample.image is not None and sample.id in done]


def _matched(wrong: Sequence[Sample], right: Sequence[Sample], limit: int | None) -> tuple[MatchedCase, ...]:
    cost = np.array([[unlikeness(a, b) for b in right] for a in wrong]).reshape(len(wrong), len(right))
    rows, columns = linear_sum_assignment(cost)
    best = np.argsort(cost[rows, columns], kind="stable")[:limit]
    pairs = [(wrong[rows[i]], right[columns[i]]) for i in best]
    matched = {failure.id for failure, _ in pairs}
    alone = [sample for sample in wrong if sample.id not in matched]
    alone = alone if limit is None else alone[: limit - len(pairs)]
    return (
        *(MatchedCase(failure, True, success.id) for failure, success in pairs),
        *(MatchedCase(failure, True) for failure in alone),
        *(MatchedCase(success, False, failure.id) for failure, success in pairs),
    )


def unlikeness(a: Sample, b: Sample) -> float:
    """Return how much the wording of two cases of one subset differs; 0 for the same template, wrapper and scenario.

    A case without a template is compared by its text.
    """
    differ = [tag for tag in TAG_COSTS if a.tags.get(tag) != b.tags.get(tag)]
    if TAG not in a.tags and TAG not in b.tags and a.text != b.text:
        differ.append(TAG)
    return float(a.scenario != b.scenario) + sum(TAG_COSTS[tag] for tag in differ)


def image_donor(samples: Sequence[Sample], sample: Sample, *, seed: int) -> Sample | None:
    """Return the case whose image replaces the image of ``sample``: its twin, or else one of another cluster, by hash.

    Where possible the donor has the opposite truth. None where there is no other image.
    """
    others = [other for other in samples if other.image is not None and other.id != sample.id]
    if twins := [o for o in others if are_pair(sample, o) and (sample.pair or o.cluster != sample.cluster)]:
        return min(twins, key=lambda other: hash_key(seed, sample.id, other.id))
    strangers = [other for other in others if other.cluster != sample.cluster]
    opposite = [other for other in strangers if other.gold != sample.gold] or strangers
    return min(opposite, key=lambda other: hash_key(seed, sample.id, other.id), default=None)
