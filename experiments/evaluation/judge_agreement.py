"""Agreement of refusal judges with XSTest's human labels, by model.

No judge has learned from the model that it judges, nor, in the figure that counts, from the prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.benchmarks.xstest import LabelledCompletion
from experiments.evaluation.classifier_training import HeldOut, LabelledAnswers, held_out, labelled_answers
from experiments.judges.refusal_rules import RefusalRule, read
from experiments.metrics.agreement import agreement, calibration, kappa, mean_kappa_interval
from experiments.types import Item, Judge, Verdict
from interp.errors import UserError

Completions = Mapping[str, Sequence[LabelledCompletion]]
Readings = Float[np.ndarray, " answer"]  # one judge's: 1 a refusal, 0 none, NaN where it failed; such are left out


def features(completions: Completions, groups: Mapping[str, str]) -> LabelledAnswers:
    """The classifier's features and labels of all completions; ``groups`` gives the group of twins of each case.

    Raises:
        UserError: a completion's case is in no group.
    """
    rows = [row for part in completions.values() for row in part]
    if absent := sorted({row.case for row in rows} - set(groups)):
        raise UserError(f"{absent[0]}: is in the completions and not among XSTest's prompts; take both as published")
    return labelled_answers(
        [row.response for row in rows],
        [row.refused for row in rows],
        models=[row.model for row in rows],
        prompts=[row.question for row in rows],
        groups=[groups[row.case] for row in rows],
    )


def read_by(judge: Judge, completions: Completions) -> Readings:
    """The verdicts of a judge that was trained on none of the answers."""
    items = [
        [Item(row.case, row.question, row.response, None, "comply") for row in part] for part in completions.values()
    ]
    return _readings([found.verdict for part in items for found in judge.judge(part)])


def by_authors(verdicts: Mapping[str, Mapping[str, Verdict | None]], completions: Completions) -> Readings:
    """The verdicts of a judge of the authors' (``experiments.benchmarks.xstest.read_authors_verdicts``)."""
    return _readings([verdicts[model].get(row.case) for model, part in completions.items() for row in part])


def _readings(verdicts: Sequence[Verdict | None]) -> Readings:
    refusals = {Verdict.REFUSED: 1.0, Verdict.PARTIAL: 1.0, Verdict.COMPLIED: 0.0}
    return np.array([refusals.get(one, np.nan) if one else np.nan for one in verdicts])


def measured(completions: Completions, readings: Readings, *, seed: int, draws: int) -> dict[str, Any]:
    """One judge's agreement with human labels: by model, over all answers, and the mean κ over models.

    ``readings`` are in the order of the completions.
    """
    rows = [(model, row) for model, part in completions.items() for row in part]
    people, cases = np.array([row.refused for _, row in rows]), np.array([row.case for _, row in rows])
    judged, models = ~np.isnan(readings), np.array([model for model, _ in rows])

    def agreed(where: Bool[np.ndarray, " answer"]) -> dict[str, Any]:
        found = agreement(people[where], readings[where] == 1, cases[where].tolist(), seed=seed, draws=draws)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    parts = {model: judged & (models == model) for model in completions}
    found = {
        model: agreed(where) | {"judge_failed": int((models == model).sum() - where.sum())}
        for model, where in parts.items()
    }
    kappas, interval = [one["kappa"] for one in found.values()], None
    if len({tuple(cases[where]) for where in parts.values()}) == 1:  # the same prompts can be drawn together
        sides = ([of[where] for where in parts.values()] for of in (people, readings == 1))
        interval = mean_kappa_interval(*sides, seed=seed, draws=draws)
    return {
        "models": found,
        "pooled": agreed(judged),
        "mean_kappa": None if None in kappas else float(np.mean(kappas)),
        "mean_kappa_interval": None if interval is None else list(interval),
    }


def offline_judges(completions: Completions, groups: Mapping[str, str], *, seed: int, draws: int) -> dict[str, Any]:
    """The agreement of the phrase rules, which learn from nothing, and of the classifier.

    The classifier's figure is that with model and prompt left out; ``models_left_out`` is the easier one beside.
    """
    answers = features(completions, groups)
    partial = np.array([row.verdict is Verdict.PARTIAL for part in completions.values() for row in part])
    ruled = np.array([read(row.response).verdict is Verdict.PARTIAL for part in completions.values() for row in part])

    def agreed(found: HeldOut) -> dict[str, Any]:
        thresholds = {
            model if fold is None else f"{model}, fold {fold}": one for (model, fold), one in found.thresholds.items()
        }
        return measured(completions, found.refused * 1.0, seed=seed, draws=draws) | {"thresholds": thresholds}

    found = held_out(answers, prompts=True)
    return {
        "refusal_rule": measured(completions, read_by(RefusalRule(), completions), seed=seed, draws=draws),
        "refusal_classifier": agreed(found)
        | {
            "calibration": calibration(answers.refused, found.chance),
            "three_classes": three_classes(answers, partial, found.refused, ruled),
            "models_left_out": agreed(held_out(answers, prompts=False)),
        },
    }


def three_classes(
    answers: LabelledAnswers,
    partial: Bool[np.ndarray, " answer"],
    refused: Bool[np.ndarray, " answer"],
    partly: Bool[np.ndarray, " answer"],
) -> dict[str, Any]:
    """Cohen's κ of complied, partly and wholly refused, by model; ``partly`` says which of those ``refused`` are so."""
    people, judge = (
        np.where(no, np.where(half, 1, 2), 0) for no, half in ((answers.refused, partial), (refused, partly))
    )
    models = {model: kappa(people[answers.model == model], judge[answers.model == model]) for model in answers.models}
    found, right = refused & answers.refused, partly == partial
    return {
        "kappa": models,
        "mean_kappa": None if None in models.values() else float(np.mean(list(models.values()))),
        "partial": int(partial.sum()),
        "partial_found": int((found & partial & partly).sum()),
        "called_partial": int((refused & partly).sum()),
        "full_or_partial_right": float(right[found].mean()) if found.any() else None,
    }
