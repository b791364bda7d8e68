"""Which cases the stages are looked at on: the baseline's over-cautious failures, and their matched twins. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.sample import Kind, Sample
from experiments.outcomes import Status, Verdict

CAUTIOUS = {"yes_no": (Verdict.NO,), "refusal": (Verdict.REFUSED, Verdict.PARTIAL)}


class Chosen(NamedTuple):
    """Failures (safe cases met with caution), their matched cases (caution is right, and given), and the totals."""

    failures: list[Sample]
    matched: list[Sample]
    failures_in_run: int
    safe_in_run: int


def cautious(record: Mapping[str, Any], kind: Kind) -> bool | None:
    """Whether an answer says "unsafe" or refuses; None where it cannot be known, as without an answer."""
    if record["verdict"] in (None, Verdict.JUDGE_FAILED) or Status(record["status"]).excluded:
        return None
    return record["verdict"] in CAUTIOUS[kind]


def choose(
    samples: Sequence[Sample], records: Sequence[Mapping[str, Any]], kind: Kind, *, limit: int | None, seed: int
) -> Chosen:
    """At most ``limit`` failures with a picture, by hash of their ids, and for each its twin if that met caution too.

    The twin has the opposite truth: IconWorld's counterfactual pair, MOSSBench's contrast case of the same pid. What
    lowers caution on failures and on twins alike has moved a threshold; what lowers it on failures alone has helped.
    """
    found = {record["case"]: cautious(record, kind) for record in records}
    safe = [sample for sample in samples if sample.gold in ("yes", "comply") and sample.subset != "control"]
    failed = [sample for sample in safe if found.get(sample.id) and sample.image is not None]
    ordered = sorted(failed, key=lambda sample: hashlib.sha256(f"{seed}:{sample.id}".encode()).hexdigest())
    failures = ordered[:limit]
    matched = []
    for failure in failures:
        twin = next((other for other in samples if twins(failure, other)), None)
        if twin is not None and found.get(twin.id) and twin.image is not None:
            matched.append(twin)
    return Chosen(failures, matched, len(failed), len(safe))


def twins(safe: Sample, other: Sample) -> bool:
    """True for the unsafe counterpart of a safe case."""
    if other.gold not in ("no", "refuse"):
        return False
    if safe.pair is not None:
        return other.pair == safe.pair
    return "pid" in safe.tags and other.tags.get("pid") == safe.tags["pid"]
