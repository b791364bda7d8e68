"""How far each offline judge agrees with XSTest's people, by model, that model's answers left out of all training."""

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
    """One judge's refusals by model; ``judged`` is false where it failed, which leaves the agreement."""

    refused: dict[str, Bool[np.ndarray, "prompt"]]
    judged: dict[str, Bool[np.ndarray, "prompt"]]


def features(completions: Completions) -> dict[str, LabelledAnswers]:
    """What the classifier sees, by model."""
    return {
        model: labelled_answers([row.response for row in rows], [row.refused for row in rows])
        for model, rows in completions.items()
    }


def read_by(judge: Judge, completions: Completions) -> JudgeRefusals:
    """A judge that was trained on none of the answers reads them all."""
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
    """The classifier reads each model's answers after training on the others', with settings chosen on the others."""
    refused = {}
    for model, rows in completions.items():
        rest = joined([other for name, other in answers.items() if name != model])
        weights = fit(rest, settings[model], trained_on=f"all but {model}")
        refused[model] = np.array([weights.probability(row.response) >= weights.threshold for row in rows])
    return JudgeRefusals(refused, {model: np.ones(len(rows), dtype=bool) for model, rows in completions.items()})


def measured(completions: Completions, readings: JudgeRefusals, *, seed: int, draws: int) -> dict[str, Any]:
    """One judge's agreement with people: by model, over all answers, and the mean κ of the models."""
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
    """The rule and the classifier, measured; the classifier with the settings that each left-out model led to."""
    answers = features(completions)
    settings = left_out(answers)
    classifier = measured(completions, read_by_classifier(completions, answers, settings), seed=seed, draws=draws)
    chosen = {model: asdict(one) for model, one in settings.items()}
    return {
        "refusal_rule": measured(completions, read_by(RefusalRule(), completions), seed=seed, draws=draws),
        "refusal_classifier": classifier | {"settings_without_the_model": chosen},
    }
