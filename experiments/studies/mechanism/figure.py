"""The study's rows as four figures."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.report.figures import Guide, Line, Mark, lines_by_layer, points
from experiments.report.numbers import fixed
from experiments.report.sections import SectionFigure
from experiments.runs.results_table import Results, group_of
from experiments.studies.mechanism.cases import ARM
from experiments.studies.mechanism.interventions import PICTURE, POSITIONS, SENTENCE
from experiments.studies.mechanism.probes import ACCURACY, AUROC
from experiments.types import SCORED_SUBSETS

PROBED = (
    (ACCURACY, "concept", "image", "thing, at the picture (accuracy)"),
    (ACCURACY, "concept", "verdict", "thing, at the verdict (accuracy)"),
    (AUROC, "truth", "verdict", "truth, at the verdict (AUROC)"),
    (AUROC, "verdict", "verdict", "its answer, at the verdict (AUROC)"),
)
LAYERS = "residual layer (0: the embeddings)"
IN_TABLE = "The numbers are in the table."


def figures(details: Mapping[str, Any], results: Results) -> dict[str, SectionFigure]:
    """Return probes by layer, the lens by layer, patching by position and layer, and what comes back."""
    layers = details["layers"]

    def line(name: str, quantity: str, subset: str = "", **parts: str) -> Line:
        rows = [results.get(ARM, quantity, subset=subset, group=group_of(**parts, layer=layer)) for layer in layers]
        return Line(name, layers, rows)

    probed = {
        "": [line(name, quantity, target=target, position=position) for quantity, target, position, name in PROBED]
    }
    lens = {
        cases: [line(subset.replace("_", "-"), "lens_margin", subset, cases=cases) for subset in SCORED_SUBSETS]
        for cases in ("failures", "successes")
    }
    patched = {
        f"another {other}": [
            line(name, "patching_effect", other=other, position=position) for position, name in POSITIONS.items()
        ]
        for other in (PICTURE, SENTENCE)
    }
    undone = results.select(quantity="undo_auroc", against="")
    marks = [Mark("as it is" if row.arm == ARM else row.arm, row.value, row.interval) for row in undone]
    draw = partial(lines_by_layer, x=LAYERS)
    drawn = {
        "probes": (draw(_drawn(probed), y="held-out accuracy or AUROC", guide=0.5), IN_TABLE,
                   "What a linear probe reads on clusters that it was not fitted on. Dotted: chance of an AUROC."),
        "lens": (draw(_drawn(lens), y="margin in logits (above 0: Yes)", guide=0.0), IN_TABLE,
                 "The margin that each layer would give at the last column, of failures and successes."),
        "patching": (draw(_drawn(patched), y="% of the way to its answer", scale=100.0, guide=50.0), IN_TABLE,
                     "Failures run with another prompt’s states, one position and layer at a time. Dotted: half."),
        "undo": (points(marks, x="AUROC of the margin (0.5: chance)", guides=[Guide((0.5,), (0,))], digits=2),
                 "; ".join(f"{mark.name}: {fixed(mark.x, 2)}" for mark in marks), "What comes back when it is undone."),
    }  # fmt: skip
    return {f"mechanism_{name}": SectionFigure(figure, f"{caption} {alt}", caption)
            for name, (figure, alt, caption) in drawn.items()}  # fmt: skip


def _drawn(panels: Mapping[str, list[Line]]) -> dict[str, list[Line]]:
    """Return the panels without lines that have no row."""
    return {title: [line for line in listed if any(line.rows)] for title, listed in panels.items()}
