"""The tables of the analysis → what attention.json says of each subset and of all matched pairs together. Pure.

Failures and successes are compared within a subset. The pooled comparison keeps to that: it is over matched pairs, both
members of which are of one subset, so that each subset weighs alike on both sides.

The *support* of the picture is the margin as answered minus the margin after an intervention, counted towards the right
answer: positive where the picture helps. A failure is a case whose support did not suffice, so that lower support in
failures than in successes says little; its sign within the failures says something.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.attention.matching import Chosen
from experiments.attention.shares import as_json, contrasts
from experiments.attention.tables import Tables
from experiments.attention.wording import sentences

WORDS = 10
EFFECTS = ("edge_cut", "edge_cut_support", "image_swapped", "image_swapped_support")


def summarise(chosen: Mapping[str, Chosen], tables: Tables | None, *, seed: int, draws: int) -> dict[str, Any]:
    """``subsets``, ``pooled`` (None without a matched pair), ``words`` (of all failures) and two ``sentences``."""
    result: dict[str, Any] = {"subsets": {}, "pooled": None, "words": [], "layers": []}
    if tables is not None:
        for subset, some in chosen.items():
            result["subsets"][subset] = _of_subset(subset, some, tables, seed=seed, draws=draws)
        if any(some.pairs for some in chosen.values()):
            paired = tables.cases["match"].notna()
            result["pooled"] = _block(tables.cases[paired], tables, seed=seed, draws=draws)
        result["words"] = top_words(tables.words, tables.cases[tables.cases["outcome"] == "failure"])
        result["layers"] = sorted(int(layer) for layer in tables.shares["layer"].unique())
    return result | {"sentences": sentences(result)}


def _of_subset(subset: str, some: Chosen, tables: Tables, *, seed: int, draws: int) -> dict[str, Any]:
    own = tables.cases[tables.cases["subset"] == subset]
    failures = own[own["outcome"] == "failure"]
    counts = {
        "failures_in_run": some.failures,
        "successes_in_run": some.successes,
        "failures_logged": len(failures),
        "pairs": some.pairs,
        "answered_differently_now": int((~own["same_outcome"]).sum()),
    }
    if own.empty:
        return counts
    # Without any success there is nothing to match: the failures are described by themselves.
    compared = own[own["match"].notna()] if some.pairs else own
    return counts | _block(compared, tables, seed=seed, draws=draws) | {"words": top_words(tables.words, failures)}


def _block(cases: pd.DataFrame, tables: Tables, *, seed: int, draws: int) -> dict[str, Any]:
    """Contrasts of the image share (all layers' mean, and each layer) and of the effects."""
    shares = tables.shares[tables.shares["case"].isin(set(cases["case"]))]
    block: dict[str, Any] = {}
    for value, name in (("share", "image_share"), ("share_with_sink", "image_share_with_sink")):
        wide = shares.pivot(index="case", columns="layer", values=value).loc[cases["case"]]
        wide.insert(0, "all_layers", wide.mean(axis=1))
        found = _contrasts(cases, wide.to_numpy(float), seed=seed, draws=draws)
        block[name] = {
            "all_layers": found[0],
            "by_layer": dict(zip(map(str, wide.columns[1:]), found[1:], strict=True)),
        }
    measured = effect_sizes(cases)
    block["twins"] = int(cases["twin"].sum())
    block["effects"] = {name: _over_defined(cases, measured[name], seed=seed, draws=draws) for name in EFFECTS}
    return block


def effect_sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """Size of the change of the margin, and the picture's support, by intervention; NaN where there is none.

    What another picture supports is known only of a counterfactual twin, whose truth is the opposite.
    """
    towards_right = np.where(cases["gold"] == "yes", 1.0, -1.0)
    cut = cases["margin"] - cases["margin_without_edge"]
    swap = cases["margin"] - cases["margin_swapped"]
    columns = (cut.abs(), cut * towards_right, swap.abs(), (swap * towards_right).where(cases["twin"]))
    return pd.DataFrame(dict(zip(EFFECTS, columns, strict=True)))


def _over_defined(cases: pd.DataFrame, values: pd.Series, *, seed: int, draws: int) -> dict[str, Any] | None:
    defined = values.notna()
    if not defined.any():
        return None
    return _contrasts(cases[defined], values[defined].to_numpy(float)[:, None], seed=seed, draws=draws)[0]


def _contrasts(cases: pd.DataFrame, values: np.ndarray, *, seed: int, draws: int) -> list[dict[str, Any]]:
    failed = (cases["outcome"] == "failure").to_numpy(bool)
    return [as_json(one) for one in contrasts(values, failed, cases["cluster"].to_numpy(), seed=seed, draws=draws)]


def top_words(words: pd.DataFrame, cases: pd.DataFrame) -> list[dict[str, Any]]:
    """The words that draw most of the verdict's attention in ``cases``, a list of the sentence's, then the question's.

    ``mass`` is the mean over a word's occurrences of its share of all attention (mean over layers and heads). A word
    of one case alone says little of the group and is left out where others are there.
    """
    own = words[words["case"].isin(set(cases["case"]))]
    own = own.assign(word=own["word"].str.casefold())
    found: list[dict[str, Any]] = []
    for in_sentence in (True, False):
        grouped = own[own["in_sentence"] == in_sentence].groupby("word")
        table = grouped.agg(mass=("mass", "mean"), cases=("case", "nunique")).reset_index()
        table = table[table["cases"] > 1] if (table["cases"] > 1).any() else table
        best = table.sort_values(["mass", "word"], ascending=[False, True]).head(WORDS)
        found += [{"word": row.word, "in_sentence": in_sentence, "cases": int(row.cases), "mass": float(row.mass)}
                  for row in best.itertuples()]  # fmt: skip
    return found
