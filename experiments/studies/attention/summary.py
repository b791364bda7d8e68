"""attention.json → two sentences for a reader who has not seen the project, whichever way they point, and its words.

The first says whether failures look less at the image than matched successes, the second what the image does to the
margin, since attention is not causation.

The tables of the analysis → what attention.json says of each subset and of all matched pairs together. Pure.

Failures and successes are compared within a subset. The pooled comparison keeps to that: it is over matched pairs, both
members of which are of one subset, so that each subset weighs alike on both sides.

The *support* of the picture is the margin as answered minus the margin after an intervention, counted towards the right
answer: positive where the picture helps. A failure is a case whose support did not suffice, so that lower support in
failures than in successes says little; its sign within the failures says something.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from experiments.evaluation.attention_log import Tables
from experiments.evaluation.matching import MatchedSubset
from experiments.metrics.bootstrap import draw_clusters, percentile_interval, resampled_sums
from experiments.report.numbers import change, share
from experiments.types import Sample

WORDS = 10
EFFECTS = ("edge_cut", "edge_cut_support", "image_swapped", "image_swapped_support")


class Estimate(NamedTuple):
    """A mean with its 95% interval (None where the draws give none) over ``n`` cases."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class Contrast(NamedTuple):
    """One quantity in failures, in successes, and failures − successes."""

    failures: Estimate
    successes: Estimate
    difference: Estimate


def contrasts(
    values: Float[np.ndarray, "case column"],
    failed: Bool[np.ndarray, "case"],
    cluster: np.ndarray,
    *,
    seed: int,
    draws: int,
) -> list[Contrast]:
    """One contrast a column; a group without cases has no value. ``cluster`` names each case's cluster."""
    assert len(values) == len(failed) == len(cluster) > 0
    codes, names = pd.factorize(pd.Series(cluster))
    multiplicity = draw_clusters(len(names), draws=draws, seed=seed)
    groups = [(mask, _means(values, mask, codes, multiplicity)) for mask in (failed, ~failed)]
    found = []
    for column in range(values.shape[1]):
        (wrong, right) = (
            (float(values[mask, column].mean()) if mask.any() else None, resampled[:, column])
            for mask, resampled in groups
        )
        both = None if wrong[0] is None or right[0] is None else wrong[0] - right[0]
        found.append(
            Contrast(
                _estimate(*wrong, int(failed.sum())),
                _estimate(*right, int((~failed).sum())),
                _estimate(both, wrong[1] - right[1], len(failed)),
            )
        )
    return found


def _means(
    values: Float[np.ndarray, "case column"],
    mask: Bool[np.ndarray, "case"],
    codes: np.ndarray,
    multiplicity: np.ndarray,
) -> Float[np.ndarray, "draw column"]:
    """The group's mean in each bootstrap sample; NaN where a sample has none of the group."""
    own = mask[:, None].astype(float)
    sums = resampled_sums(multiplicity, codes, np.concatenate([values * own, own], axis=1))
    count = sums[:, -1:]
    return np.divide(sums[:, :-1], count, out=np.full_like(sums[:, :-1], np.nan), where=count > 0)


def _estimate(value: float | None, draws: Float[np.ndarray, "draw"], n: int) -> Estimate:
    interval = None if value is None else percentile_interval(draws)
    return Estimate(value, None, None, n) if interval is None else Estimate(value, interval.low, interval.high, n)


def as_json(contrast: Contrast) -> dict[str, Any]:
    """Plain dicts, for attention.json."""
    return {name: estimate._asdict() for name, estimate in contrast._asdict().items()}


def summarise(chosen: Mapping[str, MatchedSubset], tables: Tables | None, *, seed: int, draws: int) -> dict[str, Any]:
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


def _of_subset(subset: str, some: MatchedSubset, tables: Tables, *, seed: int, draws: int) -> dict[str, Any]:
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


