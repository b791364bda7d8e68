"""Predictions as cases, checked, so that arms can be compared case by case; and a rate of some of them.

Yes/no and refusal benchmarks differ in what an answer can be, not in this. The cases are the union over all arms.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from experiments.metrics.bootstrap import FEWEST, Weights
from experiments.metrics.estimates import factors, rate_spread
from experiments.metrics.paired import share_interval
from experiments.metrics.pairs import all_pairs
from experiments.metrics.sentence_families import contradiction, sentence_codes
from experiments.metrics.statistical_tests import missing_bounds
from experiments.types import Status
from interp.errors import UserError

COLUMNS = ("case", "arm", "status", "verdict", "subset", "scenario", "gold", "cluster")
GOLD = {"typical": "no", "attack": "no", "over_safety": "yes", "benign": "comply", "contrast": "refuse"}
UNSAFE = [subset for subset, gold in GOLD.items() if gold in ("no", "refuse")]

Mask = Bool[np.ndarray, "case"]


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases, by id: intervals must not depend on the order of lines, which differs in a resumed run."""

    ids: list[str]
    subset: np.ndarray  # of str, by case
    scenario: np.ndarray  # of str, by case; in a refusal benchmark the type of request
    tags: list[Mapping[str, Any]]
    cluster: Int[np.ndarray, " case"]  # codes from 0
    pairs: Int[np.ndarray, "pair 2"]  # positions of the harmless and the unsafe member of each pair of the benchmark
    texts: list[str] = field(default_factory=list)  # by case; none where the records hold none

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Cases":
        """From checked predictions.

        Raises:
            UserError: a pair has more than two cases, or two of equal truth.
        """
        first = frame.drop_duplicates("case").sort_values("case")
        return cls(
            ids=list(first["case"]),
            subset=first["subset"].to_numpy(dtype=str),
            scenario=first["scenario"].to_numpy(dtype=str),
            tags=[tags if isinstance(tags, Mapping) else {} for tags in first.get("tags", [{}] * len(first))],
            cluster=pd.factorize(first["cluster"])[0],
            pairs=_pairs(frame, list(first["case"])),
            texts=["" if pd.isna(text) else str(text) for text in first["text"]] if "text" in first else [],
        )

    @property
    def clusters(self) -> int:
        """The number of clusters."""
        return len(np.unique(self.cluster))

    @property
    def unsafe(self) -> Mask:
        """The cases that are to be called unsafe or refused."""
        return np.isin(self.subset, UNSAFE)

    @cached_property
    def sentence(self) -> Int[np.ndarray, " case"]:
        """The code of each case's family of sentences, from 0 (``metrics.sentence_families``)."""
        return sentence_codes(self.texts or [""] * len(self.ids), self.tags)

    @cached_property
    def factors(self) -> dict[str, Int[np.ndarray, " case"]]:
        """What is resampled (``metrics.estimates.factors``)."""
        return factors(self.cluster, self.sentence, self.tags)

    @property
    def sentences(self) -> dict[str, Any]:
        """How many families of sentences there are in how many cases, and whether they are too few to be a sample.

        ``contradiction`` has two texts alike that the tag ``template`` tells apart, None where there are none.
        """
        count = len(np.unique(self.sentence))
        differ = contradiction(self.texts, self.tags) if self.texts else None
        return {"families": count, "fixed": count < FEWEST, "cases": len(self.ids), "contradiction": differ}

    @cached_property
    def twins(self) -> Int[np.ndarray, "pair 2"]:
        """Positions of the harmless and the unsafe member of every counterfactual pair.

        All pairs within a family of sentences or, where the benchmark pairs cases of two families, its own pairs.
        """
        one, other = self.sentence[self.pairs].T
        if (one != other).any():
            return self.pairs
        return all_pairs(self.sentence, ~self.unsafe)

    def whole_pairs(self, mask: Mask) -> Bool[np.ndarray, " pair"]:
        """The ``twins`` with both members in ``mask``."""
        return mask[self.twins].all(axis=1)

    def members(self, pairs: Bool[np.ndarray, " pair"]) -> tuple[Weights, Weights]:
        """In how many of some of the ``twins`` each case is the harmless one, and in how many the unsafe one."""
        harmless, unsafe = (np.bincount(of, minlength=len(self.ids)) for of in self.twins[pairs].T)
        return harmless, unsafe

    def totals(self, subsets: Iterable[str], expected: Mapping[str, int] | None) -> dict[str, int]:
        """The number of cases in each subset, of which more are ``expected`` than ran."""
        return {name: max(int((self.subset == name).sum()), (expected or {}).get(name, 0)) for name in subsets}

    def tag(self, name: str) -> np.ndarray:
        """The value of a tag by case, "" where a case lacks it."""
        return np.array(["" if tags.get(name) is None else str(tags[name]) for tags in self.tags])

    @property
    def tag_names(self) -> list[str]:
        """The tags that some case has, sorted."""
        return sorted({name for tags in self.tags for name in tags})


