"""From records to the contents of metrics.json, by the kind of benchmark. No model is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from experiments.benchmarks import published
from experiments.config import Run
from experiments.judges.refusal_rules import primary
from experiments.metrics.judge_error import corrected_rates, error_of
from experiments.metrics.parts import by_part
from experiments.metrics.refusal import results as refusal
from experiments.metrics.refusal.as_published import as_published
from experiments.metrics.refusal.two_judges import two_judges
from experiments.metrics.yes_no import results as yes_no
from experiments.types import Judge, Kind


@dataclass(frozen=True)
class Rules:
    """How answers are scored; a run and a later rejudging of it use the same."""

    kind: Kind
    seed: int
    draws: int
    unsafe_margin: float
    contrasts: Sequence[tuple[str, str]]  # arms compared with others than the baseline, too
    count_empty_as_refusal: bool
    judge: str  # name
    judge_card: str | None  # path; corrects refusal rates for that judge's error. None: the card that the reader brings
    reader: Judge | None  # the judge that gave the verdicts; None where others had a part in them

    @classmethod
    def of(cls, run: Run, kind: Kind | None = None, judge: Judge | str | None = None) -> "Rules":
        """Those of a run's configuration; a ``judge`` given by name alone is one that cannot be asked any more."""
        judge = judge or run.judge
        return cls(
            kind or run.benchmark.kind,
            run.seed,
            run.draws,
            run.unsafe_margin,
            [(arm, other) for arm, other in run.contrasts],
            run.count_empty_as_refusal,
            judge if isinstance(judge, str) else judge.name,
            run.judge_card,
            None if isinstance(judge, str) else judge,
        )


def evaluate(
    rules: Rules,
    predictions: Sequence[Mapping[str, Any]],
    *,
    study: str,
    missing: Mapping[str, str] = MappingProxyType({}),
    baseline: str = "baseline",
    control: str = "calibrated_shift",
) -> dict[str, Any]:
    """The contents of metrics.json: values and findings, which ``experiments.report.words`` puts into words.

    ``study`` is the arm under study; ``missing`` gives arms that cannot enter, with the reason.

    Raises:
        UserError: the predictions or the judge card cannot be used.
    """
    frame = pd.DataFrame(predictions)
    measure = partial(_measured, rules=rules, missing=missing, baseline=baseline, control=control)
    result = measure(frame, study=None if rules.kind == "refusal" and study in missing else study)
    # An arm of answers made elsewhere may have none in a part.
    if parts := by_part(frame, lambda some: measure(some, study=study if study in set(some["arm"]) else None)):
        result |= {"parts": parts}
    if "fold" in frame:
        result |= {"learned_in_folds": list(dict.fromkeys(frame["arm"][frame["fold"].notna()]))}
    return result | _limits_of_judge(result, rules, frame) if rules.kind == "refusal" else result


def _measured(
    frame: pd.DataFrame, *, rules: Rules, study: str | None, missing: Mapping[str, str], baseline: str, control: str
) -> dict[str, Any]:
    common: dict[str, Any] = {"seed": rules.seed, "draws": rules.draws, "baseline": baseline, "study": study}
    if rules.kind == "refusal":
        empty = rules.count_empty_as_refusal
        return refusal.evaluate(
            frame, **common, empty_as_refusal=empty, safety_margin=rules.unsafe_margin, not_applicable=missing
        )
    return yes_no.evaluate(
        frame, **common, control=control, unsafe_margin=rules.unsafe_margin, contrasts=rules.contrasts
    )


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


def _limits_of_judge(result: dict[str, Any], rules: Rules, frame: pd.DataFrame) -> dict[str, Any]:
    """What limits the judge: ``judge`` says for which other it stands in, and how many of the prompts it has learned
    from; ``two_judges`` where a second one differs; ``corrected`` has the rates by its measured error."""
    about: dict[str, Any] = {"name": rules.judge}
    if stands_in := getattr(rules.reader, "stands_in", None):
        about["stands_in"] = stands_in
    both = two_judges(frame)
    asked = set(frame["text"]) if "text" in frame else set()
    if (learned_from := getattr(rules.reader, "learned_from", None)) and (learned := learned_from(asked)):
        about["learned"] = {"known": learned, "asked": len(asked)}
    card = rules.judge_card or getattr(rules.reader, "card", None)
    languages = {str((tags or {}).get("language", "en")) for tags in frame.get("tags", ())}
    foreign = sorted(language for language in languages if primary(language) != "en")
    if card is not None and rules.judge_card is None and foreign:
        about["uncorrected"] = foreign
        card = None
    corrected = {} if card is None else {"corrected": corrected_rates(result, error_of(Path(card), rules.judge))}
    return {"judge": about, **({} if both is None else {"two_judges": both}), **corrected}
