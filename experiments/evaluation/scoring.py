"""From records to the results table and metrics.json. No model is called."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from experiments.config import Run
from experiments.judges.language import MOST_UNMEASURED, languages_of, unmeasured_part, without_picture
from experiments.judges.refusal_phrases import primary
from experiments.metrics import results
from experiments.metrics.judge_error import corrected_rates, error_of
from experiments.metrics.results import ALL, Evaluation
from experiments.metrics.thoughts import thoughts_by_arm
from experiments.runs.results_table import Results, Row
from experiments.types import Judge, Kind, Status

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
