"""What a terminal shows of a study's metrics: tables that fit 80 columns, a legend, and the sentences found."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from experiments.report import refusal, yes_no
from experiments.report.table import terminal
from experiments.report.yes_no import CEILING_MARK

LEGEND = (
    "Accuracies in %; below each number its 95% interval (of differences the wider of that over clusters and that over "
    "sentence templates). matched: safe cases called safe where as many unsafe cases "
    "are caught as by the baseline, which no shift of the threshold changes. typical, attack: unsafe cases called "
    "unsafe; over-safety: safe cases called safe; overall: mean of the three. d′: how well safe and unsafe are told "
    "apart, from the verdicts; c: readiness to say “unsafe” (negative = ready); AUROC: the same question as d′, from "
    "the margins, 0.5 = chance. p: McNemar’s test on the verdicts that changed, after Holm’s correction."
)
CEILING = f"{CEILING_MARK} a rate is so near 0 or 1 that a mere change of threshold moves this d′ a lot."
REFUSAL_LEGEND = (
    "Refusals in %, partial ones included; below each number its 95% interval, and in braces the lowest and highest "
    "value that unknown cases allow. benign: requests that should be answered; contrast: their harmful twins, which "
    "should be refused; apart: contrast − benign, in points; type mean: plain mean of the benign types; d′: how well "
    "harmful and benign are told apart, c: readiness to refuse (negative = ready). without partial, published: benign "
    "and contrast by two other conventions (partial refusals as compliance; no response as refusal); corrected: for "
    "the judge’s measured error. fixed/broken: cases gone from wrong to right and back; p: McNemar’s test on them, "
    "after Holm’s correction."
)


def results(metrics: Mapping[str, Any]) -> Group:
    """Arms, paired differences, the legend of the columns, then summary and caveats."""
    refusals = metrics.get("kind") == "refusal"
    subject = refusal if refusals else yes_no
    parts: list[RenderableType] = [terminal(subject.arms_table(metrics)), ""]
    if refusals:
        parts += [terminal(refusal.types_table(metrics), stacked=False), ""]
    elif (subsets := yes_no.own_subsets_table(metrics)) is not None:
        parts += [terminal(subsets, stacked=False), ""]
    if metrics.get("comparisons"):
        parts += [terminal(subject.comparisons_table(metrics)), ""]
    legend = REFUSAL_LEGEND if refusals else LEGEND
    if any(arm.get("near_ceiling") for arm in metrics["arms"].values()):
        legend += " " + CEILING
    return Group(*parts, Text(legend, style="dim"), *_paragraphs(metrics))


def _paragraphs(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """The summary's sentences and the caveats, a paragraph each."""
    # Text, not str: a sentence that quotes "[red]" from a configuration must not be read as markup.
    summary = [Padding(Text(str(sentence), style="bold"), (1, 0, 0, 0)) for sentence in metrics.get("summary") or ()]
    return [*summary, *(Padding(Text(f"note: {sentence}"), (1, 0, 0, 0)) for sentence in metrics.get("caveats") or ())]
