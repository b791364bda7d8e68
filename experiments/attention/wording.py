"""attention.json → two sentences for a reader who has not seen the project, whichever way they point, and its words.

The first says whether failures look less at the image than matched successes, the second what the image does to the
margin, since attention is not causation.
"""

from collections.abc import Mapping
from typing import Any

from experiments.attention.tables import Tables
from experiments.benchmarks.sample import Sample
from experiments.summary import change, share

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
