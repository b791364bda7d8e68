"""From answers to records by a judge or by the signs of margins, and from records to results.csv and metrics.json.

It also says how many thoughts the token budget cut off, and which budget would have let most of them end. No model is
called. Imports neither torch nor transformers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from statsmodels.duration.survfunc import SurvfuncRight

from experiments.benchmarks.images import one_picture
from experiments.config import Run
from experiments.evaluation.cases import judged_turns, transcript
from experiments.judges.refusal_phrases import (
    MOST_UNMEASURED,
    language_of,
    languages_of,
    primary,
    unmeasured_part,
    without_picture,
)
from experiments.judges.yes_no import published_verdict
from experiments.metrics import results
from experiments.metrics.judge_error import corrected_rates, error_of
from experiments.metrics.results import ALL, Evaluation
from experiments.runs import record_fields
from experiments.runs.results_table import Results, Row
from experiments.types import Item, Judge, Judgement, Kind, Sample, Status, Verdict
from interp.errors import UserError
from interp.thoughts import Spoken, split

if TYPE_CHECKING:
    from interp.vlm import Generation


COLUMNS = ["arm", "status", "response", "thought", "margin", "thought_tokens", "verdict_step"]
SHARE = 0.95  # of the thoughts that are to come to their end


def thoughts_by_arm(predictions: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By arm that thinks: ``n`` answers to scored cases, of them ``thought`` after a thought and ``cut_off`` within it.

    ``tokens`` is how long these thoughts are, in the mean. ``longest`` is the number of tokens after which the longest
    thought was cut off. ``budget`` is the number within which 95% of the thoughts end (``tokens_until``). Both are None
    if unknown. ``at_verdict`` is whether every margin after a thought is read at the verdict, not at the thought's
    first token. Columns of ``predictions``: arm, subset, status, response, thought, margin, and thought_tokens and
    verdict_step where a model counted them.
    """
    if "thought" not in predictions:
        return {}
    by_arm, table = {}, predictions[predictions["subset"] != "control"].reindex(columns=COLUMNS)
    for arm, rows in table.groupby("arm", sort=False):
        thinking = rows[rows["thought"].fillna("").astype(bool)]
        if thinking.empty:
            continue
        cut = ((thinking["status"] == Status.TRUNCATED) & ~thinking["response"].fillna("").astype(bool)).to_numpy()
        lengths = thinking["thought_tokens"].to_numpy(dtype=float)
        counted = bool(np.isfinite(lengths).all())
        by_arm[str(arm)] = {
            "n": len(rows),
            "thought": len(thinking),
            "cut_off": int(cut.sum()),
            "tokens": float(np.mean(lengths)) if counted else None,
            "longest": int(lengths[cut].max()) if counted and cut.any() else None,
            "budget": tokens_until(lengths, ~cut) if counted else None,
            "at_verdict": bool((thinking["verdict_step"].notna() | thinking["margin"].isna()).all()),
        }
    return by_arm


def tokens_until(lengths: Sequence[float], ended: Sequence[bool], share: float = SHARE) -> int | None:
    """Return the least number of tokens within which a ``share`` of thoughts end; None if the thoughts do not show it.

    A thought that was cut off would have been longer: it is censored. The share is the product-limit estimate of Kaplan
    and Meier (1958).
    """
    tokens = SurvfuncRight(np.asarray(lengths), np.asarray(ended, dtype=int)).quantile(share - 1e-12)
    return None if np.isnan(tokens) else int(tokens)


Family = Mapping[str, Any]  # study: an arm; contrasts: pairs of arms
ONE_WORD = re.compile(r"\W*\w+\W*")
FEWEST_TEXTS = 3  # answers that are alike, of sentences
FEWEST_WORDS = 10  # and of single words, which are alike by chance
SHOWN = 200  # characters of such a text


