"""Yes/no predictions as arrays over one list of cases, so that arms can be compared case by case.

The cases are the union over all arms. A case is missing for an arm (``kept`` is false) where its request failed in
transport, its image is bad, or the arm has no record of it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from experiments.judges.yes_no import published_correct
from experiments.types import SCORED_SUBSETS, UNSAFE_SUBSETS, YES_NO_VERDICTS, Gold, Status, Verdict
from interp.errors import UserError

COLUMNS = ("case", "arm", "status", "verdict", "margin", "subset", "scenario", "gold", "cluster")
_KNOWN: dict[str, list[str]] = {
    "status": [status.value for status in Status],
    "verdict": [verdict.value for verdict in YES_NO_VERDICTS],
    "subset": [*SCORED_SUBSETS, "control"],
    "gold": ["yes", "no"],
}


@dataclass(frozen=True, eq=False)
class YesNoCases:
    """The scored cases, by id: intervals must not depend on the order of lines, which differs in a resumed run."""

    ids: list[str]
    subset: np.ndarray  # of str, by case
    scenario: np.ndarray  # of str, by case
    tags: list[Mapping[str, Any]]
    cluster: Int[np.ndarray, " case"]  # codes 0 … clusters − 1
    clusters: int
    pairs: Int[np.ndarray, "pair 2"]  # positions of the members of each counterfactual pair
    pair_unit: Int[np.ndarray, " pair"]  # codes 0 … pair_units − 1 of the units in which pairs are resampled
    pair_units: int

    @property
    def unsafe(self) -> Bool[np.ndarray, " case"]:
        """The cases whose right answer is No."""
        return np.isin(self.subset, UNSAFE_SUBSETS)


@dataclass(frozen=True, eq=False)
class YesNoAnswers:
    """One arm's answers, by case; where ``kept`` is false the other arrays have no meaning."""

    kept: Bool[np.ndarray, " case"]
    right: Bool[np.ndarray, " case"]
    answered_yes: Bool[np.ndarray, " case"]
    answered_no: Bool[np.ndarray, " case"]
    margin: Float[np.ndarray, " case"]  # NaN where the arm gives none
    ranking: Float[np.ndarray, " case"]  # the margin before any shift of the threshold, which may differ between folds
    fold: Int[np.ndarray, " case"] | None  # of cross-fitting, where the arm was learned in folds; None where it was not
    disagreeing: tuple[int, int]  # greedy verdicts against the sign of their margin, and verdicts with a margin
    published_right: Bool[np.ndarray, " case"] | None  # None where the predictions hold no responses
    status: Counter[str]
    verdict: Counter[str]  # of the kept answers


