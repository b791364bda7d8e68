"""The pairs of prompts that the study patches, and their split into groups to discover on and groups to confirm on.

Cases and seed decide both. No model is involved. A *unit* is a group of pairs that share a family of sentences or a
cluster. Every question uses the same pairs:

``picture``   one sentence under two pictures, and one picture makes it unsafe (``experiments.metrics.case_groups``);
``sentence``  one picture under two sentences: the case's own, and one of a few *reference* sentences. The references
              are from units that no other question uses, so results hold for random units;
``join``      what the sentence changes in the picture's effect: the effects of two pictures under the case's sentence,
              less those under the reference sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.case_groups import drawn_pairs, family_names
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.prompt import Prompt

PICTURE, SENTENCE, JOIN = QUESTIONS = ("picture", "sentence", "join")
CASES, REFERENCE = "cases", "reference"  # runs of two pictures: under the case's sentence, under a reference sentence
REFERENCES = 3  # reference sentences
LEAST_UNITS = 2 * FEWEST  # half of them confirm, and an interval needs ``FEWEST``
SPLITS = 10  # random splits of the units into halves

TERMS: Mapping[str, Sequence[tuple[str, int]]] = {
    PICTURE: ((CASES, 1),),
    SENTENCE: ((SENTENCE, 1),),
    JOIN: ((CASES, 1), (REFERENCE, -1)),
}
"""Question → the runs whose effects are added up, each with its sign."""


class PromptPairs(NamedTuple):
    """Pairs of prompts that are run together."""

    clean: "list[Prompt]"
    other: "list[Prompt]"


@dataclass(frozen=True)
class Half:
    """The pairs of one half: unsafe and safe members, and each pair's unit as a code from 0."""

    unsafe: tuple[Sample, ...]
    safe: tuple[Sample, ...]
    unit: np.ndarray

    def runs(self, references: Sequence[Sample]) -> dict[str, PromptPairs]:
        """Return the pairs of each run in ``TERMS``; without ``references`` only the pairs of pictures."""
        unsafe, safe = prompts_of(self.unsafe), prompts_of(self.safe)
        runs = {CASES: PromptPairs(unsafe, safe)}
        if references:
            texts = [references[i % len(references)].prompt for i in range(len(unsafe))]
            other = PromptPairs(*(list(map(_with_text, prompts, texts)) for prompts in (unsafe, safe)))
            runs[REFERENCE] = other
            runs[SENTENCE] = PromptPairs(
                *([pairs[i % 2][i] for i in range(len(unsafe))] for pairs in (runs[CASES], other))
            )  # unsafe and safe pictures in turn
        return runs


@dataclass(frozen=True)
class Cases:
    """Both halves, the cases with the reference sentences, and more splits of the same units.

    ``confirmed`` says for each of ``SPLITS`` splits which units confirm; units of ``discover`` come first. The first
    split has the two halves.
    """

    discover: Half
    confirm: Half
    references: tuple[Sample, ...]
    confirmed: tuple[Bool[np.ndarray, " unit"], ...] = ()


def split(samples: Sequence[Sample], *, questions: Sequence[str], pairs: int | None, seed: int) -> Cases:
    """Return random halves of the units, with at most ``pairs`` pairs, spread evenly over the units.

    Raises:
        UserError: too few pairs of pictures, or too few units.
    """
    drawn = [(samples[i], samples[j]) for i, j in drawn_pairs(samples, seed=seed)]
    unsafe, safe = [member for _, member in drawn], [member for member, _ in drawn]
    codes = _units(unsafe, safe)
    rows = _spread(codes, pairs)
    used = np.unique(codes[rows])
    count = len(used)
    if count < LEAST_UNITS:
        raise UserError(
            f"{len(rows)} pairs of pictures (one text, opposite labels) of {count} sentences are too few: half of the "
            f"sentences confirm, and {FEWEST} must. Add sentences with pictures of both labels until there are "
            f"{LEAST_UNITS}, or raise limit or task.pairs. iconworld has enough."
        )
    order = used[np.random.default_rng(seed).permutation(count)]
    first, second = order[: count // 2], order[count // 2 :]
    references: tuple[Sample, ...] = ()
    if {SENTENCE, JOIN} & set(questions):
        chosen, first = np.split(first, [min(REFERENCES, count // 4)])
        references = tuple(unsafe[int((codes == unit).argmax())] for unit in chosen)
    discover, confirm = (_half(unsafe, safe, codes, [i for i in rows if codes[i] in half]) for half in (first, second))
    splits = [np.repeat([False, True], (len(first), len(second)))]
    splits += [np.random.default_rng([seed, i]).permutation(splits[0]) for i in range(1, SPLITS)]
    return Cases(discover, confirm, references, tuple(splits))


def _units(unsafe: Sequence[Sample], safe: Sequence[Sample]) -> np.ndarray:
    """Return each pair's unit: pairs with a common family of sentences or a common cluster are in one unit."""
    names: dict[tuple[str, str], int] = {}
    families = family_names([sample.text for sample in unsafe], [sample.tags for sample in unsafe])
    links = [
        (pair, names.setdefault(name, len(names)))
        for pair, (members, family) in enumerate(zip(zip(unsafe, safe, strict=True), families, strict=True))
        for name in (("family", family), *(("cluster", sample.cluster) for sample in members if sample.cluster))
    ]
    if not links:
        return np.zeros(0, dtype=int)
    pairs, named = np.array(links).T
    size = len(unsafe) + len(names)
    joined = connected_components(coo_array((np.ones(len(links)), (pairs, named + len(unsafe))), shape=(size, size)))[1]
    return np.unique(joined[: len(unsafe)], return_inverse=True)[1]


def _spread(codes: np.ndarray, most: int | None) -> list[int]:
    """Return at most ``most`` pairs; the units take turns."""
    turn = np.zeros(len(codes), dtype=int)
    for unit in np.unique(codes):
        turn[codes == unit] = np.arange((codes == unit).sum())
    first = np.lexsort((codes, turn))
    return sorted(first[: len(codes) if most is None else most].tolist())


def _half(unsafe: Sequence[Sample], safe: Sequence[Sample], codes: np.ndarray, rows: Sequence[int]) -> Half:
    unit = np.unique(codes[list(rows)], return_inverse=True)[1]
    return Half(tuple(unsafe[i] for i in rows), tuple(safe[i] for i in rows), unit)


def _with_text(prompt: "Prompt", text: str) -> "Prompt":
    return replace(prompt, text=text, key=f"{prompt.key} with another sentence")
