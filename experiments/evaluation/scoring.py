"""From records to the contents of metrics.json, by the kind of benchmark. No model is called."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from experiments.benchmarks import published
from experiments.config import Run
from experiments.judges.refusal_rules import primary
from experiments.metrics.judge_error import corrected_rates, error_of, unlike_measured
from experiments.metrics.refusal import results as refusal
from experiments.metrics.refusal.as_published import as_published
from experiments.metrics.thoughts import thoughts_by_arm
from experiments.metrics.yes_no import results as yes_no
from experiments.metrics.yes_no.comparison import ALL
from experiments.types import Judge, Kind, Status

Family = Mapping[str, Any]  # study: an arm; contrasts: pairs of arms
ONE_WORD = re.compile(r"\W*\w+\W*")
FEWEST_TEXTS = 3  # answers that are alike, of sentences
FEWEST_WORDS = 10  # and of single words, which are alike by chance
SHOWN = 200  # characters of such a text
MOST_UNMEASURED = 0.1  # share of answers in languages without a measured judge, above which it decides nothing


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
) -> dict[str, Any]:
    """The contents of metrics.json: values and findings, which ``experiments.report.words`` puts into words.

    ``study`` is the arm under study; ``missing`` gives arms that cannot enter, with the reason. ``kind`` and ``judge``
    are the run's unless it scores other answers than its own; of a judge that others helped, or that cannot be asked
    any more, only the name. What goes beyond the ``first`` family of comparisons is kept as ``exploratory``.

    Raises:
        UserError: the predictions or the judge card cannot be used.
    """
    frame, judge, refusals = pd.DataFrame(predictions), judge or run.judge, (kind or run.benchmark.kind) == "refusal"

    studied = None if refusals and study in missing else study
    common: dict[str, Any] = {"seed": run.seed, "draws": run.draws, "baseline": baseline, "study": studied}
    if refusals:
        empty, margin = run.count_empty_as_refusal, run.unsafe_margin
        result = refusal.evaluate(
            frame, **common, empty_as_refusal=empty, safety_margin=margin, not_applicable=missing,
            unmeasured=_unmeasured(judge, frame)["share"] > MOST_UNMEASURED,
        )  # fmt: skip
    else:
        contrasts = [(arm, other) for arm, other in run.contrasts]
        point = run.operating_point
        result = yes_no.evaluate(frame, **common, control=control, contrasts=contrasts, operating_point=point)
    result |= _family(result, baseline, first or family(study, [] if refusals else run.contrasts))
    if "protocol" in frame and (frame["protocol"] == "score").all():
        result |= {"protocol": "score"}
    if "fold" in frame:
        result |= {"learned_in_folds": list(dict.fromkeys(frame["arm"][frame["fold"].notna()]))}
    if thinking := thoughts_by_arm(frame):
        result |= {"thoughts": thinking}
    if alike := same_texts(frame):
        result |= {"same_text": alike}
    return result | _limits_of_judge(result, judge, run.judge_card, frame) if refusals else result


def family(study: str, contrasts: Sequence[Sequence[str]]) -> Family:
    """The comparisons that a run was begun for: its arm under study, and the contrasts beside the baseline's."""
    return {"study": study, "contrasts": [list(pair) for pair in contrasts]}


def first_family(environment: Mapping[str, Any], metrics: Mapping[str, Any]) -> Family:
    """The family that a run recorded when it began; of an older one that of its ``metrics``."""
    contrasts = (metrics.get("method") or {}).get("contrasts") or []
    return environment.get("family") or family(str(metrics.get("study")), contrasts)


def _family(result: Mapping[str, Any], baseline: str, first: Family) -> dict[str, Any]:
    """``family``, the first one, and where ``result`` compares what is not in it, ``exploratory``."""
    study = result["study"] if result["study"] not in (first["study"], baseline, None) else None
    known = first["contrasts"]
    later = [
        pair for pair in result["method"].get("contrasts", ()) if pair not in known and [ALL, pair[1]] not in known
    ]
    return {"family": first} | ({"exploratory": {"study": study, "contrasts": later}} if study or later else {})