def evaluate(
    run: Run,
    predictions: Sequence[Mapping[str, Any]],
    *,
    study: str,
    kind: Kind | None = None,
    judge: Judge | str | None = None,
    missing: Mapping[str, str] = MappingProxyType({}),
    baseline: str = "baseline",
    control: str = "calibrated_shift",
    first: Family | None = None,
    unmeasured: bool = False,
) -> Evaluation:
    """Return the results table of a run and what metrics.json says of its design.

    Args:
        run: its seed, draws, contrasts, operating point and judge are used.
        predictions: its records.
        study: the arm under study.
        kind: the run's unless it scores other answers than its own.
        judge: the run's unless people or another judge helped; then only a name.
        missing: arms that cannot enter, with the reason.
        baseline: the arm that others are compared with.
        control: the arm that only shifts the threshold.
        first: the comparisons that the run was begun for. What goes beyond them is marked as exploratory.
        unmeasured: whether nothing may be claimed from the verdicts.

    Raises:
        UserError: the predictions or the judge card cannot be used.
    """
    frame, judge, kind = pd.DataFrame(predictions), judge or run.judge, kind or run.benchmark.kind
    refusals, blind = kind == "refusal", without_picture(frame)
    evaluation = results.evaluate(
        frame,
        kind,
        seed=run.seed,
        draws=run.draws,
        baseline=baseline,
        control=control,
        study=study,
        contrasts=[(arm, other) for arm, other in run.contrasts],
        operating_point=run.operating_point,
        empty_as_refusal=run.count_empty_as_refusal,
        safety_margin=run.unsafe_margin,
        not_applicable=missing,
        unmeasured=unmeasured or bool(blind) or (refusals and unmeasured_part(judge, frame)["share"] > MOST_UNMEASURED),
    )
    design = evaluation.design | _family(evaluation.design, baseline, first or family(study, run.contrasts))
    if "protocol" in frame and (frame["protocol"] == "score").all():
        design |= {"protocol": "score"}
    if "fold" in frame:
        design |= {"learned_in_folds": list(dict.fromkeys(frame["arm"][frame["fold"].notna()]))}
    if thinking := thoughts_by_arm(frame):
        design |= {"thoughts": thinking}
    if blind:
        design |= {"no_picture": blind}
    if alike := same_texts(frame):
        design |= {"same_text": alike}
    if not refusals:
        return Evaluation(evaluation.results, design)
    about, corrected = _limits_of_judge(evaluation.results, judge, run.judge_card, frame)
    return Evaluation(Results([*evaluation.results, *corrected]), design | about)


def family(study: str, contrasts: Sequence[Sequence[str]]) -> Family:
    """Return the comparisons that a run was begun for: its arm under study, and its contrasts."""
    return {"study": study, "contrasts": [list(pair) for pair in contrasts]}


def first_family(environment: Mapping[str, Any]) -> Family:
    """Return the family that a run recorded when it began."""
    return environment.get("family") or family(str(environment.get("arm_under_study")), [])


def _family(result: Mapping[str, Any], baseline: str, first: Family) -> dict[str, Any]:
    """``family``, the first one, and where ``result`` compares what is not in it, ``exploratory``."""
    study = result["study"] if result["study"] not in (first["study"], baseline, None) else None
    planned = first["contrasts"]
    later = [pair for pair in result["contrasts"] if pair not in planned and [ALL, pair[1]] not in planned]
    return {"family": first} | ({"exploratory": {"study": study, "contrasts": later}} if study or later else {})


