"""All arms of a finished selection next to each other: rows of the results table, a table, a figure, and sentences.

Every arm is compared with the baseline and with the rivals (VCD above all) in one family. So all these intervals hold
together. Otherwise an arm of many would seem better by chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import RenderableType
from sklearn.metrics import roc_curve

from experiments.evaluation.study import Study
from experiments.metrics.quantities import AT_POINT, AUROC, HELD_OUT, WITHIN, Arms
from experiments.metrics.results import ALL, Family
from experiments.report.figures import Guide, safety
from experiments.report.saved_run import read_run
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.tables import by_arm, fixed, in_terminal, lines
from experiments.runs.results_table import OF_A_STUDY, Results, Row, write_results
from experiments.runs.store import read_object
from experiments.studies.mitigation_selection.candidates import setting_name

RULE = f"{OF_A_STUDY}all mitigations at once"
ORDERED = (AUROC, AT_POINT, *HELD_OUT, WITHIN)  # a constant on the margin changes none of them
TITLE = "Mitigations next to each other"
NOTE = (
    "Rates in percent, levels with 95% intervals. Setting and shift (a constant in logits on the Yes/No margin) were "
    "chosen on the development split: the highest balanced accuracy that loses at most unsafe_margin of unsafe "
    "accuracy. threshold is the untouched model with a constant chosen by that rule. Differences are paired, and their "
    "intervals hold for all of them at once."
)
SHIFTS = "every constant shift of the baseline’s margin"


def conclude(work: Study, rivals: Sequence[str], familiar: Mapping[str, int]) -> list[RenderableType]:
    """Add the comparison to the results table and to the report, and return what to print.

    Args:
        work: the finished study.
        rivals: arms that every other is compared with, the baseline first.
        familiar: how many sentence templates of these cases the development split has as well (``seen``, ``of``).
    """
    run, folder = work.run, work.store.path
    saved, choice = read_run(folder), read_object(folder / "choice.json")
    arms = Arms.from_predictions(saved.predictions, "yes_no", draws=run.draws, seed=run.seed,
                   stated_point=saved.metrics["operating_point"])  # fmt: skip
    rivals = [name for name in rivals if name in arms.outcomes]
    results = write_results(folder, compared(arms, saved.metrics, rivals))
    learned = [name for name, chosen in choice.items() if chosen.get("learned")]
    names = [name for name in arms.outcomes if name not in rivals]
    sentences = lines("selection", results=results, rivals=rivals, names=names, rule=RULE, learned=learned,
                      familiar=familiar)  # fmt: skip
    frame = table(results, choice, rivals, list(arms.outcomes))
    section = Section(TITLE, sentences, [frame], note=NOTE)
    write_section(folder, "mitigations", section, {"mitigations": figure(arms, results, rivals[0])})
    return [in_terminal(frame), *sentences]


def compared(arms: Arms, design: Mapping[str, Any], rivals: Sequence[str]) -> list[Row]:
    """Return every arm's differences from each rival, in one family without a primary question."""
    contrasts = [*((ALL, rival) for rival in rivals[1:]), *((first, second) for first, second in design["contrasts"])]
    family = Family(arms, rivals[0], str(design["control"]), "", contrasts, ORDERED, False)
    rows = (row for row in family.rows(0.0) if row.against)
    return [
        row._replace(rule=f"{RULE}, {row.rule}" if row.rule else RULE) for row in rows if row.quantity != "compared"
    ]


def table(results: Results, choice: Mapping[str, Any], rivals: Sequence[str], arms: Sequence[str]) -> pd.DataFrame:
    """Return every arm with its chosen setting, its levels, and its differences from each rival."""
    matched, order = {"quantity": AT_POINT.quantity}, {"quantity": AUROC.quantity}
    columns = {"at the operating point": matched}
    columns |= {f"difference from {rival}": {**matched, "against": rival, "rule": RULE} for rival in rivals}
    columns |= {"AUROC": order}
    columns |= {f"AUROC: from {rival}": {**order, "against": rival, "rule": RULE} for rival in rivals}
    columns |= {"unsafe caught": {"quantity": "unsafe_caught"}, "harmless answered": {"quantity": "harmless_answered"},
                "accuracy": {"quantity": "accuracy"}}  # fmt: skip
    frame = by_arm(results, columns, arms, title="Every arm on the same test cases")
    frame.insert(1, "chosen", [_chosen((choice.get(arm) or {}).get("chosen")) for arm in arms])
    wins = [results.get(arm, "wins", against=rivals[0], rule=RULE) for arm in arms]
    frame["wins"] = ["yes" if row and row.value else "no" for row in wins]
    return frame


def _chosen(chosen: Mapping[str, Any] | None) -> str:
    if not chosen:
        return "–"
    shift = f"shift {fixed(chosen['shift'], 2, sign=True)}" if chosen["shift"] else ""
    return ", ".join(filter(None, [setting_name(chosen["setting"]), shift])) or "unchanged"


def figure(arms: Arms, results: Results, baseline: str) -> SectionFigure:
    """Return the arms in the plane of both rates, with what every constant shift of the baseline's margin reaches."""
    outcomes = arms.outcomes[baseline]
    scored = arms.reading(outcomes).scored
    passed, harmless, _ = roc_curve(~arms.cases.unsafe[scored], outcomes.margin[scored], drop_intermediate=False)
    drawing = safety(results, "yes_no", list(arms.outcomes), Guide(100 * harmless, 100 * (1 - passed), SHIFTS))
    caption = "Above the line: more than any constant on the baseline’s margin can do. Bars are 95% intervals."
    return SectionFigure(drawing.draw(), drawing.words, caption)
