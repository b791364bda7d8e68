"""The study's rows as tables and figures."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.metrics.claims import NOT_TESTED
from experiments.report.figures import Guide, Line, Mark, lines_by_layer, points
from experiments.report.sections import SectionFigure
from experiments.report.tables import pivot, unit
from experiments.runs.results_table import Results, Row
from experiments.studies.localise.cases import JOIN, PICTURE, SENTENCE
from experiments.studies.localise.examination import BEST, RANDOM, REST

NAMES = {PICTURE: "picture", SENTENCE: "sentence", JOIN: "what joins them"}
MORE = ("part_direct", "part_splits_held", "part_power")  # of the first question
TITLE = "Which part does it?"
for _quantity in ("part_slope", "part_straight", "part_direct", "margin_gap",
              "margin_gap_rms", "faithfulness", "completeness"):  # fmt: skip
    unit(_quantity, 2)


def tables(details: Mapping[str, Any], results: Results) -> list[pd.DataFrame]:
    """Return a line for each candidate of any question, and one for each question and k of the curves."""
    first = results.select(quantity=MORE, subset=details["questions"][0])
    parts = [*results.select(quantity="part_slope"), *sorted(first, key=lambda each: MORE.index(each.quantity))]
    curves = results.select(quantity=("faithfulness", "completeness"))
    more = f"From direct to power: {NAMES[details['questions'][0]]}. Splits held and power in %."
    listed = [
        pivot(parts, {"part": "arm"}, _heading, title="Candidates of all questions, one by one", note=more),
        pivot(curves, {"question": _question, "k": _k}, lambda each: "minus random" if each.against else each.arm,
              title="Faithfulness, completeness and random sets, by the number k of parts replaced together"),
    ]  # fmt: skip
    return [frame for frame in listed if len(frame)]


def figures(details: Mapping[str, Any], results: Results) -> dict[str, SectionFigure]:
    """Return each question's candidates with their intervals, and the curves by k."""
    tested = [each for each in results.select(quantity="part_slope") if each.claim != NOT_TESTED]
    marks = [Mark(f"{_question(each)}: {each.arm}", each.value, each.interval) for each in tested]
    drawn = {
        "localise_parts": SectionFigure(
            points(marks, x="slope: share of the gap", guides=[Guide((0,), (0,))], digits=2),
            "How much of each question's difference goes through each of its candidates.",
            "Candidates on the half that did not choose them, with 95% intervals.",
        )
    }
    curves: dict[str, list[Line]] = {}
    for arm in (BEST, RANDOM, REST):
        for question in details["questions"]:
            line = results.select(arm=arm, against="", subset=question, quantity=("faithfulness", "completeness"))
            if line:
                xs = [int(_k(each)).bit_length() - 1 for each in line]
                curves.setdefault(NAMES[question], []).append(Line(arm, xs, line, dashed=arm == REST))
    if curves:
        drawn["localise_curves"] = SectionFigure(
            lines_by_layer(curves, y="slope: share of the gap", x="log2 of the number of parts", guide=0),
            "Faithfulness and completeness by the number of parts, with random parts.",
            "Parts replaced together, on the same half, with 95% intervals.",
        )
    return drawn


def _heading(each: Row) -> str:
    if each.quantity == "part_slope":
        return _question(each)
    return each.quantity.removeprefix("part_").replace("_", " ")


def _question(each: Row) -> str:
    return NAMES[each.subset]


def _k(each: Row) -> str:
    return each.group.removeprefix("k=")