def scored_and_controls(predictions: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The checked predictions, as scored cases and controls; texts become str, a null verdict "no_verdict".

    Raises:
        UserError: no predictions, or no scored case; a column is missing; a value is not one of its closed set; a
            (case, arm) occurs twice; a case differs between arms; a gold answer is not its subset's.
    """
    if predictions.empty:
        raise UserError("no predictions; metrics need at least one scored case; check that the run found any cases")
    if absent := [column for column in COLUMNS if column not in predictions.columns]:
        raise UserError(f"the predictions lack {', '.join(absent)}; every record has them; run the study again")
    frame = predictions.assign(**{name: predictions[name].astype(str) for name in COLUMNS if name != "margin"})
    frame["verdict"] = predictions["verdict"].where(predictions["verdict"].notna(), Verdict.NO_VERDICT).astype(str)
    for column, known in _KNOWN.items():
        if not (bad := frame[~frame[column].isin(known)]).empty:
            row = bad.iloc[0]
            raise UserError(
                f"{column} {row[column]!r} of case {row['case']}; known: {', '.join(known)}; correct the record"
            )
    _check_records(frame)
    control = frame["subset"] == "control"
    if control.all():
        raise UserError("only control cases; metrics need a scored case (typical, attack or over_safety); add some")
    return frame[~control], frame[control]


def align(scored: pd.DataFrame) -> tuple[YesNoCases, dict[str, YesNoAnswers]]:
    """The cases of checked predictions (``scored_and_controls``) and every arm's answers, arms in file order."""
    first = scored.drop_duplicates("case").sort_values("case").reset_index(drop=True)
    position = {case: at for at, case in enumerate(first["case"])}
    cluster, names = pd.factorize(first["cluster"])
    pairs = _pairs(first)
    units: dict[frozenset[int], int] = {}
    unit = [units.setdefault(frozenset(cluster[list(pair)].tolist()), len(units)) for pair in pairs]
    cases = YesNoCases(
        ids=list(first["case"]),
        subset=first["subset"].to_numpy(dtype=str),
        scenario=first["scenario"].to_numpy(dtype=str),
        tags=[tags if isinstance(tags, Mapping) else {} for tags in first.get("tags", [{}] * len(first))],
        cluster=cluster,
        clusters=len(names),
        pairs=np.array(pairs, dtype=int).reshape(-1, 2),
        pair_unit=np.array(unit, dtype=int),
        pair_units=len(units),
    )
    return cases, {str(arm): _answers(rows, position) for arm, rows in scored.groupby("arm", sort=False)}


def check_same_cases(frame: pd.DataFrame) -> None:
    """Checks that each arm has a case at most once, and that a case is the same in all arms.

    Raises:
        UserError: names the first case that is not.
    """
    if not (twice := frame[frame.duplicated(["case", "arm"])]).empty:
        row = twice.iloc[0]
        raise UserError(f"case {row['case']} occurs twice in arm {row['arm']}; a record is one (case, arm) under one "
                        "setting; keep the records of one setting")  # fmt: skip
    described = frame[["case", "subset", "scenario", "gold", "cluster"]].drop_duplicates()
    if not (differing := described[described.duplicated("case")]).empty:
        raise UserError(f"case {differing.iloc[0]['case']} differs between arms in subset, scenario, gold or cluster; "
                        "arms are compared on the same cases; run them on the same benchmark")  # fmt: skip


def _check_records(frame: pd.DataFrame) -> None:
    check_same_cases(frame)
    wrong = frame[(frame["subset"].isin(UNSAFE_SUBSETS) & (frame["gold"] != "no"))
                  | ((frame["subset"] == "over_safety") & (frame["gold"] != "yes"))]  # fmt: skip
    if not wrong.empty:
        row = wrong.iloc[0]
        raise UserError(f"gold {row['gold']!r} of case {row['case']} in subset {row['subset']}; typical and attack are "
                        "no, over_safety is yes; correct the benchmark")  # fmt: skip


def _pairs(first: pd.DataFrame) -> list[tuple[int, int]]:
    """Positions of the pairs of which both members ran.

    Raises:
        UserError: a pair has more than two cases, or two of equal truth.
    """
    if "pair" not in first.columns:
        return []
    found = []
    for name, members in first[first["pair"].notna()].groupby("pair", sort=False):
        if len(members) > 2 or (len(members) == 2 and members["gold"].nunique() == 1):
            raise UserError(f"pair {name} has the cases {', '.join(members['case'])}; a pair is two cases of opposite "
                            "truth; correct the benchmark")  # fmt: skip
        if len(members) == 2:
            found.append((int(members.index[0]), int(members.index[1])))
    return found


def _answers(rows: pd.DataFrame, position: Mapping[str, int]) -> YesNoAnswers:
    at = rows["case"].map(position).to_numpy(dtype=int)
    excluded = rows["status"].map(lambda status: Status(status).excluded).to_numpy(dtype=bool)

    def spread(values: np.ndarray, empty: Any) -> np.ndarray:
        array = np.full(len(position), empty)
        array[at] = np.where(excluded, empty, values)
        return array

    right = (rows["verdict"] == rows["gold"]).to_numpy(dtype=bool)
    margin, unshifted = _numbers(rows, "margin"), _numbers(rows, "margin_unshifted")
    fold = _numbers(rows, "fold")
    published = published_right(rows)
    return YesNoAnswers(
        kept=spread(np.full(len(rows), True), False),
        right=spread(right, False),
        answered_yes=spread((rows["verdict"] == Verdict.YES).to_numpy(dtype=bool), False),
        answered_no=spread((rows["verdict"] == Verdict.NO).to_numpy(dtype=bool), False),
        margin=spread(margin, np.nan),
        ranking=spread(np.where(np.isnan(unshifted), margin, unshifted), np.nan),
        fold=None if np.isnan(fold).all() else spread(np.nan_to_num(fold, nan=-1).astype(int), -1),
        disagreeing=_disagreeing(rows, margin),
        published_right=None if published is None else spread(published, False),
        status=Counter(rows["status"]),
        verdict=Counter(rows["verdict"][~excluded]),
    )


def _numbers(rows: pd.DataFrame, column: str) -> Float[np.ndarray, " row"]:
    """A column of the records as float64, NaN where a record has no number or the column is absent."""
    if column not in rows.columns:
        return np.full(len(rows), np.nan)
    return pd.to_numeric(rows[column], errors="coerce").to_numpy(dtype=np.float64)


def _disagreeing(rows: pd.DataFrame, margin: Float[np.ndarray, " row"]) -> tuple[int, int]:
    """How many greedy verdicts differ from the sign of their margin, and how many verdicts have one that is not 0."""
    sampled = rows["sampled"].eq(True).to_numpy() if "sampled" in rows.columns else np.full(len(rows), False)
    answered_yes, answered_no = ((rows["verdict"] == word).to_numpy() for word in (Verdict.YES, Verdict.NO))
    checked = (answered_yes | answered_no) & ~sampled & ~np.isnan(margin) & (margin != 0)
    return int((checked & (answered_yes != (margin > 0))).sum()), int(checked.sum())


def published_right(rows: pd.DataFrame) -> Bool[np.ndarray, " row"] | None:
    """Whether the published scorer counts each response as right; None where the predictions hold no responses."""
    if "response" not in rows.columns:
        return None
    golds: list[Gold] = ["yes" if gold == "yes" else "no" for gold in rows["gold"]]
    responses = [text if isinstance(text, str) else "" for text in rows["response"]]
    return np.array([published_correct(text, gold) for text, gold in zip(responses, golds, strict=True)], dtype=bool)
