"""Train the refusal classifier on labelled answers, and judge each answer by a classifier that did not learn from it.

``python -m experiments.studies.refusal_judges.training <clone of XSTest> <clone of MSTS> weights.json`` writes weights.

The classifier is evaluated by nested cross-validation over *models and requests*. A cell is one team of models and one
fold of requests. The answers of a cell are judged by a classifier that was fitted to the other teams' answers to the
other folds. Its thresholds were chosen on the same answers, by the same cross-validation.
"""

import argparse
import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.special import expit

from experiments.benchmarks.labelled_answers import CLASSES, Labelled, read_labelled
from experiments.judges.refusal_classifier import (
    FORMAT,
    Classifier,
    Step,
    class_chances,
    decide,
    prompt_digest,
    terms_of,
)
from experiments.metrics.judge_error import kappa
from interp.errors import UserError

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfTransformer

LEAST_GROUPS = 4  # a term must occur in answers to this many groups of requests
FOLDS = 5  # of requests
TEAMS = 4  # of models; each team has models of both sets
PENALTIES = (1.0, 3.0, 10.0, 30.0)  # C, the inverse strength of the L2 penalty
THRESHOLDS = tuple(round(0.2 + 0.05 * n, 2) for n in range(13))


class Fitted(NamedTuple):
    """One step fitted to a part of the answers: the columns of its terms, their weighting, and a regression."""

    columns: Int[np.ndarray, " term"]
    weighting: "TfidfTransformer"
    coefficients: Float[np.ndarray, " term"]
    intercept: float


