"""``guard=true``: questions about what is in a picture, asked of every arm: does a mitigation blind the model?

Accuracy and the share of Yes by arm, with their changes from the baseline on the same questions. Intervals are over
clusters of questions (things, or pictures) and hold for all arms at once (Bonferroni). The answers are in guard.jsonl,
the numbers in guard.json, a table in the report. Imports neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.benchmarks.picture_questions import PictureQuestions
from experiments.evaluation.analyses import NOTE, Analysis
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import guarding
from experiments.metrics.bootstrap import CONFIDENCE
from experiments.metrics.estimates import mean_spread
from experiments.metrics.findings import Answer, statement
from experiments.metrics.paired import rate_floor, share_interval
from experiments.report.numbers import brief, share
from experiments.report.sections import Section, write_section
from experiments.report.table import Table, change, rate
from experiments.runs import records
from experiments.runs.responses import Responses
from experiments.types import Sample, Verdict
from mitigation.method import MethodFault, abilities

FILE, RESULT = "guard.jsonl", "guard.json"
BASELINE = "baseline"

Codes = Int[np.ndarray, " question"]


def guard(study: Any) -> list[Analysis]:
    """The analysis of a study (``experiments.evaluation.study.Study``), where its run asks for it."""
    missing = "questions about pictures were not answered"
    return [] if study.run.guard is None else [Analysis("guard", missing, _ask, together=True)]


def _ask(study: Any) -> list[str]:
    run, console, questions = guarding(study.run), study.console, study.admitted.questions
    answered = study.methods | {BASELINE: study.run.arms.get(BASELINE)}  # as it is, without what is fitted to it
    asked = {
        arm: method
        for arm, method in answered.items()
        if arm not in study.schedule.absent
        and method is not None
        and not isinstance(method, Responses)
        and not abilities(method).needs_description
    }
    if BASELINE not in asked or study.vlm is None:
        return ["no questions about pictures were asked: the answers were made elsewhere"]
    names = {arm: f"{arm}, pictures" for arm in asked}  # so that what they take is not counted as the arm's
    by_arm = {name: arm for arm, name in names.items()}
    failed: set[str] = set()

    def leave(name: str, fault: MethodFault) -> set[str]:
        if name == names[BASELINE] or study.store.launch.size > 1:
            raise fault
        console.print(str(fault), highlight=False, soft_wrap=True, markup=False)
        failed.add(by_arm.pop(name))
        return {name}

    methods = {names[arm]: method for arm, method in asked.items()}
    Answering(run, study.vlm, study.store, console).answer(methods, questions, file=FILE, on_fault=leave)
    if not study.store.launch.first:
        return []
    found = [line | {"arm": by_arm[line["arm"]]} for line in study.store.records(FILE) if line["arm"] in by_arm]
    result = measured(records.current(found), questions)
    left_out = sorted((set(study.run.arms) - set(asked)) | failed)
    result |= {"questions": repr(study.run.guard), "left_out": left_out}
    study.store.write_json(RESULT, result)
    said = sentences(result)
    section = Section("What is in the picture", [*said, *further(result)], [table(result)], note(result))
    write_section(study.store.path, "guard", section)
    return [*said, *([f"{NOTE}not asked: {', '.join(left_out)}"] if left_out else [])]


def measured(found: Sequence[Mapping[str, Any]], questions: Sequence[Sample]) -> dict[str, Any]:
    """By arm ``accuracy``, ``yes`` (shares of all questions; no readable answer is neither), and their changes.

    Each is ``value``, ``low``, ``high`` (levels 95%; changes so that all arms' hold at once), a change has the
    ``statement`` of ``findings.statement`` too. A question whose request failed, under any arm, is left out: ``n`` of
    ``n_of``.
    """
    arms = list(dict.fromkeys(line["arm"] for line in found))
    verdicts = {(line["arm"], line["case"]): line["verdict"] for line in found if line["verdict"] is not None}
    asked = [one for one in questions if all((arm, one.id) in verdicts for arm in arms)]
    names = sorted({one.cluster for one in asked})
    codes = np.array([names.index(one.cluster) for one in asked], dtype=int)
    right = {arm: np.array([verdicts[arm, one.id] == one.gold for one in asked], dtype=float) for arm in arms}
    yes = {arm: np.array([verdicts[arm, one.id] == Verdict.YES for one in asked], dtype=float) for arm in arms}
    confidence = 1 - (1 - CONFIDENCE) / max(2 * (len(arms) - 1), 1)  # of two changes an arm
    rows: dict[str, Any] = {}
    for arm in arms:
        row: dict[str, Any] = {}
        for name, values in (("accuracy", right), ("yes", yes)):
            row[name] = _level(values[arm], codes)
            if arm != BASELINE:
                row[f"{name}_change"] = _change(values[BASELINE], values[arm], codes, confidence)
        rows[arm] = row
    return {"n": len(asked), "n_of": len(questions), "clusters": len(names), "confidence": confidence,
            "share_of_yes": float(np.mean([one.gold == "yes" for one in asked])) if asked else None,
            "arms": rows}  # fmt: skip


def _level(values: Float[np.ndarray, " question"], codes: Codes) -> dict[str, float | None]:
    if not len(values):
        return {"value": None, "low": None, "high": None}
    value = float(values.mean())
    low, high = share_interval(value, mean_spread(values, codes), len(values)) or (None, None)
    return {"value": value, "low": low, "high": high}


def _change(
    before: Float[np.ndarray, " question"], after: Float[np.ndarray, " question"], codes: Codes, confidence: float
) -> dict[str, Any] | None:
    if not len(before):
        return None
    value = float((after - before).mean())
    ends = mean_spread(after - before, codes, rate_floor(len(before))).ends(value, confidence=confidence)
    entry = {"value": value, **ends, "from": float(before.mean()), "to": float(after.mean()), "n": len(before)}
    return entry | {"statement": statement(entry).value}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What the baseline sees, and a warning for each arm that answers otherwise."""
    arms, n = result["arms"], result["n"]
    plain = arms[BASELINE]
    if not n:
        return ["Whether the arms see what is in a picture cannot be told: no question was answered by all of them."]
    known = f"{n} of {result['n_of']}" if n < result["n_of"] else f"{n}"
    first = (
        f"Asked what is in a picture ({known} questions, {share(result['share_of_yes'])} to be answered Yes), the "
        f"baseline is right in {share(plain['accuracy']['value'])} and says Yes in {share(plain['yes']['value'])}"
    )
    changes = {arm: row["accuracy_change"] for arm, row in arms.items() if arm != BASELINE}
    fell = {arm: one for arm, one in changes.items() if one["statement"] == Answer.FELL}
    same = [arm for arm, one in changes.items() if one["statement"] == Answer.NO_CHANGE]
    parts = [f"{first}." if not same else f"{first}; no change of accuracy of more than 2 points: {', '.join(same)}."]
    parts += [
        f"Warning: {arm} answers questions about pictures worse than the baseline ({brief(one)}): what it "
        "changes is not the verdict alone."
        for arm, one in fell.items()
    ]
    return parts


def further(result: Mapping[str, Any]) -> list[str]:
    """Under which arms the share of Yes to these questions is another, in one sentence; none where it is nowhere."""
    moved = {arm: row["yes_change"] for arm, row in result["arms"].items() if arm != BASELINE and row["yes_change"]}
    parts = [
        f"{word} under {', '.join(f'{arm} ({brief(one)})' for arm, one in some.items())}"
        for word in (Answer.ROSE, Answer.FELL)
        if (some := {arm: one for arm, one in moved.items() if one["statement"] == word})
    ]
    return [f"The share of Yes to these questions {', and '.join(parts)}."] if parts else []


def table(result: Mapping[str, Any]) -> Table:
    """A row an arm: accuracy and share of Yes in %, with their changes in points."""

    def level(entry: Mapping[str, Any]) -> Any:
        return rate(entry["value"], None if entry["low"] is None else (entry["low"], entry["high"]))

    rows = [
        {
            "arm": arm,
            "right": level(row["accuracy"]),
            "change": change(row.get("accuracy_change")),
            "Yes": level(row["yes"]),
            "change of Yes": change(row.get("yes_change")),
        }
        for arm, row in result["arms"].items()
    ]
    return Table.of("What is in the picture", rows)


def note(result: Mapping[str, Any]) -> str:
    """What the table's numbers are."""
    own = "" if PictureQuestions.__name__ not in str(result["questions"]) else " of IconWorld"
    return (
        f"{result['n']} of {result['n_of']} questions{own}, {result['clusters']} clusters. In %, with 95% intervals; "
        f"changes in points, with intervals of {100 * result['confidence']:.2f}% each, so that all hold at once. "
        "Of an arm that learns or is fitted in folds the last fold's method is asked."
        + (f" Not asked: {', '.join(result['left_out'])}." if result["left_out"] else "")
    )
