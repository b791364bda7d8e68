"""The tables of the analysis → rows of the results table, and what attention.json says of words.

Failures and successes are compared within a subset, by means and their difference with intervals from a bootstrap over
clusters. The pooled comparison (no subset) is over matched pairs, both members of which are in one subset, so that each
subset has the same weight on both sides. The bootstrap resamples clusters of both groups together.

The *support* of the picture is the margin as answered minus the margin after an intervention, counted towards the right
answer: positive if the picture helps. A failure is a case whose support did not suffice. So lower support in failures
says little; its sign within the failures says something.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.evaluation.matching import MatchedSubset
from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.claims import SMALL
from experiments.metrics.compare import difference, simultaneous
from experiments.metrics.estimates import CONCEPT, TEMPLATE, Resamples, factors
from experiments.report.tables import unit
from experiments.runs.results_table import Row, row
from experiments.studies.attention.tables import AttentionTables

WORDS = 10
SHARE, WITH_SINK = "attention_on_image", "attention_on_image_with_sink"
EFFECTS = ("edge_cut", "edge_cut_support", "image_swapped", "image_swapped_support")  # in logits
FAILURES, SUCCESSES = "failures", "successes"
COUNTS = ("failures_in_run", "successes_in_run", "failures_logged", "pairs", "answered_differently_now")
for _name in EFFECTS:
    unit(_name, 2)
unit("attention_twins", 0)
for _name in COUNTS:
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
    resamples = Resamples.of(factors(cluster, sentence, concepts), draws=draws, seed=seed)
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
    matched: Mapping[str, MatchedSubset], tables: AttentionTables | None, *, seed: int, draws: int
) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of the results table, and ``words`` (of all failures) and ``layers`` for attention.json."""
    rows: list[Row] = []
    result: dict[str, Any] = {"words": [], "layers": []}
    settings = {"seed": seed, "draws": draws}
    for subset, part in matched.items():
        in_subset = None if tables is None else tables.cases[tables.cases["subset"] == subset]
        failures = in_subset[in_subset["outcome"] == "failure"] if in_subset is not None else ()
        differing = 0 if in_subset is None else int((~in_subset["same_outcome"]).sum())
        counts = (part.failures, part.successes, len(failures), part.pairs, differing)
        rows += [
            row(f"attention_{name}", subset=subset, value=count) for name, count in zip(COUNTS, counts, strict=True)
        ]
        if tables is not None and in_subset is not None and not in_subset.empty:
            # Without any success there is nothing to match: the failures are described by themselves.
            rows += _block(
                in_subset[in_subset["match"].notna()] if part.pairs else in_subset, tables, subset, **settings
            )
    if tables is not None:
        if any(part.pairs for part in matched.values()):
            rows += _block(tables.cases[tables.cases["match"].notna()], tables, "", **settings)
        result["words"] = top_words(tables.words, tables.cases[tables.cases["outcome"] == "failure"])
        result["layers"] = sorted(int(layer) for layer in tables.shares["layer"].unique())
    return rows, result


def _block(cases: pd.DataFrame, tables: AttentionTables, subset: str, *, seed: int, draws: int) -> Iterator[Row]:
    """Contrasts of the image share (the mean over layers, and each layer) and of the effects."""
    shares = tables.shares[tables.shares["case"].isin(set(cases["case"]))]
    settings: dict[str, Any] = {"subset": subset, "seed": seed, "draws": draws}
    for value, quantity in (("share", SHARE), ("share_with_sink", WITH_SINK)):
        wide = shares.pivot(index="case", columns="layer", values=value).loc[cases["case"]]
        groups = ["", *(f"layer={layer}" for layer in wide.columns)]
        wide.insert(0, "all_layers", wide.mean(axis=1))
        yield from contrasts(cases, wide.to_numpy(float), groups, quantity, **settings)
    measured = effect_sizes(cases)
    yield row("attention_twins", subset=subset, value=int(cases["twin"].sum()), n=len(cases))
    for name in EFFECTS:
        defined = measured[name].notna()
        if defined.any():
            logits = measured[name][defined].to_numpy(float)[:, None]
            yield from contrasts(cases[defined], logits, [""], name, small=None, **settings)


def effect_sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """Size of the change of the margin, and the picture's support, by intervention; NaN where there is none.

    What another picture supports is known only of a counterfactual twin, whose truth is the opposite.
    """
    towards_right = np.where(cases["gold"] == "yes", 1.0, -1.0)
    cut = cases["margin"] - cases["margin_without_edge"]
    swap = cases["margin"] - cases["margin_swapped"]
    columns = (cut.abs(), cut * towards_right, swap.abs(), (swap * towards_right).where(cases["twin"]))
    return pd.DataFrame(dict(zip(EFFECTS, columns, strict=True)))


def top_words(words: pd.DataFrame, cases: pd.DataFrame) -> list[dict[str, Any]]:
    """The words that draw most of the verdict's attention in ``cases``, a list of the sentence's, then the question's.

    ``mass`` is the mean over a word's occurrences of its share of all attention (mean over layers and heads). A word
    of one case alone says little of the group and is left out where others are there.
    """
    in_cases = words[words["case"].isin(set(cases["case"]))]
    in_cases = in_cases.assign(word=in_cases["word"].str.casefold())
    counts: list[dict[str, Any]] = []
    for in_sentence in (True, False):
        grouped = in_cases[in_cases["in_sentence"] == in_sentence].groupby("word")
        table = grouped.agg(mass=("mass", "mean"), cases=("case", "nunique")).reset_index()
        table = table[table["cases"] > 1] if (table["cases"] > 1).any() else table
        best = table.sort_values(["mass", "word"], ascending=[False, True]).head(WORDS)
        counts += [{"word": row.word, "in_sentence": in_sentence, "cases": int(row.cases), "mass": float(row.mass)}
                  for row in best.itertuples()]  # fmt: skip
    return counts
