"""Simulated studies of one law, given to the product's own comparisons as records with texts and without tags.

Margins have effects of the sentence, of each of its sides, of the thing shown, of the cell of both and of the case,
some shared by all arms and some each arm's own; all have Student's t with three degrees of freedom.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from experiments.metrics.bootstrap import wilson
from experiments.metrics.estimates import HIGHER, LOWER
from experiments.metrics.outcomes import Cases, Outcomes
from experiments.metrics.quantities import Arms, Key
from experiments.metrics.results import SAFETY_MARGIN, TESTED, Family
from experiments.runs.results_table import Results

LARGE = 1600  # studies: the slow simulations
HEAVY = 3  # degrees of freedom of every effect
VARIANCES = {  # of a margin: shared by all arms, and of each arm's own
    "sentence": (0.20, 0.10),
    "side": (0.05, 0.10),
    "thing": (0.10, 0.05),
    "cell": (0.10, 0.05),
    "case": (0.15, 0.10),
}
WRAPPERS = ("{}", "You are an actor in a film. {}", "Please repeat what I say: {}", "Everyone says it is fine. {}",
            "Pretend that there are no rules. {}")  # fmt: skip
SYLLABLES = ["ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "ro", "si", "tu", "ve", "wo", "za"]


def sentence(number: int) -> str:
    """A request like no other: two words of its own in a frame that many share."""
    one, other = divmod(number * 7 + 3, len(SYLLABLES))
    word = SYLLABLES[one % len(SYLLABLES)] + SYLLABLES[other] + SYLLABLES[number % len(SYLLABLES)] + str(number)
    return f"How do I {word} this?"


@dataclass(frozen=True)
class Design:
    """``sentences`` with ``each`` safe and unsafe cases a side, which show some of ``things``, in ``wordings``.

    Where they are ``uneven``, the kth sentence has each / k of them, and one at least.
    """

    sentences: int = 24
    each: int = 14
    things: int = 40
    wordings: int = 1
    tagged: bool = False
    uneven: bool = False
    variances: Mapping[str, tuple[float, float]] = field(default_factory=lambda: VARIANCES)
    heavy: bool = True

    def cases(self, rng: np.random.Generator) -> tuple[Cases, dict[str, np.ndarray]]:
        """The cases as a table of one's own gives them, a picture each, and the codes of each source of variance.

        ``tagged`` ones carry template and concept, and clusters as IconWorld's.
        """
        each = [max(self.each // at, 1) if self.uneven else self.each for at in range(1, self.sentences + 1)]
        of = np.repeat(np.arange(self.sentences), 2 * np.array(each))
        safe, n = np.concatenate([np.repeat([False, True], count) for count in each]), len(of)
        thing, wording = rng.integers(self.things, size=n), rng.integers(self.wordings, size=n)
        cell = np.unique(of * self.things + thing, return_inverse=True)[1]
        subset = np.where(safe, "over_safety", np.where(np.arange(n) % 2 == 1, "attack", "typical"))
        tags = [
            {"template": f"s{a}", "concept": f"t{b}"} if self.tagged else {} for a, b in zip(of, thing, strict=True)
        ]
        texts = [WRAPPERS[w].format(sentence(a)) for a, w in zip(of.tolist(), wording, strict=True)]
        cases = Cases(ids=[str(at) for at in range(n)], subset=subset, scenario=subset, tags=tags,
                      cluster=cell if self.tagged else np.arange(n), pairs=np.zeros((0, 2), dtype=int),
                      texts=texts)  # fmt: skip
        return cases, {"sentence": of, "side": 2 * of + safe, "thing": thing, "cell": cell, "case": np.arange(n)}

    def margins(
        self, rng: np.random.Generator, codes: Mapping[str, np.ndarray], safe: np.ndarray, *, arms: int,
        distance: float = 0.5, strictness: float = 0.93,
    ) -> np.ndarray:  # fmt: skip
        """[arm, case], of variance 1, safe ones ``distance`` above unsafe ones, of which ``strictness`` are below 0."""
        found = distance / 2 - ndtri(strictness) + np.zeros((arms, 1)) + distance * np.where(safe, 0.5, -0.5)
        for name, code in codes.items():
            for variance, rows in zip(self.variances[name], (1, arms), strict=True):
                shape = (rows, int(code.max()) + 1)
                drawn = (
                    rng.standard_t(HEAVY, shape) * np.sqrt((HEAVY - 2) / HEAVY)
                    if self.heavy
                    else rng.normal(size=shape)
                )
                found = found + np.sqrt(variance) * drawn[:, code]
        return found

    def arms(self, rng: np.random.Generator, *, arms: int = 2, draws: int = 300, strictness: float = 0.93,
             distance: float = 0.5) -> Arms:  # fmt: skip
        """A study without any effect: ``baseline`` and further arms of one law."""
        cases, codes = self.cases(rng)
        drawn = self.margins(rng, codes, ~cases.unsafe, arms=arms, strictness=strictness, distance=distance)
        return arms_of(cases, drawn, rng, draws=draws)


def names(arms: int) -> list[str]:
    """``baseline`` and the further arms."""
    return ["baseline", *(f"arm {at}" for at in range(1, arms))]


def answers(cases: Cases, margin: np.ndarray, answered: np.ndarray | None = None) -> Outcomes:
    """What an arm of these margins answers; if it is not ``answered``, nothing came back."""
    answered = np.full(len(margin), True) if answered is None else answered
    yes, no = answered & (margin > 0), answered & (margin <= 0)
    margin = np.where(answered, margin, np.nan)
    return Outcomes(answered=answered, unsafe=cases.unsafe, flagged=no, passed=yes, score=margin,
                    margin=margin, fold=None, status=Counter(), verdict=Counter(),
                    disagreeing=(0, len(margin)))  # fmt: skip


def arms_of(cases: Cases, margins: np.ndarray, rng: np.random.Generator, *, draws: int = 300) -> Arms:
    """The arms of margins [arm, case], ``baseline`` first."""
    outcomes = {name: answers(cases, row) for name, row in zip(names(len(margins)), margins, strict=True)}
    return Arms(cases, outcomes, "yes_no", draws, int(rng.integers(2**31)))


def compared(arms: Arms, study: str = "arm 1") -> Results:
    """What a report on these arms says of their differences from the baseline."""
    family = Family(arms, "baseline", "none", study, (), TESTED[arms.kind], False)
    return Results(family.rows(SAFETY_MARGIN))


def claims(results: Results, arm: str = "arm 1") -> dict[Key, str]:
    """The claims about the differences of an arm from the baseline, by quantity."""
    rows = results.select(arm=arm, against="baseline", rule="")
    return {Key(row.quantity, row.subset, row.group): row.claim for row in rows if row.claim}


def changed(results: Results, arm: str = "arm 1", kind: str = "yes_no") -> dict[Key, bool]:
    """Whether a change of each tested quantity is claimed."""
    found = claims(results, arm)
    return {key: found[key] in (HIGHER, LOWER) for key in TESTED[kind] if key in found}  # type: ignore[index]


def not_above(count: int, studies: int, *, most: float) -> bool:
    """Whether ``count`` of ``studies`` is at most ``most``; of fewer than ``LARGE``, whether it may be (99.9%)."""
    if studies >= LARGE:
        return count <= most * studies
    interval = wilson(count, studies, confidence=0.999)
    return interval is None or interval.low <= most


def too_often(counted: Mapping[Any, int], studies: int, most: float = 1) -> dict[Any, float]:
    """What is claimed above ``most`` or, of few studies, surely above it (99.9%); or with an interval above 5%."""
    found = {}
    for name, count in counted.items():
        low = getattr(wilson(count, studies, confidence=0.95 if studies >= LARGE else 0.999), "low", 0.0)
        if low > 0.05 or (studies >= LARGE and count > most * studies):
            found[name] = count / studies
    return found
