"""Training of the refusal classifier on labelled answers, with scikit-learn.

Nested cross-validation over *models*: to judge one model's answers, the classifier is fitted and its settings are
chosen on the other models' answers only, so the reported agreement is held out from both.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from experiments.judges.refusal_classifier import SIGNS, Weights, sign_features, terms, weighted, words_of
from experiments.metrics.agreement import kappa

LEAST_DOCUMENTS = 3  # a term must occur in at least this many answers


@dataclass(frozen=True)
class ClassifierSettings:
    """The settings to be chosen. ``penalty`` is C, the inverse strength of the L2 penalty."""

    most_words: int
    mark_first: bool
    penalty: float
    threshold: float


GRID = tuple(
    itertools.starmap(
        ClassifierSettings,
        itertools.product((40, 100, 200), (False, True), (1.0, 3.0, 10.0, 30.0), (0.3, 0.35, 0.4, 0.45, 0.5)),
    )
)


class LabelledAnswers(NamedTuple):
    """Features and labels of answers."""

    words: list[list[str]]
    signs: Float[np.ndarray, "answer sign"]
    refused: Bool[np.ndarray, "answer"]


def labelled_answers(responses: Sequence[str], refused: Sequence[bool]) -> LabelledAnswers:
    """The features of labelled responses, the same for all settings."""
    flags = [sign_features(response) for response in responses]
    return LabelledAnswers([words_of(text) for text in responses], np.stack(flags), np.array(refused, dtype=bool))


def joined(parts: Sequence[LabelledAnswers]) -> LabelledAnswers:
    """Several models' answers as one set."""
    words = [document for part in parts for document in part.words]
    return LabelledAnswers(words, np.concatenate([p.signs for p in parts]), np.concatenate([p.refused for p in parts]))


def fit(answers: LabelledAnswers, settings: ClassifierSettings, *, trained_on: str) -> Weights:
    """Logistic regression of refusal on TF-IDF of the first words and on the phrase signs, L2-penalised.

    Deterministic: the problem is convex, and the solver starts at zero.
    """
    idf = _vocabulary(answers, settings)
    model = _regression(settings.penalty, _design(answers, settings, idf), answers.refused)
    coefficients = model.coef_[0]
    return Weights(
        terms={term: (value, float(coefficients[index])) for index, (term, value) in enumerate(idf.items())},
        signs=dict(zip(SIGNS, map(float, coefficients[len(idf) :]), strict=True)),
        intercept=float(model.intercept_[0]),
        most_words=settings.most_words,
        mark_first=settings.mark_first,
        threshold=settings.threshold,
        trained_on=trained_on,
    )


def choose(by_model: Mapping[str, LabelledAnswers], grid: Sequence[ClassifierSettings] = GRID) -> ClassifierSettings:
    """The settings with the highest mean κ over the models, each left out in turn; of equals, the first in ``grid``.

    Raises:
        ValueError: fewer than two models.
    """
    if len(by_model) < 2:
        raise ValueError(f"{len(by_model)} models; leaving one out needs two")
    scores = dict.fromkeys(grid, 0.0)
    for absent, answers in by_model.items():
        rest = joined([other for name, other in by_model.items() if name != absent])
        for settings, probabilities in _probabilities(rest, answers, grid):
            found = kappa(answers.refused, probabilities >= settings.threshold)
            scores[settings] += (0.0 if np.isnan(found) else found) / len(by_model)
    return max(grid, key=lambda settings: scores[settings])


def left_out(
    by_model: Mapping[str, LabelledAnswers], grid: Sequence[ClassifierSettings] = GRID
) -> dict[str, ClassifierSettings]:
    """For each model, the settings chosen without its answers."""
    return {
        name: choose({other: answers for other, answers in by_model.items() if other != name}, grid)
        for name in by_model
    }


def most_chosen(chosen: Mapping[str, ClassifierSettings]) -> ClassifierSettings:
    """The most frequent of the nested choices, for training on all answers; of equals, the first."""
    return Counter(chosen.values()).most_common(1)[0][0]


def _probabilities(
    train: LabelledAnswers, test: LabelledAnswers, grid: Sequence[ClassifierSettings]
) -> Iterator[tuple[ClassifierSettings, Float[np.ndarray, "answer"]]]:
    """The refusal probabilities of ``test`` under each of the settings; a fit serves all thresholds."""
    for most_words, mark_first in dict.fromkeys((one.most_words, one.mark_first) for one in grid):
        shared = [one for one in grid if (one.most_words, one.mark_first) == (most_words, mark_first)]
        idf = _vocabulary(train, shared[0])
        features, questions = _design(train, shared[0], idf), _design(test, shared[0], idf)
        for penalty in dict.fromkeys(one.penalty for one in shared):
            found = _regression(penalty, features, train.refused).predict_proba(questions)[:, 1]
            yield from ((one, found) for one in shared if one.penalty == penalty)


def inverse_frequencies(documents: Sequence[Iterable[str]], *, least: int) -> dict[str, float]:
    """ln((1 + n)/(1 + df)) + 1 of every term in at least ``least`` of the n documents, in sorted order."""
    counts = Counter(term for document in documents for term in set(document))
    n = len(documents)
    return {term: math.log((1 + n) / (1 + df)) + 1 for term, df in sorted(counts.items()) if df >= least}


def _vocabulary(answers: LabelledAnswers, settings: ClassifierSettings) -> dict[str, float]:
    return inverse_frequencies([_terms(words, settings) for words in answers.words], least=LEAST_DOCUMENTS)


def _terms(words: Sequence[str], settings: ClassifierSettings) -> list[str]:
    return terms(words, most=settings.most_words, mark_first=settings.mark_first)


def _design(answers: LabelledAnswers, settings: ClassifierSettings, idf: Mapping[str, float]) -> Any:
    """The sparse matrix of answers × (terms, signs)."""
    from scipy.sparse import csr_matrix, hstack

    column = {term: index for index, term in enumerate(idf)}
    rows, columns, values = [], [], []
    for row, words in enumerate(answers.words):
        for term, value in weighted(_terms(words, settings), idf).items():
            rows.append(row)
            columns.append(column[term])
            values.append(value)
    shape = (len(answers.words), len(idf))
    return hstack([csr_matrix((values, (rows, columns)), shape=shape), csr_matrix(answers.signs)]).tocsr()


def _regression(penalty: float, features: Any, refused: Bool[np.ndarray, "answer"]) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=penalty, max_iter=5_000, tol=1e-5).fit(features, refused.astype(int))
