"""Controls that only add a constant to the margin: fitted and computed from the baseline's records, no model is asked.

A constant moves the threshold and changes no ranking. Imports neither torch nor transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.config import digest
from interp.errors import UserError
from mitigation.method import abilities
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from mitigation.method import Method

BASELINE = "baseline"
Record = dict[str, Any]


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
            f"yes_bias matches the share of Yes of the arm under study, and that is {study}; "
            f"choose one that answers by itself, as method=vcd"
        )
    return (BASELINE, study)


def fitted(method: Any, records: Sequence[Mapping[str, Any]], *, study: str = "") -> ConstantShift:
    """Return the shift fitted on the baseline's ``records``; a yes-bias also uses those of ``study``.

    Control cases and cases without a margin are left out; for a yes-bias also cases where ``study`` has no verdict. The
    shift is 0 if nothing can be fitted: a single class or no case, with a very small ``limit``.
    """
    if isinstance(method, ConstantShift):
        return method
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
    """Return the record of a case under a constant, from the baseline's record ``plain``; there is no response.

    The margin is the baseline's plus the constant. There is a verdict only if the baseline has one: the baseline's own
    if the margin keeps its sign, else that of the new sign. A drawn answer's sign always decides. Without a margin the
    verdict is unknown.
    """
    margin, verdict, published = plain["margin"], plain["verdict"], plain["published_verdict"]
    moved = None if margin is None else margin + constant.shift
    if verdict in ("yes", "no") and (moved is None or (margin > 0) != (moved > 0) or plain.get("sampled")):
        verdict = published = None if moved is None else "yes" if moved > 0 else "no"
    carried = (
        "case",
        "subset",
        "scenario",
        "cluster",
        "pair",
        "tags",
        "alarming",
        "subset_name",
        "gold",
        "text",
        "protocol",
        "reason",
    )
    record: Record = {name: plain[name] for name in carried if name in plain}
    return record | {
        "arm": arm,
        "settings": digest([plain["settings"], repr(constant)]),
        "status": plain["status"],
        "computed": True,
        "verdict": verdict,
        "judge": plain.get("judge", ""),
        "published_verdict": published,
        "response": None,
        "margin": moved,
        "margin_unshifted": margin,
    }


def _margins(records: Iterable[Mapping[str, Any]]) -> Float[np.ndarray, " case"]:
    return np.array([record["margin"] for record in records], dtype=float)