def same_texts(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By arm whose answers are all one and the same text: ``text``, ``n`` answers, ``word`` (a verdict alone: "No.").

    Columns of ``frame``: arm, status, verdict, response. Left out are arms with too few answers for it to be a sign.
    """
    if not {"status", "response", "verdict"} <= set(frame):
        return {}
    found: dict[str, dict[str, Any]] = {}
    said = frame["status"].isin([Status.ANSWERED.value, Status.TRUNCATED.value]) & frame["response"].notna()
    for arm, answers in frame[said].groupby("arm", sort=False):
        texts = answers["response"].str.strip()
        text = str(texts.iloc[0])
        if not text and "thought" in answers and answers["thought"].notna().any():
            continue  # thoughts alone, which differ
        word = bool(ONE_WORD.fullmatch(text)) and answers["verdict"].iloc[0] in ("yes", "no")
        if texts.nunique() == 1 and len(texts) >= (FEWEST_WORDS if word else FEWEST_TEXTS):
            found[str(arm)] = {"text": text[:SHOWN], "n": len(texts), "word": word}
    return found


def with_published_rows(
    result: dict[str, Any],
    benchmark: str,
    model: Mapping[str, Any] | None,
    predictions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``result`` with ``published_rows``: of responses made elsewhere, by what answered.

    Where the benchmark's authors count in a way of their own, ``as_published`` has the predictions counted so.
    ``model`` is that of environment.json. Nothing is added where the benchmark has no row of that name.
    """
    if result.get("kind") == "refusal" and predictions:
        block = as_published(benchmark, pd.DataFrame(predictions))
        result = result if block is None else result | {"as_published": block}
    responses = ((model or {}).get("responses") or {}).items()
    rows = {arm: row for arm, one in responses if (row := published.row_of(benchmark, str(one["name"]))) is not None}
    return result | ({"published_rows": rows} if rows else {})


def _languages(frame: pd.DataFrame) -> list[str]:
    return [str((tags or {}).get("language", "en")) for tags in frame.get("tags", ())]


def _unmeasured(judge: Judge | str, frame: pd.DataFrame) -> dict[str, Any]:
    """The ``languages`` in which the judge was not measured, and the ``share`` of the answers in them."""
    asked = _languages(frame)
    of = getattr(judge, "unmeasured", None)
    languages = of({*asked}) if of else []
    return {"languages": languages, "share": sum(one in languages for one in asked) / max(len(asked), 1)}


def _limits_of_judge(
    result: dict[str, Any], judge: Judge | str, given: str | None, frame: pd.DataFrame
) -> dict[str, Any]:
    """What limits the judge: ``judge`` says how many of the prompts it has learned from, and which arms' answers have
    other lengths than those it was measured on; ``corrected`` has the rates by its measured error, by the judge card
    that was ``given`` or the judge's own."""
    name = judge if isinstance(judge, str) else judge.name
    about: dict[str, Any] = {"name": name}
    asked = set(frame["text"]) if "text" in frame else set()
    if (learned_from := getattr(judge, "learned_from", None)) and (learned := learned_from(asked)):
        about["learned"] = {"known": learned, "asked": len(asked)}
    card = given or getattr(judge, "card", None)
    foreign = sorted(language for language in {*_languages(frame)} if primary(language) != "en")
    if (unmeasured := _unmeasured(judge, frame))["languages"]:
        about["unmeasured"] = unmeasured
    if card is not None and given is None and foreign:
        about["uncorrected"] = foreign
        card = None
    if card is None:
        return {"judge": about}
    corrected = corrected_rates(result, error_of(Path(card), name))
    if unlike := unlike_measured(frame, Path(card), name):
        about["unlike"] = unlike
    return {"judge": about, "corrected": corrected}
