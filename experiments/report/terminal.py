"""What a terminal shows of a study's metrics.

``answer`` is what a study ends with: two sentences and a table of at most six columns. ``results``, with
``verbose=true``, has all tables, their legend and every sentence. Both fit 80 columns.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from experiments.report import arm_tables
from experiments.report.arm_tables import CEILING_MARK, glance_table
from experiments.report.table import terminal

LEGEND = (
    "Accuracies in %; below each number its 95% interval (of differences the one that decides what is said: of the "
    "headline 97.5%, of all others simultaneous). matched: safe cases called safe where every arm catches the same "
    "share of unsafe cases, which no shift of the threshold changes. typical, attack: unsafe cases called "
    "unsafe; over-safety: safe cases called safe; overall: mean of the three. d′: how well safe and unsafe are told "
    "apart, from the verdicts; c: readiness to say “unsafe” (negative = ready); AUROC: the same question as d′, from "
    "the margins, 0.5 = chance."
)
CEILING = f"{CEILING_MARK} a rate is so near 0 or 1 that a mere change of threshold moves this d′ a lot."
REFUSAL_LEGEND = (
    "Refusals in %, partial ones included; below each number its 95% interval, and in braces the lowest and highest "
    "value that unknown cases allow. benign: requests that should be answered; contrast: their harmful twins, which "
    "should be refused; apart: contrast − benign, in points; mean of types: that of the benign types; d′: how well "
    "harmful and benign are told apart; c: readiness to refuse (negative = ready). partial as compliance: only "
    "whole refusals count; published: no response is a refusal; corrected: for the judge’s measured error. "
    "fixed/broken: cases gone from wrong to right and back; p: McNemar’s test on them, after Holm’s correction."
)

SENTENCES = 2  # of the summary, at the end of a study
NOTES = 2  # of the caveats
LINES = 21  # that the answer takes, at most, where its sentences leave room: with what follows it they are 25
BASELINE, ALWAYS = "baseline", 2  # the last rank of an arm that is shown in any case
HEADING, FEWEST_ROWS = 3, 3  # lines beside a table's rows; rows that are shown in any case


def shown(
    metrics: Mapping[str, Any], *, verbose: bool, width: int, named: Collection[str] = (), whole: bool = True
) -> Group:
    """``results`` or, unless ``verbose``, ``answer`` for a terminal of ``width`` columns, or of it a sentence alone."""
    if verbose:
        return results(metrics)
    return (
        answer(metrics, width=width, named=named)
        if whole
        else Group(Text(str(metrics["summary"][0]), style="bold"), "")
    )


def answer(metrics: Mapping[str, Any], *, width: int, named: Collection[str] = ()) -> Group:
    """The summary's first sentences, a row an arm, and what must be known beside them, in ``LINES`` lines.

    Where there are more arms than lines, ``named`` ones, the arm under study and the baseline are all shown, controls
    and others as far as there is room.
    """
    lines = [Text(str(one), style="" if at else "bold") for at, one in enumerate(metrics["summary"][:SENTENCES])]
    note = _note(metrics.get("caveats") or ())
    table = glance_table({"study": None, **metrics}, terse=True)
    room = LINES - HEADING - sum(_lines(text, width) for text in (*lines, *note)) - len(lines) - 2
    parts: list[RenderableType] = [part for text in lines for part in (text, "")]
    if (count := len(table.frame)) > 1 or "rebutted" in table.frame:
        ranks = table.frame["arm"].map(lambda arm: _rank(arm.value, metrics, named))
        most = count if count <= room else max(FEWEST_ROWS, room - 1)
        first = sorted(ranks.sort_values(kind="stable").index[: max(most, int((ranks <= ALWAYS).sum()))])
        parts.append(terminal(table.only(first), stacked=False))
        if more := count - len(first):
            parts.append(Text(f"({more} more arm{'s' * (more > 1)} in the report)", style="dim"))
        parts.append("")
    return Group(*parts, *note, *([""] if note else []))


def _rank(arm: str, metrics: Mapping[str, Any], named: Collection[str]) -> int:
    """The place of an arm among those that are shown first."""
    compared = metrics.get("comparisons") or {}
    against = {BASELINE, *(str(comparison.get("against")) for comparison in compared.values())}
    is_control = bool((compared.get(arm) or {}).get("is_control"))
    return [arm in named, arm == metrics.get("study"), arm in against, is_control, True].index(True)


def _note(caveats: Sequence[str]) -> list[Text]:
    """The first caveats, with how many more there are."""
    lines = [Text(f"note: {caveat}") for caveat in caveats[:NOTES]]
    if more := len(caveats) - NOTES if len(caveats) > NOTES else 0:
        lines[-1].append(f" ({more} more such note{'s' * (more > 1)} in the report)")
    return lines


def _lines(text: Text, width: int) -> int:
    return len(text.wrap(Console(width=width), width))


def results(metrics: Mapping[str, Any]) -> Group:
    """Arms, paired differences, the legend of the columns, then summary and caveats."""
    refusals = metrics.get("kind") == "refusal"
    of_refusals = (arm_tables.rebuttals_table, arm_tables.types_table, arm_tables.conventions_table)
    others = of_refusals if refusals else (arm_tables.own_subsets_table,)
    tables = [arm_tables.arms_table(metrics), *(one(metrics) for one in others)]
    tables += [arm_tables.comparisons_table(metrics)] if metrics.get("comparisons") else []
    parts: list[RenderableType] = [part for table in tables if table for part in (terminal(table), "")]
    legend = REFUSAL_LEGEND if refusals else LEGEND
    if any(arm.get("near_ceiling") for arm in metrics["arms"].values()):
        legend += " " + CEILING
    return Group(*parts, Text(legend, style="dim"), *_paragraphs(metrics))


def _paragraphs(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """The summary's sentences and the caveats, a paragraph each."""
    # Text, not str: a sentence that quotes "[red]" from a configuration must not be read as markup.
    summary = [Padding(Text(str(sentence), style="bold"), (1, 0, 0, 0)) for sentence in metrics.get("summary") or ()]
    return [*summary, *(Padding(Text(f"note: {sentence}"), (1, 0, 0, 0)) for sentence in metrics.get("caveats") or ())]
