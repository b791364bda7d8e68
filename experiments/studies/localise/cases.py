"""The pairs of prompts that the study patches, and their split into units to discover on and units to confirm on.

Decided by cases and seed alone; no model is involved. A *unit* is what pairs, families of sentences and clusters join.
Every question is asked of the same pairs:

``picture``   one sentence under two pictures, of which one makes it unsafe (``experiments.metrics.pairs``);
``words``     the same with the picture said in words in its place, where the benchmark says what pictures show;
``sentence``  one picture under two sentences: the case's own, and one of a few *reference* sentences. These are of
              units that nothing else is asked of, so that what is found holds against them and for units at random;
``join``      what the sentence changes in what the picture does: the effects of two pictures under the case's sentence
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
from experiments.metrics.pairs import drawn_pairs
from experiments.metrics.sentence_families import TAG, family_names
from experiments.metrics.slopes import SPLITS
from experiments.types import Sample
from interp.errors import UserError
from mitigation.verbalise import Verbalise

if TYPE_CHECKING:
    from interp.prompt import Prompt

PICTURE, WORDS, SENTENCE, JOIN = QUESTIONS = ("picture", "words", "sentence", "join")
REFERENCES = 3  # sentences that others are compared with
LEAST_UNITS = 2 * FEWEST  # of which half are confirmed on: an interval takes ``FEWEST``


class Run(NamedTuple):
    """Pairs of prompts that are run together."""

    clean: "list[Prompt]"
    other: "list[Prompt]"


@dataclass(frozen=True)
class Half:
    """The pairs of one half: unsafe and safe members, and each pair's unit as a code from 0."""

    unsafe: tuple[Sample, ...]
    safe: tuple[Sample, ...]
    unit: np.ndarray
    names: tuple[str, ...]  # of the units

    def runs(self, references: Sequence[Sample]) -> dict[str, Run]:
        """What is run for the questions: ``own``, ``words``, ``sentence`` and ``reference`` (the picture under it)."""
        unsafe, safe = prompts_of(self.unsafe), prompts_of(self.safe)
        found = {"own": Run(unsafe, safe)}
        if all(sample.described for sample in (*self.unsafe, *self.safe)):
            found[WORDS] = Run(*map(_in_words, (unsafe, safe)))
        if references:
            texts = [references[at % len(references)].prompt for at in range(len(unsafe))]
            other = Run(*(list(map(_with_text, some, texts)) for some in (unsafe, safe)))
            found["reference"] = other
            turns = list(enumerate(at % 2 for at in range(len(unsafe))))  # unsafe and safe pictures by turns
            found[SENTENCE] = Run(
                [found["own"][turn][at] for at, turn in turns], [other[turn][at] for at, turn in turns]
            )
        return found


TERMS: Mapping[str, Sequence[tuple[str, int]]] = {
    PICTURE: (("own", 1),),
    WORDS: ((WORDS, 1),),
    SENTENCE: ((SENTENCE, 1),),
    JOIN: (("own", 1), ("reference", -1)),
}
"""Question → the runs whose effects are added up, each with its sign."""


@dataclass(frozen=True)
class Cases:
    """Both halves, the cases whose sentences are the references, and more halves of the same units.

    ``confirmed`` says for each of ``SPLITS`` splits which units, those of ``discover`` first, are confirmed on; the
    first split is that of the two halves.
    """

    discover: Half
    confirm: Half
    references: tuple[Sample, ...]
    of: int  # pairs of which these are
    confirmed: tuple[Bool[np.ndarray, " unit"], ...] = ()


