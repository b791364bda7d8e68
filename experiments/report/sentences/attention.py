"""The attention analysis as sentences: its two findings, the words that draw most attention, and one case."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import brief, fixed, share
from experiments.report.sentences.wording import statement_text
from experiments.types import Sample

NOTHING = "{few}, so nothing is concluded"
LAYERS = {"fell": "lower", "rose": "higher"}


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Two sentences with numbers, 95% intervals and counts; the findings are those of attention.json."""
    looked, moved = findings
    if looked.answer is Answer.NO_FAILURE:
        return ["The baseline has no failure with an image here, so there is no attention of failures to look at.",
                "What the image does in failures cannot be said either."]  # fmt: skip
    if looked.answer is Answer.NO_SUCCESS:
        return [
            f"The baseline has {looked.evidence['failures']} failures with an image, and no subset holds a success "
            "beside them, so whether failures look less at the image cannot be told.",
            "Where their attention goes, and what the image does to their margins, is in attention.json for each "
            "subset.",
        ]
    return [_image_share(looked), _image_effect(moved)]


def _image_share(finding: Finding) -> str:
    found = finding.evidence
    difference = found["difference"]
    parts = [f"{_spelled(subset)} {brief(one['difference'])}, {_pairs(one['pairs'])}"
             for subset, one in found["subsets"].items()]  # fmt: skip
    sentence = statement_text(
        difference,
        answer=finding.answer,
        noun="difference",
        rose="failures look more at the image{small}, not less",
        fell="failures look less at the image{small}",
        too_few=NOTHING,
    )
    return (
        f"At the verdict, failures put {share(found['failures']['value'])} of their attention (the first token, a "
        f"sink, left out) on the image, and matched successes of the same subset {share(found['successes']['value'])} "
        f"({brief(difference, named=True)}; {_pairs(found['failures']['n'])}): {sentence} "
        f"({'; '.join([*parts, *_by_layer(found)])})."
    )


def _by_layer(found: Mapping[str, Any]) -> list[str]:
    """In which layers they differ, by intervals that hold for all layers at once."""
    if not found["layers_compared"]:
        return []
    named = [
        f"{word} in layer{'s' if len(found['layers'][answer]) > 1 else ''} {', '.join(found['layers'][answer])}"
        for answer, word in LAYERS.items()
        if found["layers"][answer]
    ]
    lead = f"of {found['layers_compared']} layers, by intervals that hold for all of them at once,"
    return [f"{lead} {' and '.join(named)}" if named else f"{lead} a difference is shown in none"]


def _image_effect(finding: Finding) -> str:
    found = finding.evidence
    cut, swap = found["edge_cut"], found["image_swapped"]
    text = (
        f"Cutting image → verdict attention changes the Yes/No margin by {fixed(cut['failures']['value'], 2)} logits "
        f"on average in failures and {fixed(cut['successes']['value'], 2)} in successes"
    )
    if finding.answer is Answer.CANNOT_TELL:
        return f"{text}; there is no other image to put in its place."
    kind = "that of the counterfactual twin" if found["twins_only"] else "another one"
    text += (
        f", and replacing the image by {kind} by {fixed(swap['failures']['value'], 2)} and "
        f"{fixed(swap['successes']['value'], 2)}"
    )
    if finding.question == "image_effect":
        sentence = statement_text(
            swap["difference"],
            answer=finding.answer,
            rose="another image moves failures more than successes",
            fell="another image moves failures less than successes",
            not_shown="a difference between failures and successes is not shown",
            too_few=NOTHING,
        )
        return f"{text}: {sentence} ({brief(swap['difference'], of_rates=False, named=True)})."
    by_subset = "".join(
        f"; {_spelled(subset)} {brief(one, of_rates=False)}" for subset, one in found["subsets"].items()
    )
    sentence = statement_text(
        found["support"],
        answer=finding.answer,
        sides=1,
        rose="in failures, too, the image pulls towards the right answer, but not far enough",
        fell="in failures the image pulls away from the right answer",
        not_shown="which way the image pulls in failures is not shown",
        too_few=NOTHING,
    )
    lost = brief(found["support"], of_rates=False, named=True)
    return f"{text}: {sentence} (margin that the right answer loses with the image: {lost}{by_subset})."


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _kind(sample: Sample) -> str:
    return "" if sample.gold == "unknown" else f" ({_spelled(sample.subset)}, gold {sample.gold})"


def _outcome(sample: Sample, outcome: str) -> str:
    return "" if sample.gold == "unknown" else f", {outcome}"


def _spelled(subset: str) -> str:
    return subset.replace("_", "-")


def word_line(words: Sequence[Mapping[str, Any]], count: int = 6) -> str:
    """The ``words`` of attention.json that draw most attention in failures, in the sentence and in the rest."""
    lists = []
    for in_sentence, name in ((True, "the sentence"), (False, "the question around it")):
        some = [entry for entry in words if entry["in_sentence"] == in_sentence][:count]
        if some:
            listed = ", ".join(f"“{entry['word']}” {share(entry['mass'])}" for entry in some)
            lists.append(f"{listed} (of {name})")
    return f"Words that draw most of the verdict's attention in failures: {'; '.join(lists)}." if lists else ""


def case_lines(sample: Sample, case: "pd.Series[Any]", shares: pd.DataFrame, words: pd.DataFrame) -> list[str]:
    """One case: what was asked and answered, where the verdict's attention went, and what the image does.

    ``case`` is its row of ``cases.parquet``; ``shares`` and ``words`` are its rows of the tables of these names.
    """
    most = words[words["in_sentence"]].sort_values("mass", ascending=False, kind="stable").head(5)
    listed = ", ".join(f"“{row.word}” {share(row.mass)}" for row in most.itertuples())
    by_layer = ", ".join(f"layer {row.layer} {share(row.share)}" for row in shares.itertuples())
    lines = [
        f"{sample.id}{_kind(sample)}: {sample.text}",
        f"answer: {case['response']} (margin {case['margin']:+.2f} logits{_outcome(sample, case['outcome'])})",
        f"the verdict's attention on the image (first token left out): {share(shares['share'].mean())} ({by_layer})",
        f"words of the sentence that draw most of it: {listed}",
        f"image → verdict attention cut: margin {case['margin_without_edge']:+.2f}",
    ]
    if case["swapped_with"] is not None:
        kind = "its counterfactual twin" if case["twin"] else "another case"
        lines.append(f"with the image of {kind}, {case['swapped_with']}: margin {case['margin_swapped']:+.2f}")
    return lines
