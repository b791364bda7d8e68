"""``guard=true``: questions about what is in a picture, asked of every arm: does a mitigation blind the model?

Accuracy and the share of Yes by arm, with their differences from the baseline on the same questions. Intervals are over
clusters of questions (things, or pictures). The answers are in guard.jsonl, the numbers in results.csv, a table in the
report. Imports neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.evaluation.analyses import NOTE, Analysis
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import guarding
from experiments.metrics.bootstrap import CONFIDENCE
from experiments.metrics.claims import claim_of
from experiments.metrics.estimates import mean_spread, rate_floor, share_interval
from experiments.report.sections import Section, write_section
from experiments.report.tables import by_arm
from experiments.report.text import lines
from experiments.runs import records
from experiments.runs.responses import Responses
from experiments.runs.results_table import Row, row, write_results
from experiments.types import Sample, Verdict
from mitigation.method import MethodFault, abilities

FILE = "guard.jsonl"
ACCURACY, YES = "perception_accuracy", "perception_yes_rate"
TITLE = "What is in the picture"
BASELINE = "baseline"

Codes = Int[np.ndarray, " question"]


def guard(study: Any) -> list[Analysis]:
    """The analysis of a study (``experiments.evaluation.study.Study``), where its run asks for it."""
    missing = "questions about pictures were not answered"
    return [] if study.run.guard is None else [Analysis("guard", missing, _ask, together=True)]


def _ask(study: Any) -> list[str]:
    run, console, questions = guarding(study.run), study.console, study.validated.questions
    answered = study.methods | {BASELINE: study.run.arms.get(BASELINE)}  # as it is, without what is fitted to it
    methods_asked = {
        arm: method
        for arm, method in answered.items()
        if arm not in study.arms.absent
        and method is not None
        and not isinstance(method, Responses)
        and not abilities(method).needs_description
    }
    if BASELINE not in methods_asked or study.vlm is None:
        return ["no questions about pictures were asked: the answers were made elsewhere"]
    names = {arm: f"{arm}, pictures" for arm in methods_asked}  # so that what they take is not counted as the arm's
    arm_of = {name: arm for arm, name in names.items()}
    failed: set[str] = set()

    def leave(name: str, fault: MethodFault) -> set[str]:
        if name == names[BASELINE] or study.store.launch.size > 1:
            raise fault
        console.print(str(fault), highlight=False, soft_wrap=True, markup=False)
        failed.add(arm_of.pop(name))
        return {name}

    methods = {names[arm]: method for arm, method in methods_asked.items()}
    Answering(run, study.vlm, study.store, console).answer(methods, questions, file=FILE, on_fault=leave)
    if not study.store.launch.first:
        return []
    answers = [line | {"arm": arm_of[line["arm"]]} for line in study.store.records(FILE) if line["arm"] in arm_of]
    left_out = sorted((set(study.run.arms) - set(methods_asked)) | failed)
    results = write_results(study.store.path, measured(records.current(answers), questions))
    context = {"results": results, "baseline": BASELINE, "left_out": left_out}
    headline, notes = lines("perception", **context), lines("perception_note", **context)
    arms = [arm for arm in study.run.arms if results.get(arm, ACCURACY)]
    columns = {name: {"quantity": quantity} for name, quantity in (("right", ACCURACY), ("Yes", YES))}
    columns |= {f"{name}: difference": {**key, "against": BASELINE} for name, key in columns.items()}
    table = by_arm(results, columns, arms, title=TITLE, note=" ".join(notes))
    write_section(study.store.path, "guard", Section(TITLE, headline, [table]))
    return [*headline, *([f"{NOTE}not asked: {', '.join(left_out)}"] if left_out else [])]


def measured(answers: Sequence[Mapping[str, Any]], questions: Sequence[Sample]) -> list[Row]:
    """Return each arm's accuracy and share of Yes, and their differences from the baseline, as rows.

    An answer without a readable verdict is neither Yes nor right. Levels have 95% intervals, differences intervals that
    hold for all arms at once (Bonferroni). A question whose request failed under any arm is left out.
    """
    arms = list(dict.fromkeys(line["arm"] for line in answers))
    verdicts = {(line["arm"], line["case"]): line["verdict"] for line in answers if line["verdict"] is not None}
    compared = [sample for sample in questions if all((arm, sample.id) in verdicts for arm in arms)]
    names = sorted({sample.cluster for sample in compared})
    codes = np.array([names.index(sample.cluster) for sample in compared], dtype=int)
    confidence = 1 - (1 - CONFIDENCE) / max(2 * (len(arms) - 1), 1)  # two differences for each arm
    counts = {"n": len(compared), "n_of": len(questions), "clusters": len(names)}
    rows = [
        row("perception_gold_yes", value=np.mean([sample.gold == "yes" for sample in compared]) if compared else None)
    ]
    for quantity in (ACCURACY, YES):
        values = {
            arm: np.array([verdicts[arm, sample.id] == (sample.gold if quantity == ACCURACY else Verdict.YES)
                           for sample in compared], dtype=float)
            for arm in arms
        }  # fmt: skip
        for arm in arms:
            rows.append(row(quantity, arm=arm, entry=_level(values[arm], codes), **counts))
            if arm != BASELINE and compared:
                entry = _difference(values[BASELINE], values[arm], codes, confidence)
                rows.append(row(quantity, arm=arm, against=BASELINE, entry=entry, level=confidence, **counts))
    return rows


def _level(values: Float[np.ndarray, " question"], codes: Codes) -> dict[str, float | None]:
    if not len(values):
        return {"value": None, "low": None, "high": None}
    value = float(values.mean())
    low, high = share_interval(value, mean_spread(values, codes), len(values)) or (None, None)
    return {"value": value, "low": low, "high": high}


def _difference(
    before: Float[np.ndarray, " question"], after: Float[np.ndarray, " question"], codes: Codes, confidence: float
) -> dict[str, Any]:
    value = float((after - before).mean())
    entry = {
        "value": value,
        **mean_spread(after - before, codes, rate_floor(len(before))).ends(value, confidence=confidence),
    }
    return entry | {"claim": claim_of(entry)}
