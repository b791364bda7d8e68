"""Which cases the tools look at: all that were answered, and of them failures, matched successes and their twins.

Pure: everything is decided by ids, tags, verdicts and the seed; knows nothing of models.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from experiments.evaluation.matching import answered, choose
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError

ARM = "baseline"
TRIES = 4  # sentences of equal length that are tried for one case


@dataclass(frozen=True)
class Cases:
    """The scored cases with a picture that the baseline answered, in the benchmark's order."""

    samples: tuple[Sample, ...]
    verdicts: tuple[str | None, ...]

    @property
    def safe(self) -> Bool[np.ndarray, "case"]:
        """The truth."""
        return np.array([sample.gold == "yes" for sample in self.samples])

    @property
    def says_yes(self) -> Bool[np.ndarray, "case"]:
        """The model's own verdict; none at all counts as No."""
        return np.array([verdict == "yes" for verdict in self.verdicts])

    @property
    def failed(self) -> Bool[np.ndarray, "case"]:
        """The verdict is not the truth."""
        return np.array([v != s.gold for v, s in zip(self.verdicts, self.samples, strict=True)])

    @property
    def clusters(self) -> list[str]:
        """What intervals resample and probes hold out."""
        return [sample.cluster for sample in self.samples]

    @property
    def sentences(self) -> np.ndarray:
        """What is asked, word for word: cases of one sentence differ in their picture alone."""
        return np.array([sample.prompt for sample in self.samples])

    @property
    def templates(self) -> np.ndarray:
        """What the sentences are made from, where the benchmark says so; else the sentences."""
        column = self.column("template")
        return self.sentences if column is None else column

    def column(self, tag: str) -> np.ndarray | None:
        """A tag of every case; None where some have none."""
        values = [sample.tags.get(tag) for sample in self.samples]
        return None if any(value is None for value in values) else np.array(values)

    def of(self, subset: str) -> Bool[np.ndarray, "case"]:
        """Which cases are of ``subset``."""
        return np.array([sample.subset == subset for sample in self.samples])


@dataclass(frozen=True)
class Looked:
    """Of the subset with most failures: failures, matched successes, and twins (same sentence, opposite truth).

    All are indices into ``Cases``; ``twin[i]`` is that of ``members[i]``, failures first, and −1 where it has none.
    """

    subset: str
    failures: Int[np.ndarray, "failure"]
    successes: Int[np.ndarray, "success"]
    twin: Int[np.ndarray, "member"]
    failures_in_run: int
    successes_in_run: int

    @property
    def members(self) -> Int[np.ndarray, "member"]:
        """Failures, then matched successes."""
        return np.concatenate([self.failures, self.successes])

    @property
    def everyone(self) -> Int[np.ndarray, "case"]:
        """Members and twins, each once, in order."""
        return np.unique(np.concatenate([self.members, self.twin[self.twin >= 0]]))


def cases_of(samples: Sequence[Sample], records: Sequence[Mapping[str, Any]]) -> Cases:
    """What there is to look at. UserError where the baseline answered no scored case with a picture."""
    own = {record["case"]: record["verdict"] for record in records if record["arm"] == ARM}
    kept = [s for s in answered(samples, records, arm=ARM) if s.subset in SCORED_SUBSETS]
    if not kept:
        raise UserError("no scored case with a picture was answered; there is nothing to look into; check the limit")
    return Cases(tuple(kept), tuple(own[sample.id] for sample in kept))


def look(cases: Cases, records: Sequence[Mapping[str, Any]], *, limit: int | None, seed: int) -> Looked | None:
    """At most ``limit`` failures of the subset that has most (and all successes matched to them); None without any."""
    found = {name: some for name, some in choose(cases.samples, records, arm=ARM, limit=limit, seed=seed).items()
             if some.failures}  # fmt: skip
    if not found:
        return None
    subset = max(found, key=lambda name: found[name].failures)
    place = {sample.id: index for index, sample in enumerate(cases.samples)}
    chosen = found[subset].cases
    members = [[place[case.sample.id] for case in chosen if case.failed == failed] for failed in (True, False)]
    twins = twins_of(cases)
    return Looked(
        subset,
        np.array(members[0], dtype=int),
        np.array(members[1], dtype=int),
        np.array([twins[index] for side in members for index in side], dtype=int),
        found[subset].failures,
        found[subset].successes,
    )


def twins_of(cases: Cases) -> Int[np.ndarray, "case"]:
    """The index of the other member of each case's pair, where the truth is the opposite; −1 without one."""
    first: dict[str, int] = {}
    found = np.full(len(cases.samples), -1)
    for index, sample in enumerate(cases.samples):
        if sample.pair is None:
            continue
        other = first.setdefault(sample.pair, index)
        if other != index and cases.samples[other].gold != sample.gold:
            found[index], found[other] = other, index
    return found


def other_sentences(
    samples: Sequence[Sample],
    said: Mapping[str, str | None],
    looked: Sequence[Sample],
    *,
    tokens: Callable[[str], int],
    seed: int,
) -> list[list[str]]:
    """For each case looked at, up to ``TRIES`` other questions of as many tokens that the model answered otherwise.

    ``samples`` are those whose questions may be taken, ``said`` their verdicts by id. Which ones, is decided by hash.
    """
    length = {prompt: tokens(prompt) for prompt in {sample.prompt for sample in (*samples, *looked)}}
    found = []
    for case in looked:
        others = {
            other.prompt
            for other in samples
            if said.get(other.id) not in (None, said.get(case.id))
            and other.prompt != case.prompt
            and length[other.prompt] == length[case.prompt]
        }
        ranked = sorted(others, key=lambda prompt: _hash(f"{seed}:{case.id}:{prompt}"))
        found.append(ranked[:TRIES])
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