def same_texts(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the arms whose answers are all the same text: ``text``, ``n`` answers, ``word`` (whether it is only a
    verdict: "No.").

    Columns of ``frame``: arm, status, verdict, response. Left out are arms with too few answers for it to be a sign.
    """
    if not {"status", "response", "verdict"} <= set(frame):
        return {}
    repeated: dict[str, dict[str, Any]] = {}
    has_text = frame["status"].isin([Status.ANSWERED.value, Status.TRUNCATED.value]) & frame["response"].notna()
    for arm, answers in frame[has_text].groupby("arm", sort=False):
        texts = answers["response"].str.strip()
        text = str(texts.iloc[0])
        if not text and "thought" in answers and answers["thought"].notna().any():
            continue  # thoughts alone, which differ
        word = bool(ONE_WORD.fullmatch(text)) and answers["verdict"].iloc[0] in ("yes", "no")
        if texts.nunique() == 1 and len(texts) >= (FEWEST_WORDS if word else FEWEST_TEXTS):
            repeated[str(arm)] = {"text": text[:SHOWN], "n": len(texts), "word": word}
    return repeated


def _limits_of_judge(
    table: Results, judge: Judge | str, given: str | None, frame: pd.DataFrame
) -> tuple[dict[str, Any], list[Row]]:
    """Return what limits the judge, and the refusal rates corrected for its measured error.

    ``judge`` says how many of the prompts it has learned from. ``corrected`` says which error was used, by the judge
    card that was ``given`` or by the judge's own.
    """
    name = judge if isinstance(judge, str) else judge.name
    about: dict[str, Any] = {"name": name}
    prompts = set(frame["text"]) if "text" in frame else set()
    if (learned_from := getattr(judge, "learned_from", None)) and (learned := learned_from(prompts)):
        about["learned"] = {"known": learned, "asked": len(prompts)}
    card = given or getattr(judge, "card", None)
    foreign = sorted(language for language in {*languages_of(frame)} if primary(language) != "en")
    if (unmeasured := unmeasured_part(judge, frame))["languages"]:
        about["unmeasured"] = unmeasured
    if card is not None and given is None and foreign:
        about["uncorrected"] = foreign
        card = None
    if card is None:
        return {"judge": about}, []
    error, rows = corrected_rates(table, error_of(Path(card), name))
    return {"judge": about, "corrected": error}, rows


JUDGE = "margin"  # the judge in records of scored verdicts


def judge_batch(samples: Sequence[Sample], arm: str, generation: "Generation", judge: Judge) -> list[dict[str, Any]]:
    """Return the records of one batch, its answers judged together."""
    generation = _told_apart(generation)
    statuses = [record_fields.status_of(generation, index) for index in range(len(samples))]
    readable = [index for index, status in enumerate(statuses) if status.has_text and generation.texts[index]]
    told = generation.steps or [{} for _ in samples]
    items = list(map(item_of, samples, generation.texts, told))
    judgements = dict(zip(readable, judge.judge([items[at] for at in readable]), strict=True)) if readable else {}
    if any(sample.turns for sample in samples):
        generation = replace(generation, steps=judged_turns(told, items, judge))
    lines = []
    for index, (sample, status) in enumerate(zip(samples, statuses, strict=True)):
        reason = "" if generation.reasons is None else generation.reasons[index]
        if status.excluded:
            lines.append(record_fields.failed(sample, arm, status, reason))
            continue
        judgement, response = judgements.get(index, judgement_without_text(judge)), generation.texts[index]
        lines.append(_answered(sample, arm, generation, index, status=status, response=response,
                               judgement=judgement, judge=judge.name))  # fmt: skip
    return lines


def _told_apart(generation: "Generation") -> "Generation":
    """If thought and answer are separate, only the answer is judged.

    What a model brings is told apart where it answers; of texts from elsewhere, or of a method of one's own, here. Of
    what was said to be answered, a thought that was never closed is truncated, and one without an answer empty.
    """
    if generation.thoughts is not None:
        spoken = [Spoken(*both, finished=True) for both in zip(generation.thoughts, generation.texts, strict=True)]
    else:
        spoken = [split(text) for text in generation.texts]
    if not any(one.thought for one in spoken):
        return generation
    statuses = generation.statuses and [
        (Status.EMPTY if one.finished else Status.TRUNCATED).value
        if one.thought and not one.answer and status == Status.ANSWERED
        else status
        for one, status in zip(spoken, generation.statuses, strict=True)
    ]
    texts = [one.answer.strip() if one.thought else one.answer for one in spoken]
    return replace(generation, texts=texts, thoughts=[one.thought for one in spoken], statuses=statuses)


def scored(samples: Sequence[Sample], arm: str, generation: "Generation") -> list[dict[str, Any]]:
    """Return the records of one batch under ``protocol=score``: verdicts are the signs of the margins.

    Raises:
        UserError: a margin is not a number.
    """
    lines, unread = [], 0
    for index, sample in enumerate(samples):
        margin = float(generation.margins[index])
        status = record_fields.status_of(generation, index) if generation.statuses else Status.ANSWERED
        if status.excluded or status is Status.PROVIDER_BLOCKED:
            reason = "" if generation.reasons is None else generation.reasons[index]
            lines.append(record_fields.failed(sample, arm, status, reason))
            continue
        low, high = generation.bounds[index] if generation.bounds else (margin, margin)
        undecided = low < 0 < high
        unread += not (isfinite(margin) or undecided)
        verdict = Verdict.YES if margin > 0 else Verdict.NO
        response = f"{verdict.value.title()}."  # the word that the margin stands for
        if undecided:
            verdict, response = Verdict.NO_VERDICT, ""
        record = _answered(sample, arm, generation, index, status=Status.ANSWERED, response=response,
                           judgement=Judgement(verdict), judge=JUDGE)  # fmt: skip
        lines.append(record | {"protocol": "score"})
    if unread:
        raise UserError(
            f"arm {arm} gives no margins for {unread} of {len(samples)} answers, and protocol=score reads only "
            "margins; remove protocol"
        )
    return lines


def _answered(
    sample: Sample, arm: str, generation: "Generation", index: int, *, response: str, **judged: Any
) -> dict[str, Any]:
    """Return the record of an answer, with the published yes/no rule's verdict next to the judge's."""
    published = published_verdict(response) if sample.gold in ("yes", "no") else None
    return record_fields.answered(
        sample, arm, generation, index, response=response, published_verdict=published, **judged
    )


def judgement_without_text(judge: Judge) -> Judgement | None:
    """Return the judgement of an answer without text: "no verdict" in a yes/no benchmark, None (unknown) in a refusal
    one.
    """
    return Judgement(Verdict.NO_VERDICT) if judge.kind == "yes_no" else None


def item_of(sample: Sample, response: str, steps: Mapping[str, str] | None = None) -> Item:
    """Return one answer as shown to a judge, in the language of the answer or else of the request.

    The question of a conversation is all its turns, from the ``steps`` of the answer. The image is opened only if the
    judge asks for it.
    """
    image = None if sample.image is None else partial(one_picture, sample)
    language = language_of(response) or sample.tags.get("language", "en")
    question = transcript(steps or {}) or sample.text
    return Item(sample.id, question, response, image, sample.gold, language)
