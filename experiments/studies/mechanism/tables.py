"""The study's rows as tables and figures, for report and terminal."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from experiments.report.figures import Guide, Line, Mark, lines_by_layer, points
from experiments.report.sections import SectionFigure
from experiments.report.tables import fixed, pivot, unit
from experiments.runs.results_table import Results, Row, group_of
from experiments.studies.mechanism import interventions
from experiments.studies.mechanism.cases import ARM
from experiments.studies.mechanism.interventions import CONSTANT, POSITIONS
from experiments.studies.mechanism.probes import ACCURACY, AUROC, KIND, MARGIN, ORDERED, RANDOM, SENTENCE, SHUFFLED
from experiments.types import SCORED_SUBSETS

LOGITS = ("lens_margin", "knockout_margin", "patching_gap", "twin_gap", "margin_distance")
for _name in (*LOGITS, AUROC, "lens_auroc", "knockout_auroc", "direction_auroc", "direction_gap", "prior_r2",
              "prior_weight", "undo_auroc"):  # fmt: skip
    unit(_name, 2)

HEADINGS = {  # quantity, subset, rule, whether it is a difference → heading
    ("knockout_margin", "failures", "", True): "failures",
    ("knockout_margin", "successes", "", True): "matched successes",
    ("knockout_margin", "failures − successes", "", True): "difference",
    ("knockout_right", "failures", "", False): "failures on the right side",
    ("knockout_auroc", "", "", True): "AUROC",
    ("undo_auroc", "", "", False): "AUROC",
    ("undo_auroc", "", "", True): "change",
    ("undo_yes_rate", "", "", False): "says Yes",
    ("undo_mended", "", "", False): "mended",
    ("undo_broken", "", "", False): "broken",
    ("undo_mended", "", CONSTANT, False): "constant: mended",
    ("undo_broken", "", CONSTANT, False): "constant: broken",
}


def tables(details: Mapping[str, Any], results: Results) -> list[pd.DataFrame]:
    """Return every table that has rows, in the order of the sentences."""
    probes = results.select(quantity=(AUROC, ACCURACY), arm=(ARM, SHUFFLED), against="", rule="")
    claims = results.select(quantity=(AUROC, ACCURACY, ORDERED), against="", rule=(KIND, SENTENCE))
    headed = [row for row in results if _heading(row)]
    listed = [
        pivot(
            _highest_last(probes), {"read": _reads, "n": _n}, _layer, title="Held-out linear probes by layer",
            note="Concept: what the picture shows (balanced accuracy, in %). Truth and the model’s own verdict: AUROC. "
            "Shuffled labels: balanced accuracy, the highest of all layers.",
        ),
        pivot(
            _highest_last(claims), {"read": _reads, "n": _n}, _layer, title="What claims rest on",
            note="Probes that never saw a kind of picture, or never saw a sentence: AUROC, of the concept balanced "
            "accuracy in %. Within a sentence: how often the safe case comes before the unsafe one, in %.",
        ),
        pivot(
            [row for row in headed if row.quantity.startswith("knockout")],
            {"edge": "arm", "layers": lambda row: row.part("layers")}, _heading, title="Attention edges cut, by layer",
            note="Change of the margin towards the truth (logits), and of the AUROC of these cases and their twins.",
        ),
        pivot(
            results.select(quantity="patching_effect"),
            {"states of": lambda row: f"another {row.part('other')}",
             "put in at": lambda row: POSITIONS[row.part("position")], "n": _n}, _layer,
            title="Failures run with the states of another prompt",
            note="In %: 0 is no change, 100 the margin of the other prompt. Another picture: the twin’s, with the same "
            "sentence. Another sentence: with the same picture.",
        ),
        pivot(
            results.select(quantity="lens_margin"),
            {"margin, logits": lambda row: f"{row.subset.replace('_', '-')}, {row.part('cases')}", "n": _n}, _layer,
            title="The margin that each layer would give", note="Logit lens at the last column of the prompt.",
        ),
        pivot(
            results.select(quantity=("direction_auroc", "direction_gap")),
            {"direction": lambda row: f"{row.part('direction')}, {row.part('kind').replace('_', ' ')}",
             "": lambda row: "failures − successes" if row.against else "AUROC"}, _layer,
            title="Directions at the last column",
            note="AUROC on held-out cases. Failures − successes: how much further failures are along the direction, in "
            "distances of its two classes.",
        ),
        pivot(
            [row for row in headed if row.quantity.startswith("undo")],
            {"what is changed": lambda row: "nothing" if row.arm == ARM else row.arm}, _heading,
            title="What comes back",
            note=f"Directions are ablated at the last column at layer {details['ablated_at']}: every case gets the "
            "mean along them. Mended: wrong answers that turn right. Broken: right answers that turn wrong. "
            "Constant: a shift of all margins that says Yes as often.",
        ),
    ]  # fmt: skip
    return [frame for frame in listed if len(frame)]


def _highest_last(rows: Iterable[Row]) -> list[Row]:
    """Return levels in order, then references by value: in a pivot the last of a cell counts, so the highest."""
    return sorted(rows, key=lambda row: -1.0 if row.arm in (ARM, MARGIN) else row.value or 0.0)


def _layer(row: Row) -> str:
    if row.arm in (ARM, MARGIN):
        return f"layer {row.part('layer')}"
    return f"{RANDOM if row.arm.startswith(RANDOM) else row.arm}, at most"


def _reads(row: Row) -> str:
    if row.quantity == ORDERED:
        return f"{'the margin' if row.arm == MARGIN else row.part('target')}, within a sentence"
    return f"{row.part('target')}, at {row.part('position').replace('_', ' ')}{f', on {row.rule}' if row.rule else ''}"


def _n(row: Row) -> str:
    return f"{row.n or 0:,.0f}"


def _heading(row: Row) -> str:
    return HEADINGS.get((row.quantity, row.subset, row.rule, bool(row.against)), "")


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
        for other in (interventions.PICTURE, interventions.SENTENCE)
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
