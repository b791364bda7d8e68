"""The study's rows as tables and figures."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.metrics.claims import NOT_TESTED
from experiments.report.figures import Guide, Mark, points
from experiments.report.sections import SectionFigure
from experiments.report.tables import pivot, unit
from experiments.runs.results_table import Results, Row
from experiments.studies.localise.cases import JOIN, PICTURE, SENTENCE

NAMES = {PICTURE: "picture", SENTENCE: "sentence", JOIN: "what joins them"}
MORE = ("part_direct", "part_splits_held", "part_power")  # of the first question
TITLE = "Which part does it?"
for _quantity in ("part_slope", "part_straight", "part_direct", "margin_gap", "margin_gap_rms"):
    unit(_quantity, 2)


def tables(details: Mapping[str, Any], results: Results) -> list[pd.DataFrame]:
    """Return the table with a line for each candidate of any question."""
    first = results.select(quantity=MORE, subset=details["questions"][0])
    parts = [*results.select(quantity="part_slope"), *sorted(first, key=lambda each: MORE.index(each.quantity))]
    more = f"From direct to power: {NAMES[details['questions'][0]]}. Splits held and power in %."
    return [pivot(parts, {"part": "arm"}, _heading, title="Candidates of all questions, one by one", note=more)]


def figures(details: Mapping[str, Any], results: Results) -> dict[str, SectionFigure]:
    """Return each question's candidates with their intervals."""
    tested = [each for each in results.select(quantity="part_slope") if each.claim != NOT_TESTED]
    marks = [Mark(f"{NAMES[each.subset]}: {each.arm}", each.value, each.interval) for each in tested]
    return {
        "localise_parts": SectionFigure(
            points(marks, x="slope: share of the gap", guides=[Guide((0,), (0,))], digits=2),
            "How much of each question's difference goes through each of its candidates.",
            "Candidates on the half that did not choose them, with 95% intervals.",
        )
    }


def _heading(each: Row) -> str:
    slope = each.quantity == "part_slope"
    return NAMES[each.subset] if slope else each.quantity.removeprefix("part_").replace("_", " ")
