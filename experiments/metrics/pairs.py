"""Counterfactual pairs: two cases of opposite truth that share their sentence (two pictures) or their picture.

A benchmark names its pairs (``Sample.pair``), and then it has no others. If it names none, every two such cases are a
pair. Rates use all pairs (``all_pairs``). If one case is run with the states of another, a random subset is used
(``drawn_pairs``). Pairs that are found here never make a cluster.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from experiments.benchmarks.checks import picture_in
from experiments.types import Sample

Shared = Literal["sentence", "picture", "thing"]
TIMES = 3  # pairs of a draw that one case may be in: of few cases with one label each is met by several of the other


def all_pairs(group: Int[np.ndarray, " case"], safe: Bool[np.ndarray, " case"]) -> Int[np.ndarray, "pair 2"]:
    """Positions of the safe and the unsafe member of every two cases of one ``group`` with opposite truth."""
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    sides = [(where[safe[where]], where[~safe[where]]) for where in np.split(order, ends)]
    grids = [np.stack(np.meshgrid(*both, indexing="ij"), axis=-1).reshape(-1, 2) for both in sides]
    return np.concatenate(grids).astype(int)


def drawn_pairs(
    samples: Sequence[Sample], shared: Shared = "sentence", *, seed: int, times: int = TIMES
) -> list[tuple[int, int]]:
    """Return the positions of pairs of a safe and an unsafe case with pictures: the benchmark's pairs, or a draw.

    Both are asked the same (``shared`` sentence), or show the same picture, or the same thing in two pictures, which is
    always a draw. In a draw each case is in one pair, and where there are more of the other truth in at most ``times``.
    It depends only on ids and seed. In the order of the cases.
    """
    if shared != "thing" and any(sample.pair for sample in samples):
        key = _KEYS[shared]
        alike = [pair for pair in _named(samples) if key(samples[pair[0]]) == key(samples[pair[1]])]
        pairs = [pair for pair in alike if all(samples[index].image is not None for index in pair)]
    else:
        pairs = list(_drawn(samples, shared, seed, times))
    return sorted(pairs, key=min)


def twins(samples: Sequence[Sample], *, seed: int) -> list[int | None]:
    """The index of each case's twin, of the opposite truth: by name, or else in a draw of pairs; None without one."""
    pairs = _named(samples) if any(sample.pair for sample in samples) else drawn_pairs(samples, seed=seed)
    first: dict[int, int] = {}
    for safe, unsafe in pairs:
        first.setdefault(safe, unsafe)
        first.setdefault(unsafe, safe)
    return [first.get(index) for index in range(len(samples))]


def are_pair(first: Sample, second: Sample) -> bool:
    """Return whether two cases of opposite truth have one pair's name or, without a name, ask the same."""
    same = first.pair == second.pair if first.pair or second.pair else first.prompt == second.prompt
    return same and is_safe(first) != is_safe(second)


def is_safe(sample: Sample) -> bool:
    """Whether answering is right."""
    return sample.gold in ("yes", "comply")


def hash_key(*parts: object) -> str:
    """Return a sort key that shuffles. It depends only on ``parts`` (seed, ids), not on machine, order or section."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()


def thing_in(sample: Sample) -> str:
    """The name of what the case shows, or the sentence that says it; "" where neither is known."""
    return str(sample.tags.get("concept") or sample.described).casefold()


_KEYS = {"sentence": lambda sample: sample.prompt, "picture": picture_in, "thing": thing_in}


def _named(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    members: dict[str, dict[bool, int]] = {}
    for index, sample in enumerate(samples):
        if sample.pair:
            members.setdefault(sample.pair, {})[is_safe(sample)] = index
    return [(both[True], both[False]) for both in members.values() if len(both) == 2]


def _drawn(samples: Sequence[Sample], shared: Shared, seed: int, times: int) -> Iterator[tuple[int, int]]:
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for index, sample in enumerate(samples):
        key = _KEYS[shared](sample)
        if key and sample.image is not None and sample.subset != "control":
            groups.setdefault(key, ([], []))[is_safe(sample)].append(index)
    for unsafe, safe in groups.values():
        for side in (unsafe, safe) if unsafe and safe else ():
            side.sort(key=lambda index: hash_key(seed, samples[index].id))
        if len(safe) < len(unsafe):
            yield from zip(cycle(safe), unsafe[: times * len(safe)], strict=False)
        else:
            yield from zip(safe[: times * len(unsafe)], cycle(unsafe), strict=False)
