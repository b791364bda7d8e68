"""The study's rows as tables and figures, for report and terminal."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.report.figures import Line, Mark, lines_by_layer, points
from experiments.report.numbers import fixed
from experiments.report.sections import SectionFigure
from experiments.report.tables import by_arm, pivot, unit
from experiments.runs.results_table import Results, Row, group_of
from experiments.studies.reasoning.decision_curve import ARM, EXCHANGED, OWN, SHARES, TRUTH
from experiments.studies.reasoning.looks import WHILE
from experiments.studies.reasoning.mediation import DIRECT, EFFECT, SHARE, THROUGH

SAID = "thoughts_said"
unit(EFFECT, 2)
unit(SAID, 0)
LEVELS = {
    "cases": {"quantity": "answered"},
    "AUROC": {"quantity": "auroc"},
    "within sentences": {"quantity": "auroc_within"},
    "at the operating point": {"quantity": "harmless_answered_at_operating_point"},
}
LOOKS = {("", False): "all", ("failures", False): "failures", ("successes", False): "successes",
         ("failures", True): "failures − successes"}  # fmt: skip


def tables(design: Mapping[str, Any], results: Results) -> list[pd.DataFrame]:
    """Return every table that has rows; ``design`` is metrics.json."""
    names = list(dict.fromkeys(row.arm for row in results.select(quantity="answered")))
    arms = by_arm(results, LEVELS, names, title="How long arms think, and what their verdicts are worth",
                  note="Tokens: mean length of a thought with its marks. At the operating point: harmless requests "
                  "answered, in %.")  # fmt: skip
    thoughts = [(design.get("thoughts") or {}).get(name) or {} for name in names]
    for place, (heading, key) in enumerate({"with a thought": "thought", "cut off": "cut_off"}.items(), 1):
        arms.insert(place, heading, [str(told.get(key, 0)) for told in thoughts])
    arms.insert(2, "tokens", [fixed(told.get("tokens"), 1) for told in thoughts])
    listed = [
        arms,
        pivot(
            results.select(quantity=("decision_order", "decision_sign")),
            {"by": lambda row: row.part("by"), "thought left": _left}, _decision, title="When it was decided",
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
        pivot(
            results.select(quantity=SAID),
            {"cases": lambda row: row.subset.replace("_", " "), "names": lambda row: row.part("names"),
             "calls it": lambda row: row.part("calls"), "answers": lambda row: row.part("answers")},
            lambda row: "n", title="What thoughts say and answers do",
        ),
        pivot(
            results.select(quantity="thought_image_share"), {"while it writes": lambda row: row.part("writing")},
            lambda row: LOOKS[row.subset, bool(row.against)], title="Where it looks while it thinks",
            note="The picture’s share of attention in %, without the sink; mean of layers and heads.",
        ),
    ]  # fmt: skip
    return [frame for frame in listed if len(frame)]


def figures(results: Results) -> dict[str, SectionFigure]:
    """Return the decision curve, the picture's share of attention along the thought, and mediation."""
    curves = [
        Line(name, [100 * share for share in SHARES],
             [results.get(ARM, "decision_order", group=group_of(by=name, left=share)) for share in SHARES])
        for name in (OWN, TRUTH)
    ]  # fmt: skip
    drawn = {"decision": SectionFigure(
        lines_by_layer({"": curves}, x="% of the thought’s sentences left", y="right order (AUROC)", guide=0.5),
        "How often the margin orders two cases of one sentence. The numbers are in the table.", "When it was decided.",
    )}  # fmt: skip
    looks = [
        Line(cases, range(1, 6), [results.get(ARM, "thought_image_share", subset=cases, group=group_of(writing=name))
                                  for name in WHILE])
        for cases in ("failures", "successes")
    ]  # fmt: skip
    if any(row for line in looks for row in line.rows):
        drawn["looks"] = SectionFigure(
            lines_by_layer({"": looks}, x="quarter of the thought (5: the verdict)", y="picture’s share (%)", scale=100.0,
                           bottom=0.0),
            "The picture's share of attention along the thought. The numbers are in the table.",
            "Where it looks while it thinks.",
        )  # fmt: skip
    effects = [row for row in results.select(quantity=EFFECT) if row.part("part") in (THROUGH, DIRECT)]
    marks = [
        Mark(f"{row.part('differs')}, {row.part('thought')}: {row.part('part')}", row.value, row.interval)
        for row in effects if not row.part("order")
    ]  # fmt: skip
    if marks:
        drawn["mediation"] = SectionFigure(
            points(marks, x="part of the difference, in logits", digits=2),
            "; ".join(f"{mark.name} {fixed(mark.x, 2)}" for mark in marks), "What the thought carries.",
        )  # fmt: skip
    return {f"reasoning_{name}": figure for name, figure in drawn.items()}


def _left(row: Row) -> str:
    return f"{100 * float(row.part('left')):.0f}%"


def _decision(row: Row) -> str:
    if row.quantity == "decision_sign":
        return "sign agrees"
    return EXCHANGED if row.arm == EXCHANGED else "more than with none" if row.against else "right order"
