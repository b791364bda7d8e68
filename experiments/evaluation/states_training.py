"""Training of the refusal judge on states (``experiments.judges.refusal_lm``), with scikit-learn.

The same labelled answers, folds of prompts and measurement with models and prompts left out as the word classifier's
(``experiments.evaluation.classifier_training``). Nothing is chosen here: penalty and threshold are constants.
"""

import itertools

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.evaluation.classifier_training import LabelledAnswers, Reader
from experiments.judges.refusal_lm import COMPLIED, PARTIAL, REFUSED, StateWeights, class_chances
from interp.errors import UserError

PENALTY = 0.01  # C of the logistic regression
NEVER = -50.0  # the intercept of a class that the answers for training lack
Features = Float[np.ndarray, "answer feature"]


def classes_of(answers: LabelledAnswers, partial: Bool[np.ndarray, " answer"]) -> Int[np.ndarray, " answer"]:
    """Complied, partial or refused, by people."""
    return np.where(answers.refused, np.where(partial, PARTIAL, REFUSED), COMPLIED)


def regression(
    features: Features, classes: Int[np.ndarray, " answer"], used: Bool[np.ndarray, " answer"]
) -> Float[np.ndarray, "class weight"]:
    """L2-penalised multinomial logistic regression over features standardised on the answers ``used``.

    Coefficients are in the features' own units, the intercept last (``class_chances``).

    Raises:
        UserError: the answers ``used`` are of one class alone.
    """
    from sklearn.linear_model import LogisticRegression

    known = np.unique(classes[used])
    if len(known) < 2:
        raise UserError("the answers left for training have one label alone; give more labelled prompts")
    mean, spread = features[used].mean(axis=0), features[used].std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    fitted = LogisticRegression(C=PENALTY, max_iter=2_000).fit((features[used] - mean) / scale, classes[used])
    coefficients, intercepts = fitted.coef_, fitted.intercept_
    if len(known) == 2:  # scikit-learn then gives the second class's scores alone
        coefficients = np.concatenate([0 * coefficients, coefficients])
        intercepts = np.concatenate([0 * intercepts, intercepts])
    weights = np.zeros((REFUSED + 1, features.shape[1] + 1))
    weights[:, -1] = NEVER
    weights[known, :-1] = coefficients / scale
    weights[known, -1] = intercepts - coefficients @ (mean / scale)
    return weights


def states_reader(answers: LabelledAnswers, states: Features, partial: Bool[np.ndarray, " answer"]) -> Reader:
    """The judge on states."""
    classes = classes_of(answers, partial)

    def read(used: Bool[np.ndarray, " answer"]) -> Float[np.ndarray, " answer"]:
        chances = class_chances(states, regression(states, classes, used))
        return np.where(answers.wholly, 1.0, 1 - chances[:, COMPLIED])

    return read


def held_out_partial(
    answers: LabelledAnswers, states: Features, partial: Bool[np.ndarray, " answer"]
) -> Bool[np.ndarray, " answer"]:
    """Whether each answer, if it refuses, does so in part: read without its model and its fold of prompts."""
    classes, found = classes_of(answers, partial), np.zeros(len(partial), dtype=bool)
    for model, fold in itertools.product(answers.models, answers.folds):
        tested = (answers.model == model) & (answers.fold == fold)
        weights = regression(states, classes, (answers.model != model) & (answers.fold != fold))
        chances = class_chances(states[tested], weights)
        found[tested] = chances[:, PARTIAL] > chances[:, REFUSED]
    return found


def train_on_states(
    answers: LabelledAnswers,
    states: Features,
    partial: Bool[np.ndarray, " answer"],
    *,
    model: str,
    layer: int,
    trained_on: str,
) -> StateWeights:
    """The weights of all answers, and those without each fold of prompts; ``partial`` says which refusals are partial.

    Raises:
        UserError: as ``regression``.
    """
    classes = classes_of(answers, partial)
    places = {fold: at for at, fold in enumerate(answers.folds)}
    return StateWeights(
        sets=np.stack([regression(states, classes, answers.fold != fold) for fold in (None, *answers.folds)]),
        prompts={prompt: places[fold] for prompt, fold in zip(answers.prompt, answers.fold.tolist(), strict=True)},
        model=model,
        layer=layer,
        trained_on=trained_on,
    )
