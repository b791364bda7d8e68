"""Agreement of refusal judges with XSTest's human labels, by model; no judge was trained on the model it judges."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from experiments.benchmarks.xstest import LabelledCompletion
from experiments.evaluation.classifier_training import (
    ClassifierSettings,
    LabelledAnswers,
    fit,
    joined,
    labelled_answers,
    left_out,
)
from experiments.judges.refusal_rules import RefusalRule
from experiments.metrics.agreement import agreement, mean_kappa_interval
from experiments.types import Item, Judge, Verdict

Completions = Mapping[str, Sequence[LabelledCompletion]]


class JudgeRefusals(NamedTuple):
    """One judge's refusals by model; ``judged`` is false where it failed, and such answers are left out."""

    refused: dict[str, Bool[np.ndarray, "prompt"]]
    judged: dict[str, Bool[np.ndarray, "prompt"]]


def features(completions: Completions) -> dict[str, LabelledAnswers]:
    """The classifier's features and labels, by model."""
    return {
        model: labelled_answers([row.response for row in rows], [row.refused for row in rows])
        for model, rows in completions.items()
    }


def read_by(judge: Judge, completions: Completions) -> JudgeRefusals:
    """The verdicts of a judge that was trained on none of the answers."""
    refused, judged = {}, {}
    for model, rows in completions.items():
        items = [Item(row.case, row.question, row.response, None, "comply") for row in rows]
        verdicts = [found.verdict for found in judge.judge(items)]
        refused[model] = np.array([verdict in (Verdict.REFUSED, Verdict.PARTIAL) for verdict in verdicts])
        judged[model] = np.array([verdict is not Verdict.JUDGE_FAILED for verdict in verdicts])
    return JudgeRefusals(refused, judged)


def read_by_classifier(
    completions: Completions, answers: Mapping[str, LabelledAnswers], settings: Mapping[str, ClassifierSettings]
) -> JudgeRefusals:
    """The classifier's verdicts on each model, trained, and its settings chosen, on the other models' answers."""
    refused = {}
    for model, rows in completions.items():
        rest = joined([other for name, other in answers.items() if name != model])
        weights = fit(rest, settings[model], trained_on=f"all but {model}")
        refused[model] = np.array([weights.probability(row.response) >= weights.threshold for row in rows])
    return JudgeRefusals(refused, {model: np.ones(len(rows), dtype=bool) for model, rows in completions.items()})


def measured(completions: Completions, readings: JudgeRefusals, *, seed: int, draws: int) -> dict[str, Any]:
    """One judge's agreement with human labels: by model, over all answers, and the mean κ over models."""
    people = {model: np.array([row.refused for row in rows]) for model, rows in completions.items()}
    cases = {model: [row.case for row in rows] for model, rows in completions.items()}
    by_model, parts = {}, []
    for model, judged in readings.judged.items():
        prompts = [case for case, kept in zip(cases[model], judged, strict=True) if kept]
        part = (people[model][judged], readings.refused[model][judged], prompts)
        parts.append(part)
        found = agreement(*part, seed=seed, draws=draws).as_json()
        by_model[model] = found | {"judge_failed": int((~judged).sum())}
    all_people, all_judged = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
    all_prompts = [prompt for part in parts for prompt in part[2]]
    kappas = [one["kappa"] for one in by_model.values()]
    same = len({tuple(part[2]) for part in parts}) == 1  # the same prompts in the same order can be drawn together
    interval = (
        mean_kappa_interval([p[0] for p in parts], [p[1] for p in parts], seed=seed, draws=draws) if same else None
    )
    return {
        "models": by_model,
        "pooled": agreement(all_people, all_judged, all_prompts, seed=seed, draws=draws).as_json(),
        "mean_kappa": None if None in kappas else float(np.mean(kappas)),
        "mean_kappa_interval": None if interval is None else list(interval),
    }


def offline_judges(completions: Completions, *, seed: int, draws: int) -> dict[str, Any]:
    """The agreement of the phrase rules and of the classifier, the latter with the settings chosen for each model."""
    answers = features(completions)
    settings = left_out(answers)
    classifier = measured(completions, read_by_classifier(completions, answers, settings), seed=seed, draws=draws)
    chosen = {model: asdict(one) for model, one in settings.items()}
    return {
        "refusal_rule": measured(completions, read_by(RefusalRule(), completions), seed=seed, draws=draws),
        "refusal_classifier": classifier | {"settings_without_the_model": chosen},
    }