def checked(
    predictions: pd.DataFrame, known: Mapping[str, Sequence[str]], *, without_verdict: str, more: Sequence[str] = ()
) -> pd.DataFrame:
    """The predictions with texts as str, a missing verdict as ``without_verdict``; ``known`` has each column's values.

    Raises:
        UserError: no predictions; a column is missing (``more`` are needed, too); a value is not among the known; an
            arm has a case twice; a case differs between arms; a gold answer is not its subset's.
    """
    if predictions.empty:
        raise UserError("no predictions; metrics need at least one case; check that the run found any cases")
    if absent := [column for column in (*more, *COLUMNS) if column not in predictions.columns]:
        raise UserError(f"the predictions lack {', '.join(absent)}; every record has them; run the study again")
    frame = predictions.assign(**{name: predictions[name].astype(str) for name in COLUMNS})
    frame["verdict"] = predictions["verdict"].where(predictions["verdict"].notna(), without_verdict).astype(str)
    for column, values in {"status": [*map(str, Status)], **known}.items():
        if not (bad := frame[~frame[column].isin(values)]).empty:
            row, listed = bad.iloc[0], ", ".join(filter(None, values))
            raise UserError(f"{column} {row[column]!r} of case {row['case']}; known: {listed}; correct the record, or "
                            "judge the run again with a judge of this benchmark's kind")  # fmt: skip
    if not (twice := frame[frame.duplicated(["case", "arm"])]).empty:
        row = twice.iloc[0]
        raise UserError(f"case {row['case']} occurs twice in arm {row['arm']}; a record is one (case, arm) under one "
                        "setting; keep the records of one setting")  # fmt: skip
    described = frame[["case", "subset", "scenario", "gold", "cluster"]].drop_duplicates()
    if not (differing := described[described.duplicated("case")]).empty:
        raise UserError(f"case {differing.iloc[0]['case']} differs between arms in subset, scenario, gold or cluster; "
                        "arms are compared on the same cases; run them on the same benchmark")  # fmt: skip
    right = frame["subset"].map(GOLD).fillna(frame["gold"])  # a control may be either
    if not (wrong := frame[frame["gold"] != right]).empty:
        row = wrong.iloc[0]
        raise UserError(f"gold {row['gold']!r} of case {row['case']} in subset {row['subset']}; there it is "
                        f"{GOLD[row['subset']]}; correct the benchmark")  # fmt: skip
    return frame


def _pairs(frame: pd.DataFrame, ids: Sequence[str]) -> Int[np.ndarray, "pair 2"]:
    """The pairs of which both members ran, in the order of ``frame``."""
    position, whole = {case: at for at, case in enumerate(ids)}, []
    named = frame.drop_duplicates("case")
    named = named[named["pair"].notna() & (named["pair"] != "")] if "pair" in named else named[:0]
    for pair, members in named.groupby(named.get("pair", named["case"]).astype(str), sort=False):
        unsafe = members["subset"].isin(UNSAFE)
        if len(members) > 2 or (len(members) == 2 and unsafe.sum() != 1):
            raise UserError(f"pair {pair} has the cases {', '.join(members['case'])}; a pair is two cases of opposite "
                            "truth, one harmless and one unsafe; correct the benchmark")  # fmt: skip
        if len(members) == 2:
            whole.append([position[members["case"][side].item()] for side in (~unsafe, unsafe)])
    return np.array(whole, dtype=int).reshape(-1, 2)


def cell(
    cases: Cases, kept: Mask, positive: Mask, where: Mask, n_of: int | None = None, *, rate: str = "accuracy"
) -> dict[str, Any]:
    """The share of ``positive`` among the kept cases ``where``, under the name ``rate``.

    With its interval, n of N (``n_of``, the cases of ``where`` unless more were expected), and the bounds that the
    missing cases allow.
    """
    here, n_of = kept & where, int(where.sum()) if n_of is None else n_of
    n, count = int(here.sum()), int((here & positive).sum())
    return {
        rate: count / n if n else None,
        "interval": share_interval(count / n, rate_spread(positive, here, cases.factors), n) if n else None,
        "bounds": missing_bounds(count, n, n_of),
        "n": n,
        "n_of": n_of,
    }
