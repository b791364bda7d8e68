"""The tables of the analysis → what attention.json says of each subset and of all matched pairs together.

Failures and successes are compared within a subset, by means and their difference with intervals from a bootstrap over
clusters (Student's, as for every difference). The pooled comparison is over matched pairs, both members of which are of
one subset, so that each subset weighs the same on both sides. The matching only makes the two groups alike; the
bootstrap resamples clusters of both together and does not use it, and the intervals are a little wider for that.

The *support* of the picture is the margin as answered minus the margin after an intervention, counted towards the right
answer: positive where the picture helps. A failure is a case whose support did not suffice, so that lower support in
failures than in successes says little; its sign within the failures says something.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.evaluation.matching import MatchedSubset
from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.estimates import CONCEPT, TEMPLATE, Resamples, factors
from experiments.metrics.findings import SMALL, Answer, Finding, statement
from experiments.metrics.paired import simultaneous
from experiments.report.sentences.attention import sentences
from experiments.studies.attention.tables import AttentionTables

WORDS = 10
EFFECTS = ("edge_cut", "edge_cut_support", "image_swapped", "image_swapped_support")
Contrast = dict[str, Any]  # failures, successes, difference


def contrasts(
    cases: pd.DataFrame,
    values: Float[np.ndarray, "case column"],
    *,
    seed: int,
    draws: int,
    small: float | None = SMALL,
) -> list[Contrast]:
    """For each column its mean in failures and in successes (as ``Resamples.effect``), and their difference.

    ``difference`` is as ``paired.change`` gives it, over the clusters of the side that has fewer, and None where a side
    has no case. Differences are ``simultaneous`` over all columns but the first, which is not one of many.
    ``small`` is δ in the unit of the values; None where none is agreed on.
    """
    failed = (cases["outcome"] == "failure").to_numpy(bool)
    sides = (failed, ~failed)
    cluster, sentence = (pd.factorize(cases[name])[0] for name in ("cluster", TEMPLATE))
    shown = [{} if pd.isna(one) else {CONCEPT: one} for one in cases[CONCEPT]]
    resamples = Resamples.of(factors(cluster, sentence, shown), draws=draws, seed=seed)
    found, together = [], []
    for column in values.T:
        contrast: Contrast = {
            name: resamples.effect(column, side) for name, side in zip(("failures", "successes"), sides, strict=True)
        }
        for level in contrast.values():
            del level["statement"]  # which is of differences
        after, before = (contrast[name]["value"] for name in ("failures", "successes"))
        gap = resamples.drawn(partial(ClusterBootstrap.gap, values=column, ones=failed, others=~failed))
        together.append(resamples.difference(before, after, gap, sides, len(failed), small=small))
        found.append(contrast | {"difference": together[-1].entry})
    simultaneous(together[1:])
    return found


def summarise(
    matched: Mapping[str, MatchedSubset], tables: AttentionTables | None, *, seed: int, draws: int
) -> dict[str, Any]:
    """``subsets``, ``pooled`` (None without a matched pair), ``words`` (of all failures), findings, sentences."""
    result: dict[str, Any] = {"subsets": {}, "pooled": None, "words": [], "layers": []}
    if tables is not None:
        for subset, some in matched.items():
            result["subsets"][subset] = _of_subset(subset, some, tables, seed=seed, draws=draws)
        if any(some.pairs for some in matched.values()):
            paired = tables.cases["match"].notna()
            result["pooled"] = _block(tables.cases[paired], tables, seed=seed, draws=draws)
        result["words"] = top_words(tables.words, tables.cases[tables.cases["outcome"] == "failure"])
        result["layers"] = sorted(int(layer) for layer in tables.shares["layer"].unique())
    found = findings(result)
    return result | {"findings": [one.as_json() for one in found], "sentences": sentences(found)}


def _of_subset(subset: str, some: MatchedSubset, tables: AttentionTables, *, seed: int, draws: int) -> dict[str, Any]:
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


def _block(cases: pd.DataFrame, tables: AttentionTables, *, seed: int, draws: int) -> dict[str, Any]:
    """Contrasts of the image share (all layers' mean, and each layer) and of the effects."""
    shares = tables.shares[tables.shares["case"].isin(set(cases["case"]))]
    block: dict[str, Any] = {}
    for value, name in (("share", "image_share"), ("share_with_sink", "image_share_with_sink")):
        wide = shares.pivot(index="case", columns="layer", values=value).loc[cases["case"]]
        wide.insert(0, "all_layers", wide.mean(axis=1))
        found = contrasts(cases, wide.to_numpy(float), seed=seed, draws=draws)
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
    logits = values[defined].to_numpy(float)[:, None]
    return contrasts(cases[defined], logits, seed=seed, draws=draws, small=None)[0]


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


def findings(result: Mapping[str, Any]) -> list[Finding]:
    """Do failures look less at the image, and what does the image do to their margin? As ``findings.statement`` says.

    ROSE and FELL are those of the failures, against the successes or, for what the image does to them, against 0.
    """
    if result["pooled"] is None:
        failures = sum(block["failures_in_run"] for block in result["subsets"].values())
        answer = Answer.NO_SUCCESS if failures else Answer.NO_FAILURE
        return [Finding(question, answer, {"failures": failures}) for question in ("image_share", "image_effect")]
    return [_image_share(result), _image_effect(result)]


def _image_share(result: Mapping[str, Any]) -> Finding:
    """By the share of attention on the image, mean over layers, of failures minus that of their matched successes.

    Layers are many comparisons: those that differ are named by their simultaneous intervals.
    """
    pooled = result["pooled"]["image_share"]
    by_layer = {layer: one["difference"] for layer, one in pooled["by_layer"].items() if "decides" in one["difference"]}
    evidence = pooled["all_layers"] | {
        "subsets": {
            subset: {"difference": block["image_share"]["all_layers"]["difference"], "pairs": block["pairs"]}
            for subset, block in result["subsets"].items()
            if block["pairs"]
        },
        "layers": {
            answer.value: [layer for layer, one in by_layer.items() if one["statement"] == answer]
            for answer in (Answer.FELL, Answer.ROSE)
        },
        "layers_compared": len(by_layer),
    }
    return Finding("image_share", Answer(evidence["difference"]["statement"]), evidence)


def _image_effect(result: Mapping[str, Any]) -> Finding:
    """By the picture's support in failures where its replacements are twins, else by how far it moves the margin."""
    effects = result["pooled"]["effects"]
    cut, swap, support = (effects[name] for name in ("edge_cut", "image_swapped", "image_swapped_support"))
    evidence: dict[str, Any] = {
        "edge_cut": cut,
        "image_swapped": swap,
        "twins_only": result["pooled"]["twins"] == cut["difference"]["n"],
    }
    if swap is None or swap["difference"] is None:
        return Finding("image_effect", Answer.CANNOT_TELL, evidence)
    if support is None or support["failures"]["value"] is None:
        return Finding("image_effect", Answer(swap["difference"]["statement"]), evidence)
    evidence["support"] = support["failures"]
    evidence["subsets"] = {
        subset: block["effects"]["image_swapped_support"]["failures"]
        for subset, block in result["subsets"].items()
        if block["pairs"] and block["effects"]["image_swapped_support"]
    }
    return Finding("image_pull", statement(support["failures"], small=None), evidence)
