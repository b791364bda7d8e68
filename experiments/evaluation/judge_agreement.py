"""Agreement of refusal judges with XSTest's human labels, by model.

No judge has learned from the model that it judges, nor, in the figure that counts, from the prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from experiments.benchmarks.xstest import LabelledCompletion
from experiments.evaluation.classifier_training import LabelledAnswers, held_out, labelled_answers
from experiments.judges.refusal_rules import RefusalRule
from experiments.metrics.agreement import agreement, mean_kappa_interval
from experiments.types import Item, Judge, Verdict
from interp.errors import UserError

Completions = Mapping[str, Sequence[LabelledCompletion]]


class JudgeRefusals(NamedTuple):
    """One judge's refusals by model; ``judged`` is false where it failed, and such answers are left out."""

    refused: dict[str, Bool[np.ndarray, "prompt"]]
    judged: dict[str, Bool[np.ndarray, "prompt"]]


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


def read_by(judge: Judge, completions: Completions) -> JudgeRefusals:
    """The verdicts of a judge that was trained on none of the answers."""
    refused, judged = {}, {}
    for model, rows in completions.items():
        items = [Item(row.case, row.question, row.response, None, "comply") for row in rows]
        verdicts = [found.verdict for found in judge.judge(items)]
        refused[model] = np.array([verdict in (Verdict.REFUSED, Verdict.PARTIAL) for verdict in verdicts])
        judged[model] = np.array([verdict is not Verdict.JUDGE_FAILED for verdict in verdicts])
    return JudgeRefusals(refused, judged)


def by_model(answers: LabelledAnswers, refused: Bool[np.ndarray, "answer"]) -> JudgeRefusals:
    """Verdicts on all answers, in the order of ``features``, apart by model."""
    parts = {model: refused[answers.model == model] for model in answers.models}
    return JudgeRefusals(parts, {model: np.ones(len(part), dtype=bool) for model, part in parts.items()})


def measured(completions: Completions, readings: JudgeRefusals, *, seed: int, draws: int) -> dict[str, Any]:
    """One judge's agreement with human labels: by model, over all answers, and the mean κ over models."""
    people = {model: np.array([row.refused for row in rows]) for model, rows in completions.items()}
    cases = {model: [row.case for row in rows] for model, rows in completions.items()}
    models, parts = {}, []
    for model, judged in readings.judged.items():
        prompts = [case for case, kept in zip(cases[model], judged, strict=True) if kept]
        part = (people[model][judged], readings.refused[model][judged], prompts)
        parts.append(part)
        found = agreement(*part, seed=seed, draws=draws).as_json()
        models[model] = found | {"judge_failed": int((~judged).sum())}
    all_people, all_judged = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
    all_prompts = [prompt for part in parts for prompt in part[2]]
    kappas = [one["kappa"] for one in models.values()]
    same = len({tuple(part[2]) for part in parts}) == 1  # the same prompts in the same order can be drawn together
    interval = (
        mean_kappa_interval([p[0] for p in parts], [p[1] for p in parts], seed=seed, draws=draws) if same else None
    )
    return {
        "models": models,
        "pooled": agreement(all_people, all_judged, all_prompts, seed=seed, draws=draws).as_json(),
        "mean_kappa": None if None in kappas else float(np.mean(kappas)),
        "mean_kappa_interval": None if interval is None else list(interval),
    }


def offline_judges(
    completions: Completions,
    groups: Mapping[str, str],
    *,
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """The agreement of the phrase rules, which learn from nothing, and of the classifier.

    The classifier's figure is that with model and prompt left out; ``models_left_out`` is the easier one beside.
    """
    answers = features(completions, groups)

    def classifier(prompts: bool) -> dict[str, Any]:
        found = held_out(answers, prompts=prompts)
        agreement_ = measured(completions, by_model(answers, found.refused), seed=seed, draws=draws)
        thresholds = {
            model if fold is None else f"{model}, fold {fold}": one for (model, fold), one in found.thresholds.items()
        }
        return agreement_ | {"thresholds": thresholds}

    return {
        "refusal_rule": measured(completions, read_by(RefusalRule(), completions), seed=seed, draws=draws),
        "refusal_classifier": classifier(True) | {"models_left_out": classifier(False)},
    }
