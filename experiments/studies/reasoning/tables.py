"""The study's rows as tables and figures, for report and terminal."""

import pandas as pd

from experiments.report.figures import SCREEN, Line, Mark, lines_by_layer, points
from experiments.report.numbers import fixed, percent
from experiments.report.sections import SectionFigure
from experiments.report.tables import pivot, unit
from experiments.runs.results_table import Results, Row, group_of
from experiments.studies.reasoning.decision_curve import ARM, EXCHANGED, OWN, SHARES, TRUTH
from experiments.studies.reasoning.mediation import DIRECT, EFFECT, SHARE, THROUGH

unit(EFFECT, 2)


def tables(results: Results) -> list[pd.DataFrame]:
    """Return every table that has rows."""
    listed = [
        pivot(
            results.select(quantity=("decision_order", "decision_sign")),
            {"by": lambda row: row.part("by"), "thought left (%)": lambda row: percent(float(row.part("left")), 0)},
            _decision, title="When it was decided",
            note="In %. Right order: of two cases of one sentence, the margin of the thought broken off there puts the "
            "case first that the model says Yes to in the end (its own verdict), or the safe case (the truth).",
        ),
        pivot(
            [row for row in results.select(quantity=(EFFECT, SHARE)) if not row.part("order")],
            {"another": lambda row: row.part("differs"), "thought": lambda row: row.part("thought"),
             "part": lambda row: row.part("part")},
            lambda row: "logits" if row.quantity == EFFECT else "of the total (%)", title="What the thought carries",
            note="Difference of the margins of a safe and an unsafe case, with exchanged thoughts.",
        ),
    ]  # fmt: skip
    return [frame for frame in listed if len(frame)]


def figures(results: Results) -> dict[str, SectionFigure]:
    """Return the decision curve and mediation."""
    curves = [
        Line(name, [100 * share for share in SHARES],
             [results.get(ARM, "decision_order", group=group_of(by=name, left=share)) for share in SHARES])
        for name in (OWN, TRUTH)
    ]  # fmt: skip
    decision = lines_by_layer({"": curves}, x="% of the thought’s sentences left", y="right order (AUROC)", guide=0.5)
    drawn = {"reasoning_decision": SectionFigure(decision, "When it was decided. The numbers are in the table.")}
    parts = [row for row in results.select(quantity=EFFECT) if row.part("part") in (THROUGH, DIRECT)]
    marks = [
        Mark(f"{row.part('differs')}, {row.part('thought')}: {row.part('part')}", row.value, row.interval)
        for row in parts if not row.part("order")
    ]  # fmt: skip
    if marks:
        mediation = points(marks, x="part of the difference, in logits", digits=2, form=SCREEN._replace(name_length=60))
        alt = f"What the thought carries. {'; '.join(f'{mark.name} {fixed(mark.x, 2)}' for mark in marks)}."
        drawn["reasoning_mediation"] = SectionFigure(mediation, alt, "What another picture or sentence changes.")
    return drawn


def _decision(row: Row) -> str:
    if row.quantity == "decision_sign":
        return "sign agrees"
    return EXCHANGED if row.arm == EXCHANGED else "more than with none" if row.against else "right order"