def split(samples: Sequence[Sample], *, questions: Sequence[str], pairs: int | None, seed: int) -> Cases:
    """Halves of the units at random, with at most ``pairs`` pairs, as many of each unit as of every other.

    Raises:
        UserError: too few pairs of pictures, or too few units to divide.
    """
    pairs_of = [(samples[one], samples[other]) for one, other in drawn_pairs(samples, seed=seed)]
    unsafe, safe = [unsafe for _, unsafe in pairs_of], [safe for safe, _ in pairs_of]
    codes = _units(unsafe, safe)
    kept = _spread(codes, pairs)
    used = np.unique(codes[kept])
    count = len(used)
    if count < LEAST_UNITS:
        raise UserError(
            f"{len(kept)} pairs of pictures (one text, opposite labels) of {count} sentences; the study finds parts on "
            f"half of the sentences and confirms them on the others, and takes {LEAST_UNITS} ({FEWEST} to confirm "
            "on); add sentences with pictures of both labels, or raise the limit or task.pairs; iconworld has as many"
        )
    order = used[np.random.default_rng(seed).permutation(count)]
    halves = order[: count // 2], order[count // 2 :]
    references: tuple[Sample, ...] = ()
    if {SENTENCE, JOIN} & set(questions):
        chosen = halves[0][: min(REFERENCES, count // 4)]
        references = tuple(unsafe[int((codes == unit).nonzero()[0][0])] for unit in chosen)
        halves = halves[0][len(chosen) :], halves[1]
    discover, confirm = (_half(unsafe, safe, codes, [at for at in kept if codes[at] in half]) for half in halves)
    sizes = len(discover.names), len(confirm.names)
    splits = [np.repeat([False, True], sizes)]
    splits += [np.random.default_rng([seed, at]).permutation(splits[0]) for at in range(1, SPLITS)]
    return Cases(discover, confirm, references, len(unsafe), tuple(splits))


def _units(unsafe: Sequence[Sample], safe: Sequence[Sample]) -> np.ndarray:
    """Each pair's unit: pairs are joined by a family of sentences and by a cluster in common."""
    names: dict[tuple[str, str], int] = {}
    families = family_names([one.text for one in unsafe], [one.tags for one in unsafe])
    links = [
        (at, names.setdefault(name, len(names)))
        for at, (members, family) in enumerate(zip(zip(unsafe, safe, strict=True), families, strict=True))
        for name in (("family", family), *(("cluster", sample.cluster) for sample in members if sample.cluster))
    ]
    if not links:
        return np.zeros(0, dtype=int)
    pairs, named = np.array(links).T
    size = len(unsafe) + len(names)
    joined = connected_components(coo_array((np.ones(len(links)), (pairs, named + len(unsafe))), shape=(size, size)))[1]
    return np.unique(joined[: len(unsafe)], return_inverse=True)[1]


def _spread(codes: np.ndarray, most: int | None) -> list[int]:
    """At most ``most`` pairs, the units taking turns."""
    turn = np.zeros(len(codes), dtype=int)
    for unit in np.unique(codes):
        turn[codes == unit] = np.arange((codes == unit).sum())
    first = np.lexsort((codes, turn))
    return sorted(first[: len(codes) if most is None else most].tolist())


def _half(unsafe: Sequence[Sample], safe: Sequence[Sample], codes: np.ndarray, kept: Sequence[int]) -> Half:
    names = [unsafe[at].tags.get(TAG) or unsafe[at].text for at in kept]
    units, code = np.unique(codes[list(kept)], return_inverse=True)
    first = [names[int((code == at).nonzero()[0][0])] for at in range(len(units))]
    return Half(tuple(unsafe[at] for at in kept), tuple(safe[at] for at in kept), code, tuple(first))


def _in_words(prompts: "Sequence[Prompt]") -> "list[Prompt]":
    """The cases with their pictures said in words before the question, whose sentence still points."""
    verbaliser = Verbalise(describe="oracle", resolve="pointing")
    return [verbaliser.last_question(prompt, prompt.shows).prompt for prompt in prompts]


def _with_text(prompt: "Prompt", text: str) -> "Prompt":
    return replace(prompt, text=text, key=f"{prompt.key} with another sentence")