NAMES = {"typical": "typical", "attack": "attack", "over_safety": "over-safety"}
FINDING = {
    -1: "failures look less at the image",
    0: "that failures look less at the image is not found here",
    1: "failures look more at the image, not less",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Two sentences with numbers, 95% intervals and counts; ``result`` is attention.json but for them."""
    if result["pooled"] is None:
        return _without_pairs(result)
    return [_attention(result), _causal(result)]


def word_line(result: Mapping[str, Any], count: int = 6) -> str:
    """The words that draw most attention in failures, in the sentence and in the question around it."""
    lists = []
    for in_sentence, name in ((True, "the sentence"), (False, "the question around it")):
        words = [entry for entry in result["words"] if entry["in_sentence"] == in_sentence][:count]
        if words:
            listed = ", ".join(f"“{entry['word']}” {share(entry['mass'])}" for entry in words)
            lists.append(f"{listed} (of {name})")
    return f"Words that draw most of the verdict's attention in failures: {'; '.join(lists)}." if lists else ""


def _without_pairs(result: Mapping[str, Any]) -> list[str]:
    failures = sum(block["failures_in_run"] for block in result["subsets"].values())
    if failures == 0:
        return ["The baseline has no failure with an image here, so there is no attention of failures to look at.",
                "What the image does in failures cannot be said either."]  # fmt: skip
    return [
        f"The baseline has {failures} failures with an image, and no subset holds a success beside them, so whether "
        "failures look less at the image cannot be told.",
        "Where their attention goes, and what the image does to their margins, is in attention.json for each subset.",
    ]


def _attention(result: Mapping[str, Any]) -> str:
    pooled = result["pooled"]["image_share"]
    whole = pooled["all_layers"]
    parts = [f"{NAMES[subset]} {_brief(block)}" for subset, block in result["subsets"].items() if block["pairs"]]
    by_layer = [
        f"{word} in layer{'s' if len(layers) > 1 else ''} {', '.join(layers)}"
        for sign, word in ((-1, "less"), (1, "more"))
        if (layers := [layer for layer, one in pooled["by_layer"].items() if _sign(one["difference"]) == sign])
    ]
    return (
        f"At the verdict, failures put {share(whole['failures']['value'])} of their attention (the first token, a "
        f"sink, left out) on the image, and matched successes of the same subset {share(whole['successes']['value'])} "
        f"({change(whole['difference'])}; {whole['failures']['n']} pairs): {FINDING[_sign(whole['difference'])]} "
        f"({'; '.join(parts)}; layer by layer {' and '.join(by_layer) or 'no interval excludes 0'})."
    )


def _brief(block: Mapping[str, Any]) -> str:
    return f"{change(block['image_share']['all_layers']['difference'])}, {block['pairs']} pairs"


def _causal(result: Mapping[str, Any]) -> str:
    effects, twins = result["pooled"]["effects"], result["pooled"]["twins"]
    cut, swap = effects["edge_cut"], effects["image_swapped"]
    text = (
        f"Cutting image → verdict attention changes the Yes/No margin by {_logits(cut['failures'])} logits on average "
        f"in failures and {_logits(cut['successes'])} in successes"
    )
    if swap is None:
        return f"{text}; there is no other image to put in its place."
    kind = "that of the counterfactual twin" if twins == cut["difference"]["n"] else "another one"
    text += f", and replacing the image by {kind} by {_logits(swap['failures'])} and {_logits(swap['successes'])}"
    support = effects["image_swapped_support"]
    if support is None:
        found = {-1: "the image moves failures less", 0: "no difference between them is found",
                 1: "the image moves failures more"}[_sign(swap["difference"])]  # fmt: skip
        return f"{text}: {found} ({change(swap['difference'], of_rates=False)})."
    found = {
        -1: "in failures the image pulls away from the right answer",
        0: "no pull of the image towards the right answer is found in failures",
        1: "in failures, too, the image pulls towards the right answer, but not far enough",
    }[_sign(support["failures"])]
    by_subset = "".join(
        f"; {NAMES[subset]} {change(block['effects']['image_swapped_support']['failures'], of_rates=False)}"
        for subset, block in result["subsets"].items()
        if block["pairs"] and block["effects"]["image_swapped_support"]
    )
    lost = change(support["failures"], of_rates=False)
    return f"{text}: {found} (margin that the right answer loses with the image: {lost}{by_subset})."


def _sign(estimate: Mapping[str, Any]) -> int:
    """−1 or 1 where the interval excludes 0, else 0."""
    if estimate["low"] is None or estimate["low"] <= 0 <= estimate["high"]:
        return 0
    return 1 if estimate["low"] > 0 else -1


def _logits(estimate: Mapping[str, Any]) -> str:
    return "n/a" if estimate["value"] is None else f"{estimate['value']:.2f}"


def case_lines(sample: Sample, tables: Tables) -> list[str]:
    """One case in words: what was asked and answered, where the verdict's attention went, what the image does."""
    case, own = tables.cases.iloc[0], tables.shares
    words = tables.words[tables.words["in_sentence"]].sort_values("mass", ascending=False, kind="stable").head(5)
    listed = ", ".join(f"“{row.word}” {share(row.mass)}" for row in words.itertuples())
    by_layer = ", ".join(f"layer {row.layer} {share(row.share)}" for row in own.itertuples())
    lines = [
        f"{sample.id} ({NAMES.get(sample.subset, sample.subset)}, gold {sample.gold}): {sample.text}",
        f"answer: {case['response']} (margin {case['margin']:+.2f} logits, {case['outcome']})",
        f"the verdict's attention on the image (first token left out): {share(own['share'].mean())} ({by_layer})",
        f"words of the sentence that draw most of it: {listed}",
        f"image → verdict attention cut: margin {case['margin_without_edge']:+.2f}",
    ]
    if case["swapped_with"] is not None:
        kind = "its counterfactual twin" if case["twin"] else "another case"
        lines.append(f"with the image of {kind}, {case['swapped_with']}: margin {case['margin_swapped']:+.2f}")
    return lines
