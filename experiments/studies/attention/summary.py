"""The table of cases → rows of the results table, and what attention.json says of words.

Failures and successes are compared within a subset, by means and their difference with intervals from a bootstrap over
clusters. The pooled comparison (no subset) is over matched pairs. Both members of a pair are in one subset, so each
subset has the same weight on both sides. The bootstrap resamples clusters of both groups together.

The *support* of the picture is the margin as answered minus the margin after an intervention, counted towards the right
answer: positive if the picture helps. A failure is a case whose support did not suffice. So lower support in failures
says little; its sign within the failures says something.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.evaluation.matching import MatchedSubset
from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.compare import difference, simultaneous
from experiments.metrics.estimates import CONCEPT, SMALL, TEMPLATE, Resamples, factors
from experiments.report.tables import unit
from experiments.runs.results_table import Row, row
from experiments.studies.attention.cases import SHARE, WITH_SINK

WORDS = 10
EFFECTS = ("edge_cut", "edge_cut_support", "image_swapped", "image_swapped_support")  # in logits
FAILURES, SUCCESSES = "failures", "successes"
COUNTS = ("failures_in_run", "successes_in_run", "failures_logged", "pairs", "answered_differently_now")
for _name in EFFECTS:
    unit(_name, 2)
for _name in ("twins", *COUNTS):
    unit(f"attention_{_name}", 0)


def contrasts(
    cases: pd.DataFrame,
    values: Float[np.ndarray, "case column"],
    groups: list[str],
    quantity: str,
    *,
    subset: str,
    seed: int,
    draws: int,
    small: float | None = SMALL,
) -> Iterator[Row]:
    """Yield for each column its mean in failures and in successes, and their difference.

    The intervals of all columns but the first hold together: the first is not one of many.

    Args:
        cases: with ``outcome``, ``cluster`` and the tags that are resampled.
        values: a column for each group.
        groups: names of the columns ("layer=3").
        quantity: name of the rows.
        subset: of the cases.
        seed: of the bootstrap.
        draws: of the bootstrap.
        small: δ in the unit of the values; None without one.
    """
    failed = (cases["outcome"] == "failure").to_numpy(bool)
    sides = {FAILURES: failed, SUCCESSES: ~failed}
    cluster, sentence = (pd.factorize(cases[name])[0] for name in ("cluster", TEMPLATE))
    concepts = [{} if pd.isna(concept) else {CONCEPT: concept} for concept in cases[CONCEPT]]
    resamples = Resamples.from_codes(factors(cluster, sentence, concepts), draws=draws, seed=seed)
    compared = []
    for group, column in zip(groups, values.T, strict=True):
        levels = {name: resamples.effect(column, side) for name, side in sides.items()}
        for name, entry in levels.items():
            claim = entry["claim"] if small is None else ""
            yield row(quantity, arm=name, subset=subset, group=group, entry=entry, claim=claim)
        after, before = (levels[name]["value"] for name in sides)
        gap = resamples.drawn(partial(_gap, column, failed))
        compared.append(difference(resamples, before, after, gap, list(sides.values()), len(failed), small=small))
    simultaneous(compared[1:])
    for group, each in zip(groups, compared, strict=True):
        if each.entry is not None:
            yield row(quantity, arm=FAILURES, against=SUCCESSES, subset=subset, group=group, entry=each.entry)


def _gap(values: np.ndarray, failed: np.ndarray, sample: ClusterBootstrap) -> np.ndarray:
    return sample.mean(values, failed) - sample.mean(values, ~failed)


def summarise(
    matched: Mapping[str, MatchedSubset], cases: pd.DataFrame | None, *, seed: int, draws: int
) -> Iterator[Row]:
    """Yield the rows of the results table. ``cases`` is None if no case was looked at."""
    for subset, part in matched.items():
        members = None if cases is None else cases[cases["subset"] == subset]
        logged = 0 if members is None else int((members["outcome"] == "failure").sum())
        differing = 0 if members is None else int((~members["same_outcome"]).sum())
        counts = (part.failures, part.successes, logged, part.pairs, differing)
        for name, count in zip(COUNTS, counts, strict=True):
            yield row(f"attention_{name}", subset=subset, value=count)
        if members is not None and len(members):
            # Without any success there is nothing to match, and the failures are described without a comparison.
            compared = members[members["match"].notna()] if part.pairs else members
            yield from _block(compared, subset=subset, seed=seed, draws=draws)
    if cases is not None and any(part.pairs for part in matched.values()):
        yield from _block(cases[cases["match"].notna()], subset="", seed=seed, draws=draws)


def _block(cases: pd.DataFrame, **settings: Any) -> Iterator[Row]:
    """Yield contrasts of the image share (the mean over layers, and each layer) and of the effects."""
    for quantity in (SHARE, WITH_SINK):
        shares = cases.filter(regex=f"^{quantity} layer=")
        groups = ["", *(name.removeprefix(f"{quantity} ") for name in shares)]
        values = np.column_stack([shares.mean(axis=1), shares])
        yield from contrasts(cases, values, groups, quantity, **settings)
    yield row("attention_twins", subset=settings["subset"], value=int(cases["twin"].sum()), n=len(cases))
    for name, values in effect_sizes(cases).items():
        defined = values.notna()
        if defined.any():
            logits = values[defined].to_numpy(float)[:, None]
            yield from contrasts(cases[defined], logits, [""], str(name), small=None, **settings)


def effect_sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the size of the change of the margin, and the picture's support, by intervention; NaN without one.

    The support against another picture is known only of a counterfactual twin, whose truth is the opposite.
    """
    towards_right = np.where(cases["gold"] == "yes", 1.0, -1.0)
    cut = cases["margin"] - cases["margin_without_edge"]
    swap = cases["margin"] - cases["margin_swapped"]
    columns = (cut.abs(), cut * towards_right, swap.abs(), (swap * towards_right).where(cases["twin"]))
    return pd.DataFrame(dict(zip(EFFECTS, columns, strict=True)))


def top_words(words: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the words that draw most of the verdict's attention, first of the sentence, then of the question.

    ``words`` has a table for each case (``attention.cases.words_of``). ``mass`` is the mean over a word's occurrences
    of its share of all attention. If any word is in several cases, words of a single case are dropped: they say little.
    """
    if not words:
        return []
    listed = pd.concat(words)
    listed = listed.assign(word=listed["word"].str.casefold())
    best: list[dict[str, Any]] = []
    for in_sentence in (True, False):
        grouped = listed[listed["in_sentence"] == in_sentence].groupby("word")
        table = grouped.agg(mass=("mass", "mean"), cases=("case", "nunique")).reset_index()
        table = table[table["cases"] > 1] if (table["cases"] > 1).any() else table
        table = table.sort_values(["mass", "word"], ascending=[False, True]).head(WORDS)
        best += table.assign(in_sentence=in_sentence).to_dict("records")
    return best
