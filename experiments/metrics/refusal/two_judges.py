"""Where two judges of the same answers differ, and the refusal rate by each. Partial refusals are refusals for both."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.types import REFUSAL_SUBSETS, Verdict


def two_judges(frame: pd.DataFrame) -> dict[str, Any] | None:
    """Both judges' refusals by arm and subset, and the answers on which they differ; None where one judge read them.

    Args:
        frame: one row per case and arm, with the columns of predictions.jsonl; ``second`` is that of
            ``experiments.types.Judgement``. Answers without a verdict of both judges are left out.

    Returns:
        ``judge`` and ``second`` (names), ``arms`` (by arm and subset: n, refused, refused_second, differ) and
        ``differ``, pairs of (case, arm) in the order of the frame.
    """
    if "second" not in frame:
        return None
    rows = frame[frame["second"].map(lambda one: isinstance(one, Mapping))]
    rows = rows.assign(
        other=rows["second"].map(lambda one: one["verdict"]), second_judge=rows["second"].map(lambda one: one["judge"])
    )
    unknown = ["", Verdict.JUDGE_FAILED]
    rows = rows[rows["verdict"].notna() & ~rows["verdict"].isin(unknown) & ~rows["other"].isin(unknown)]
    if rows.empty:
        return None
    rows = rows.assign(refused=rows["verdict"] != Verdict.COMPLIED, refused_second=rows["other"] != Verdict.COMPLIED)
    rows = rows.assign(differ=rows["refused"] != rows["refused_second"])
    arms: dict[str, dict[str, Any]] = {}
    for (arm, subset), part in rows.groupby(["arm", "subset"], sort=False):
        counts = {name: int(part[name].sum()) for name in ("refused", "refused_second", "differ")}
        arms.setdefault(str(arm), {})[str(subset)] = {"n": len(part), **counts}
    return {
        "judge": str(rows["judge"].iloc[0]),
        "second": str(rows["second_judge"].iloc[0]),
        "arms": {arm: {subset: of_arm[subset] for subset in REFUSAL_SUBSETS if subset in of_arm}
                 for arm, of_arm in arms.items()},
        "differ": [[str(case), str(arm)] for case, arm in rows.loc[rows["differ"], ["case", "arm"]].to_numpy()],
    }  # fmt: skip
