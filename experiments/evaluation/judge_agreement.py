"""Agreement of refusal judges with XSTest's human labels, by model.

No judge has learned from the model that it judges, nor, in the figure that counts, from the prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from experiments.benchmarks.xstest import LabelledCompletion
from experiments.evaluation.classifier_training import (
    THRESHOLDS,
    HeldOut,
    LabelledAnswers,
    Reader,
    held_out,
    labelled_answers,
    word_reader,
)
from experiments.evaluation.states_training import Features, held_out_partial, states_reader
from experiments.judges.refusal_lm import THRESHOLD
from experiments.judges.refusal_rules import RefusalRule, read
from experiments.metrics.agreement import agreement, calibration, kappa_of_classes, mean_kappa_interval
from experiments.types import Item, Judge, Verdict
from interp.errors import UserError

Completions = Mapping[str, Sequence[LabelledCompletion]]


class JudgeRefusals(NamedTuple):
    """One judge's refusals by model; ``judged`` is false where it failed, and such answers are left out."""

    refused: dict[str, Bool[np.ndarray, " prompt"]]
    judged: dict[str, Bool[np.ndarray, " prompt"]]


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


def by_model(answers: LabelledAnswers, refused: Bool[np.ndarray, " answer"]) -> JudgeRefusals:
    """Verdicts on all answers, in the order of ``features``, apart by model."""
    parts = {model: refused[answers.model == model] for model in answers.models}
    return JudgeRefusals(parts, {model: np.ones(len(part), dtype=bool) for model, part in parts.items()})


def by_authors(verdicts: Mapping[str, Mapping[str, Verdict | None]], completions: Completions) -> JudgeRefusals:
    """The verdicts of a judge of the authors' (``experiments.benchmarks.xstest.read_authors_verdicts``)."""
    listed = {model: [verdicts[model].get(row.case) for row in rows] for model, rows in completions.items()}
    return JudgeRefusals(
        {model: np.array([one not in (None, Verdict.COMPLIED) for one in part]) for model, part in listed.items()},
        {model: np.array([one is not None for one in part]) for model, part in listed.items()},
    )


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
    states: Features | None = None,
) -> dict[str, Any]:
    """The agreement of the phrase rules, which learn from nothing, and of the classifiers.

    A classifier's figure is that with model and prompt left out; ``models_left_out`` is the easier one beside. Given
    the language model's ``states`` of all completions, the judge that reads them is among the classifiers.
    """
    answers = features(completions, groups)
    partial = np.array([row.verdict is Verdict.PARTIAL for part in completions.values() for row in part])
    ruled = np.array([read(row.response).verdict is Verdict.PARTIAL for part in completions.values() for row in part])

    def agreed(found: HeldOut) -> dict[str, Any]:
        thresholds = {
            model if fold is None else f"{model}, fold {fold}": one for (model, fold), one in found.thresholds.items()
        }
        shown = measured(completions, by_model(answers, found.refused), seed=seed, draws=draws)
        return shown | {"thresholds": thresholds}

    def classifier(reader: Reader, partly: Bool[np.ndarray, " answer"], thresholds: Sequence[float]) -> dict[str, Any]:
        found = held_out(answers, prompts=True, reader=reader, thresholds=thresholds)
        return agreed(found) | {
            "calibration": calibration(answers.refused, found.chance),
            "three_classes": three_classes(answers, partial, found.refused, partly),
            "models_left_out": agreed(held_out(answers, prompts=False, reader=reader, thresholds=thresholds)),
        }

    judges = {
        "refusal_rule": measured(completions, read_by(RefusalRule(), completions), seed=seed, draws=draws),
        "refusal_classifier": classifier(word_reader(answers), ruled, THRESHOLDS),
    }
    if states is not None:
        judges["refusal_lm"] = classifier(
            states_reader(answers, states, partial), held_out_partial(answers, states, partial), (THRESHOLD,)
        )
    return judges


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
    models = {model: kappa_of_classes(people[answers.model == model], judge[answers.model == model])
              for model in answers.models}  # fmt: skip
    found, right = refused & answers.refused, partly == partial
    return {
        "kappa": models,
        "mean_kappa": float(np.mean(list(models.values()))),
        "partial": int(partial.sum()),
        "partial_found": int((found & partial & partly).sum()),
        "called_partial": int((refused & partly).sum()),
        "full_or_partial_right": float(right[found].mean()) if found.any() else None,
    }
