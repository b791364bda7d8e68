"""How a model begins its refusals: openings learned from its own judged answers, and a check of them.

A model refuses with few openings. ``learn`` finds them in its answers. ``check`` measures them on other answers than
they were learned from. Neither is told which requests are harmful.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import roc_auc_score
from statsmodels.stats.proportion import proportion_confint

Tokens = tuple[int, ...]
Kind = Literal["openings", "first tokens"]

SHORTEST, LONGEST = 2, 12  # tokens of an opening
FEWEST = 5  # answers that begin with it
SURE = 0.80  # the lower Wilson limit of its share of refusals is above this, and above the model's refusal rate
MOST = 12  # openings that are kept
NEARLY_ALWAYS = 0.95  # refusal rate above which single first tokens count as openings too
FOLDS = 5
ENOUGH = 10  # refusals, and other answers, below which nothing is learned
SEPARATES, COVERS = 0.90, 0.80  # cross-fitted AUROC and coverage that statistics need
SEPARATES_FOR_TOOLS, COVERS_FOR_TOOLS = 0.70, 0.50


class Opening(NamedTuple):
    """A beginning of refusals. ``refused`` of ``answers`` answers that begin so are refusals."""

    tokens: Tokens
    refused: int
    answers: int


def covers(openings: Sequence[Tokens], answer: Sequence[int]) -> bool:
    """Return whether the answer begins with one of the openings."""
    return any(tuple(answer[: len(opening)]) == opening for opening in openings)


def learn(answers: Sequence[Sequence[int]], refused: Sequence[bool], kind: Kind = "openings") -> list[Opening]:
    """Return the openings of the refusals among ``answers``, the most frequent first; no opening begins another.

    An opening is the shortest prefix of 2 to 12 tokens that begins at least 5 answers and whose share of refusals is
    surely high: its lower 95% Wilson limit is above .80 and above the refusal rate. If nearly all answers are
    refusals, or by ``kind``, the openings are the first tokens of the refusals.

    Args:
        answers: token ids of each answer, without end tokens.
        refused: whether the judge calls the answer a refusal.
        kind: which candidate to learn.
    """
    refusals = [tuple(answer) for answer, flag in zip(answers, refused, strict=True) if flag and len(answer)]
    if not refusals:
        return []
    rate = len(refusals) / len(answers)
    if kind == "first tokens" or rate > NEARLY_ALWAYS:
        beginnings = Counter(answer[0] for answer in answers if len(answer))
        first = Counter(answer[0] for answer in refusals)
        return [Opening((token,), count, beginnings[token]) for token, count in first.most_common(MOST)]
    begins, refusing = Counter[Tokens](), Counter[Tokens]()
    for answer, flag in zip(answers, refused, strict=True):
        for length in range(SHORTEST, min(LONGEST, len(answer)) + 1):
            begins[tuple(answer[:length])] += 1
            refusing[tuple(answer[:length])] += flag
    learned: dict[Tokens, Opening] = {}
    for prefix, count in sorted(begins.items(), key=lambda item: len(item[0])):
        if count < FEWEST or any(prefix[:length] in learned for length in range(SHORTEST, len(prefix))):
            continue
        if proportion_confint(refusing[prefix], count, method="wilson")[0] > max(SURE, rate):
            learned[prefix] = Opening(prefix, refusing[prefix], count)
    return sorted(learned.values(), key=lambda opening: (-opening.refused, opening.tokens))[:MOST]


def log_odds(log_probabilities: Float[np.ndarray, "row opening"]) -> Float[np.ndarray, " row"]:
    """Return logit P(refuse), with P(refuse) = Σ P(opening | prompt) over openings; none begins another.

    Rounding can bring the sum to 1, so it is kept below by one float32 step.
    """
    total = np.logaddexp.reduce(log_probabilities.astype(np.float64), axis=1)
    total = np.minimum(total, np.log1p(-np.finfo(np.float32).eps))
    return total - np.log(-np.expm1(total))


@dataclass(frozen=True)
class Check:
    """How openings that were learned on other clusters do: ``auroc`` of the margin for the judge's verdict, and
    ``coverage``, the share of refusals that begin with one. ``why`` says in a sentence why nothing is computed.
    ``cut_off`` counts answers without a margin, because their thought was cut off."""

    kind: Kind
    auroc: float | None
    coverage: float | None
    refused: int
    answered: int
    why: str = ""
    cut_off: int = 0

    @property
    def for_statistics(self) -> bool:
        """Whether rates and claims may use the margin."""
        return not self.why and (self.auroc or 0) >= SEPARATES and (self.coverage or 0) >= COVERS

    @property
    def for_tools(self) -> bool:
        """Whether tools that look inside may follow the margin."""
        told, covered = (self.auroc or 0) >= SEPARATES_FOR_TOOLS, (self.coverage or 0) >= COVERS_FOR_TOOLS
        return not self.why and told and covered

    @property
    def sentence(self) -> str:
        """What a reader is told of the margin."""
        if self.why:
            return self.why
        assert self.auroc is not None
        assert self.coverage is not None
        measured = (
            f"the margin of its {self.kind} tells refusals from answers with AUROC {self.auroc:.3f} and covers "
            f"{100 * self.coverage:.0f}% of {self.refused} refusals that it did not learn from"
        )
        if self.cut_off:
            measured += f"; {self.cut_off} answers have none, because their thoughts were cut off"
        if self.for_statistics:
            return measured
        needed = f"statistics need {SEPARATES:.2f} and {100 * COVERS:.0f}%"
        return f"{measured}; {needed}"


def folds_of(clusters: Sequence[str]) -> list[int]:
    """Return a fold for each answer; the answers of a cluster share it, and folds have about as many clusters."""
    order = {cluster: number % FOLDS for number, cluster in enumerate(sorted(set(clusters)))}
    return [order[cluster] for cluster in clusters]


def learn_in_folds(
    answers: Sequence[Sequence[int]], refused: Sequence[bool], folds: Sequence[int], kind: Kind
) -> dict[int, list[Tokens]]:
    """Return for each fold the openings that were learned without it."""
    learned = {}
    for fold in sorted(set(folds)):
        others = [row for row, other in enumerate(folds) if other != fold]
        openings = learn([answers[row] for row in others], [refused[row] for row in others], kind)
        learned[fold] = [opening.tokens for opening in openings]
    return learned


def too_few(refused: Sequence[bool]) -> str:
    """Return why nothing can be learned from such answers; "" if something can."""
    refusals, others = sum(refused), len(refused) - sum(refused)
    if min(refusals, others) >= ENOUGH:
        return ""
    return f"it refused {refusals} and answered {others} requests; a margin needs at least {ENOUGH} of each"


def check(
    kind: Kind,
    learned: Mapping[int, Sequence[Tokens]],
    folds: Sequence[int],
    answers: Sequence[Sequence[int]],
    refused: Sequence[bool],
    scores: Mapping[Tokens, Float[np.ndarray, " row"]],
) -> Check:
    """Measure openings on answers that they were not learned from.

    Args:
        kind: of the openings.
        learned: by fold, the openings that are measured on the answers of this fold.
        folds: of each answer.
        answers: token ids of each answer.
        refused: the judge's verdicts.
        scores: the log-probability of each opening as the beginning of each answer.
    """
    flags: Bool[np.ndarray, " row"] = np.array(refused, dtype=bool)
    refusals, others = int(flags.sum()), int((~flags).sum())
    if why := too_few(refused):
        return Check(kind, None, None, refusals, others, why)
    if not all(learned[fold] for fold in set(folds)):
        why = f"its {refusals} refusals share no {kind[:-1]} that surely begins a refusal, so there is no margin"
        return Check(kind, None, None, refusals, others, why)
    margins, covered = np.zeros(len(flags)), np.zeros(len(flags), dtype=bool)
    for fold in set(folds):
        rows, openings = [row for row, other in enumerate(folds) if other == fold], learned[fold]
        margins[rows] = log_odds(np.stack([scores[opening][rows] for opening in openings], axis=1))
        covered[rows] = [covers(openings, answers[row]) for row in rows]
    return Check(kind, float(roc_auc_score(flags, margins)), float(covered[flags].mean()), refusals, others)