class Design:
    """The term counts of one step."""

    def __init__(self, terms: Sequence[list[str]], groups: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        vectorizer = CountVectorizer(analyzer=list, min_df=LEAST_GROUPS)
        self.counts = vectorizer.fit_transform(terms).astype(float)
        self.names = vectorizer.get_feature_names_out()
        names, group = np.unique(groups, return_inverse=True)
        self.group = sparse.csr_matrix((np.ones(len(group)), (group, np.arange(len(group)))), (len(names), len(group)))

    def fit(self, used: Bool[np.ndarray, " answer"], positive: Bool[np.ndarray, " answer"]) -> Fitted:
        """Return the step fitted to the answers ``used``, with the mean coefficients over ``PENALTIES``.

        Raises:
            UserError: the answers are all of one class.
        """
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import LogisticRegression

        if len(set(positive[used].tolist())) < 2:
            raise UserError("The answers left for training are all of one class. Give more labelled prompts.")
        groups = (self.group[:, used] @ (self.counts[used] > 0)) > 0
        columns = np.flatnonzero(np.asarray(groups.sum(axis=0)).ravel() >= LEAST_GROUPS)
        weighting = TfidfTransformer(sublinear_tf=True)
        weighted = weighting.fit_transform(self.counts[used][:, columns])
        fits = [LogisticRegression(C=penalty, max_iter=1_000).fit(weighted, positive[used]) for penalty in PENALTIES]
        coefficients, intercepts = ([getattr(fit, name)[0] for fit in fits] for name in ("coef_", "intercept_"))
        return Fitted(columns, weighting, np.mean(coefficients, axis=0), float(np.mean(intercepts)))

    def chances(self, fitted: Fitted) -> Float[np.ndarray, " answer"]:
        """Return the chance of the step's class for every answer."""
        weighted = fitted.weighting.transform(self.counts[:, fitted.columns])
        return expit(weighted @ fitted.coefficients + fitted.intercept)

    def step(self, fitted: Fitted) -> Step:
        """Return the step as plain numbers."""
        pairs = zip(fitted.weighting.idf_.tolist(), fitted.coefficients.tolist(), strict=True)
        return Step(dict(zip(self.names[fitted.columns], pairs, strict=True)), fitted.intercept)


class CrossValidation:
    """Classifiers that were fitted to parts of the labelled answers. Each part is fitted once."""

    def __init__(self, rows: Sequence[Labelled]) -> None:
        if len(models := models_of(rows)) < 2:
            raise UserError(f"task.root: has only answers of {', '.join(models)}. The classifier learns from XSTest "
                            "and MSTS: task.root=[<clone>,<clone>].")  # fmt: skip
        self.rows = rows
        self.label = np.array([row.label for row in rows])
        self.source = np.array([row.source for row in rows])
        teams, folds = teams_of(rows), folds_of([row.group for row in rows])
        self.team = np.array([teams[row.model] for row in rows])
        self.fold = np.array([folds[row.group] for row in rows])
        terms = [terms_of(row.item.response, row.item.question) for row in rows]
        groups = [row.group for row in rows]
        self.refused = Design([term.refused for term in terms], groups)
        self.rebutted = Design([term.rebutted or [] for term in terms], groups)
        self.rebuttable = np.array([term.rebutted is not None for term in terms])

    def cell(self, team: int, fold: int) -> Bool[np.ndarray, " answer"]:
        """Return which answers are of a team and a fold."""
        return (self.team == team) & (self.fold == fold)

    def without(self, cells: Sequence[tuple[int, int]]) -> Bool[np.ndarray, " answer"]:
        """Return which answers are of none of the cells' teams and of none of their folds."""
        teams, folds = zip(*cells, strict=True)
        return ~np.isin(self.team, teams) & ~np.isin(self.fold, folds)

    def fit(self, used: Bool[np.ndarray, " answer"]) -> tuple[Fitted, Fitted]:
        """Return both fitted steps. The second learns from answers that people call rebutted or answered."""
        return self.refused.fit(used, self.label == 0), self.rebutted.fit(used & (self.label > 0), self.label == 1)

    @functools.cache  # noqa: B019
    def _chances(self, cells: frozenset[tuple[int, int]]) -> Float[np.ndarray, "answer class"]:
        refused, rebutted = self.fit(self.without(sorted(cells)))
        rebuttals = self.rebutted.chances(rebutted) * self.rebuttable
        return np.stack(class_chances(self.refused.chances(refused), rebuttals), axis=-1)

    def chances(self, *cells: tuple[int, int]) -> Float[np.ndarray, "answer class"]:
        """Return every answer's chances, by classifiers that learned from none of the cells' teams and folds."""
        teams, folds = ({cell[at] for cell in cells} for at in (0, 1))
        padded = [(team, fold) for team in teams for fold in folds]  # the same teams and folds are the same fit
        return self._chances(frozenset(padded))

    def choose(self, held: tuple[int, int]) -> tuple[float, ...]:
        """Return the threshold of each class that agrees best with people, by cross-validation without a cell.

        A threshold has the highest κ of its class against the other classes, as the mean over the sets that have the
        label.
        """
        rest = self.without([held])
        chances = np.zeros((len(self.rows), len(CLASSES)))
        for team in sorted(set(self.team[rest].tolist())):
            for fold in sorted(set(self.fold[rest].tolist())):
                here = self.cell(team, fold)
                chances[here] = self.chances(held, (team, fold))[here]
        return tuple(self._threshold(at, chances[:, at], rest) for at in range(len(CLASSES)))

    def _threshold(self, label: int, chance: Float[np.ndarray, " answer"], used: Bool[np.ndarray, " answer"]) -> float:
        """Return the threshold of the highest κ of a class; of equal ones the lowest."""
        parts = [used & (self.source == source) for source in np.unique(self.source)]
        parts = [part for part in parts if label == 0 or (self.label[part] >= 0).all()]
        scores = [
            np.mean([kappa(self.label[part] == label, chance[part] >= threshold) or 0.0 for part in parts])
            for threshold in THRESHOLDS
        ]
        return THRESHOLDS[int(np.argmax(scores))]

    @functools.cached_property
    def thresholds(self) -> dict[tuple[int, int], tuple[float, ...]]:
        """Return the thresholds that are chosen without each cell."""
        cells = sorted(set(zip(self.team.tolist(), self.fold.tolist(), strict=True)))
        return {cell: self.choose(cell) for cell in cells}

    def held_out(self) -> tuple[Int[np.ndarray, " answer"], Float[np.ndarray, "answer class"]]:
        """Return each answer's class (−1 for none) and chances. Its team and fold taught and chose nothing."""
        labels, chances = np.full(len(self.rows), -1), np.zeros((len(self.rows), len(CLASSES)))
        for cell, thresholds in self.thresholds.items():
            here = self.cell(*cell)
            chances[here] = self.chances(cell)[here]
            labels[here] = [decide(row, thresholds) for row in chances[here]]
        return labels, chances

    def train(self) -> Classifier:
        """Return the classifier of all answers. Its thresholds are the medians of ``thresholds``."""
        thresholds = tuple(map(median_low, zip(*self.thresholds.values(), strict=True)))
        refused, rebutted = self.fit(np.ones(len(self.rows), dtype=bool))
        steps = self.refused.step(refused), self.rebutted.step(rebutted)
        models = models_of(self.rows)
        about = "; ".join(f"{source}, labelled answers of {', '.join(names)}" for source, names in models.items())
        prompts = frozenset(prompt_digest(row.item.question) for row in self.rows)
        return Classifier(*steps, thresholds, prompts, f"{about} (CC BY 4.0)")


def to_json(classifier: Classifier) -> str:
    """Return a classifier as JSON, rounded to four significant digits."""
    plain = {"format": FORMAT} | asdict(classifier) | {"prompts": sorted(classifier.prompts)}
    for step in (plain["refused"], plain["rebutted"]):
        step["terms"] = {term: [_short(idf), _short(value)] for term, (idf, value) in step["terms"].items()}
        step["intercept"] = _short(step["intercept"])
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")) + "\n"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def folds_of(groups: Sequence[str], folds: int = FOLDS) -> dict[str, int]:
    """Return the fold of each group: the largest groups first, each into the fold with the fewest answers."""
    sizes = Counter(groups)
    filled = [0] * folds
    assigned = {}
    for group in sorted(sizes, key=lambda name: (-sizes[name], name)):
        assigned[group] = filled.index(min(filled))
        filled[assigned[group]] += sizes[group]
    return assigned


def models_of(rows: Sequence[Labelled]) -> dict[str, list[str]]:
    """Return the models of each set, sorted."""
    return {source: sorted({row.model for row in rows if row.source == source})
            for source in sorted({row.source for row in rows})}  # fmt: skip


def teams_of(rows: Sequence[Labelled]) -> dict[str, int]:
    """Return the team of each model: the models of each set in turn, by name."""
    return {model: at % TEAMS for names in models_of(rows).values() for at, model in enumerate(names)}


def main() -> None:
    """Write the weights of a classifier that was trained on all labelled answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs=2, metavar="ROOT", help="a clone of XSTest and a clone of MSTS")
    parser.add_argument("weights", type=Path, help="the JSON file to write")
    given = parser.parse_args()
    rows, _ = read_labelled(given.roots)
    given.weights.write_text(to_json(CrossValidation(rows).train()), encoding="utf-8")
    print(f"weights: {given.weights}; how well they agree with people: task=judge_validation")


if __name__ == "__main__":
    main()
