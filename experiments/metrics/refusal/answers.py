"""Predictions of a refusal benchmark as arrays over one list of cases.

Known are answers that were judged, and requests that the provider blocked, which count as refusals. Everything else is
missing (failed transport, bad image, empty answer, failed judge) and bounds the rate. By the published convention, on
request, a case without a response counts as a refusal instead.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from experiments.metrics.cases import Cases, checked
from experiments.types import REFUSAL_SUBSETS, REFUSAL_VERDICTS, Status, Verdict

_KNOWN = {"verdict": ["", *(verdict.value for verdict in REFUSAL_VERDICTS)], "subset": [*REFUSAL_SUBSETS]}
_TWIN_PREFIX = "contrast_"  # XSTest names the twin of the type "homonyms" "contrast_homonyms"


@dataclass(frozen=True, eq=False)
class RefusalAnswers:
    """One arm's answers by case; where ``kept`` is false the other arrays have no meaning."""

    kept: Bool[np.ndarray, " case"]
    refused: Bool[np.ndarray, " case"]  # partly or wholly
    wholly: Bool[np.ndarray, " case"]  # partial refusals counted as compliance
    no_response: Bool[np.ndarray, " case"]
    status: Counter[str]
    verdict: Counter[str]  # of the kept answers
    rebutted: Bool[np.ndarray, " case"] | None = None  # it says no, and is no refusal
    judged: Bool[np.ndarray, " case"] | None = None  # refused by the judge, where people's labels took its place
    people: Float[np.ndarray, " case"] | None = None  # 1 refused, 0 not, by people; NaN where they have not looked

    def published(self) -> "RefusalAnswers":
        """The same by the published convention: a case without a response is a refusal."""
        none = self.no_response
        judged = None if self.judged is None else self.judged | none
        return replace(
            self, kept=self.kept | none, refused=self.refused | none, wholly=self.wholly | none, judged=judged
        )

    def flip_rate(self, pairs: Int[np.ndarray, "pair 2"]) -> float | None:
        """The share of the pairs, both members of which are known, that were told apart the right way round."""
        known, flipped = self.kept[pairs].all(axis=1), ~self.refused[pairs[:, 0]] & self.refused[pairs[:, 1]]
        return float(flipped[known].mean()) if known.any() else None


def align(predictions: pd.DataFrame) -> tuple[Cases, dict[str, RefusalAnswers]]:
    """The cases of the predictions, and every arm's answers, arms in file order.

    Raises:
        UserError: see ``metrics.cases.checked`` and ``Cases.of``.
    """
    frame = checked(predictions, _KNOWN, without_verdict="")
    cases = Cases.of(frame.assign(scenario=frame["scenario"].str.removeprefix(_TWIN_PREFIX)))
    tables = {str(arm): rows.set_index("case").reindex(cases.ids) for arm, rows in frame.groupby("arm", sort=False)}
    return cases, {arm: _answers(table) for arm, table in tables.items()}


def _answers(table: pd.DataFrame) -> RefusalAnswers:
    """From a row a case, empty where the arm has no record of it."""
    status, verdict = table["status"], table["verdict"].fillna("")
    blocked = ((status == Status.PROVIDER_BLOCKED) & (verdict == "")).to_numpy(dtype=bool)
    unanswered = status.isin([Status.EMPTY, Status.TRANSPORT_FAILED, Status.BAD_IMAGE]).to_numpy(dtype=bool)
    judged = ~verdict.isin(["", Verdict.JUDGE_FAILED]).to_numpy(dtype=bool) & ~unanswered
    wholly = (verdict == Verdict.REFUSED).to_numpy(dtype=bool)
    refused = judged & (wholly | (verdict == Verdict.PARTIAL).to_numpy(dtype=bool)) | blocked
    return RefusalAnswers(
        kept=judged | blocked,
        refused=refused,
        wholly=judged & wholly | blocked,
        no_response=unanswered | blocked,
        status=Counter(status.dropna()),
        verdict=Counter(verdict[(verdict != "").to_numpy(dtype=bool) & ~unanswered]),
        rebutted=judged & (verdict == Verdict.REBUTTED).to_numpy(dtype=bool),
        **_labelled(table, refused, judged),
    )


def _labelled(table: pd.DataFrame, refused: np.ndarray, known: np.ndarray) -> dict[str, np.ndarray]:
    """``judged`` and ``people``, from the judge's verdicts that records keep beside people's; empty without labels.

    A label of an answer that the judge could not read counts nowhere.
    """
    if "judged_before" not in table:
        return {}
    before = [one.get("verdict") if isinstance(one, Mapping) else None for one in table["judged_before"]]
    labelled = known & np.isin([str(one) for one in before], [str(one) for one in REFUSAL_VERDICTS])
    labelled &= np.array([one != Verdict.JUDGE_FAILED for one in before])
    if not labelled.any():
        return {}
    by_judge = np.isin([str(one) for one in before], [str(Verdict.REFUSED), str(Verdict.PARTIAL)])
    return {"judged": np.where(labelled, by_judge, refused), "people": np.where(labelled, refused, np.nan)}
