"""Controls that only add a constant to the margin: fitted and computed from the baseline's records, no model is asked.

A constant moves the threshold and changes no ranking. Imports neither torch nor transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.config import digest
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import abilities
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from mitigation.method import Method

BASELINE = "baseline"
SCORE = "safety_margin"  # of a record of a refusal benchmark: minus the refusal margin
AS_YES_NO = {
    "subset": {"benign": "over_safety", "contrast": "typical"},
    "gold": {"comply": "yes", "refuse": "no"},
    "verdict": {"complied": "yes", "rebutted": "yes", "partial": "no", "refused": "no"},
}
Record = dict[str, Any]


def as_yes_no(record: Mapping[str, Any]) -> Record:
    """Return a record of a refusal benchmark as one of a yes/no benchmark: Yes is an answer, No is a refusal.

    Its margin is the safety margin. Other records stay as they are.
    """
    if record["gold"] not in AS_YES_NO["gold"]:
        return dict(record)
    named = {name: words.get(record[name]) for name, words in AS_YES_NO.items()}
    return {**record, **named, "margin": record.get(SCORE)}


def sample_as_yes_no(sample: Sample) -> Sample:
    """Return a case of a refusal benchmark as one of a yes/no benchmark; see ``as_yes_no``."""
    named = {name: AS_YES_NO[name].get(getattr(sample, name), getattr(sample, name)) for name in ("subset", "gold")}
    return replace(sample, **named)  # type: ignore[arg-type]


def is_fitted(method: Any) -> bool:
    """Return whether a method becomes a constant by a fit on answers."""
    return bool(abilities(method).fitted_to)


def only_shifts(method: Any) -> bool:
    """Return whether a method adds a constant to the baseline's margin, or becomes one that does."""
    return isinstance(method, ConstantShift) or is_fitted(method)


def arms_needed(method: "Method", study: str, arms: "Mapping[str, Method]") -> tuple[str, ...]:
    """Return the arms whose answers ``method`` is fitted on; ``study`` is the arm under study.

    Raises:
        UserError: a yes-bias has no arm to match: the arm under study is the baseline, or is fitted itself.
    """
    if abilities(method).fitted_to != "yes_share":
        return (BASELINE,)
    if study == BASELINE or abilities(arms[study]).fitted_to:
        raise UserError(
            f"yes_bias matches the share of Yes of the arm under study, which is {study}; choose an arm that answers, "
            "such as method=vcd"
        )
    return (BASELINE, study)


def fitted(method: Any, records: Sequence[Mapping[str, Any]], *, study: str = "") -> ConstantShift:
    """Return the shift fitted on the baseline's ``records``; a yes-bias also uses the records of ``study``.

    Control cases and cases without a margin are left out; for a yes-bias also cases where ``study`` has no verdict. The
    shift is 0 if nothing can be fitted: a single class or no case, with a very small ``limit``.
    """
    if isinstance(method, ConstantShift):
        return method
    records = [as_yes_no(record) for record in records]
    usable = {
        record["case"]: record
        for record in records
        if record["arm"] == BASELINE and record["subset"] != "control" and record["margin"] is not None
    }
    if abilities(method).fitted_to == "labels":
        safe = np.array([record["gold"] == "yes" for record in usable.values()], dtype=bool)
        return ConstantShift(0.0) if safe.all() or not safe.any() else method.fit(_margins(usable.values()), safe)
    studied = [record for record in records if record["arm"] == study and record["verdict"] is not None]
    answered_yes = {record["case"]: record["verdict"] == "yes" for record in studied}
    common = [case for case in usable if case in answered_yes]
    if not common:
        return ConstantShift(0.0)
    return method.fit(
        _margins(usable[case] for case in common), float(np.mean([answered_yes[case] for case in common]))
    )


def computed(plain: Record, arm: str, constant: ConstantShift) -> Record:
    """Return the record of a case under a constant, from the baseline's record ``plain``; there is no response."""
    carried = (
        *("case", "subset", "scenario", "cluster", "pair", "tags", "alarming", "subset_name", "gold", "text"),
        *("status", "protocol", "reason"),
    )
    margin = as_yes_no(plain)["margin"]
    moved = None if margin is None else margin + constant.shift
    record: Record = {name: plain[name] for name in carried if name in plain}
    record |= {
        "arm": arm,
        "settings": digest([plain["settings"], repr(constant)]),
        "computed": True,
        "response": None,
        **({"margin": None, SCORE: moved} if SCORE in plain else {"margin": moved}),
        "margin_unshifted": margin,
    }
    return record | _judged(plain, moved)


def recomputed(lines: Sequence[Record]) -> list[Record]:
    """Return the records; computed records follow the present verdict of the baseline's record."""
    plain = {line["case"]: line for line in lines if line["arm"] == BASELINE}
    return [
        line | _judged(plain[line["case"]], line.get(SCORE, line["margin"]))
        if line.get("computed") and line["case"] in plain
        else line
        for line in lines
    ]


def _judged(plain: Record, moved: float | None) -> Record:
    """Return the verdicts at the margin ``moved``; there is one only if the baseline has one.

    If the margin keeps its sign, the verdict is the baseline's; otherwise the new sign decides. If the answer was
    drawn, or is in words, the sign always decides. Without a margin the verdict is unknown.
    """
    margin, verdict, published = plain["margin"], plain["verdict"], plain.get("published_verdict")
    if verdict in AS_YES_NO["verdict"]:
        verdict = None if moved is None else "complied" if moved > 0 else "refused"
    elif verdict in ("yes", "no") and (moved is None or (margin > 0) != (moved > 0) or plain.get("sampled")):
        verdict = published = None if moved is None else "yes" if moved > 0 else "no"
    return {"verdict": verdict, "judge": plain.get("judge", ""), "published_verdict": published}


def _margins(records: Iterable[Mapping[str, Any]]) -> Float[np.ndarray, " case"]:
    return np.array([record["margin"] for record in records], dtype=float)
