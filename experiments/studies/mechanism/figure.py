"""The study's rows as four figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.figures import Guide, Line, Mark, lines_by_layer, points
from experiments.report.numbers import fixed, share
from experiments.report.sections import SectionFigure
from experiments.runs.results_table import Results, group_of
from experiments.studies.mechanism.cases import ARM
from experiments.studies.mechanism.controls import ACCURACY, AUROC
from experiments.studies.mechanism.interventions import POSITIONS, effect_at

PROBED = (
    (ACCURACY, "concept", "image", "what is shown, at the picture (accuracy)"),
    (ACCURACY, "concept", "verdict", "what is shown, at the verdict (accuracy)"),
    (AUROC, "truth", "verdict", "safe or not, at the verdict (AUROC)"),
    (AUROC, "verdict", "verdict", "what it will say, at the verdict (AUROC)"),
)
LAYERS = "residual layer (0: the embeddings)"


def figures(details: Mapping[str, Any], results: Results) -> dict[str, SectionFigure]:
    """Return probes by layer, the lens by layer, patching by position and layer, and what comes back."""
    layers, subset = details["layers"], details["cases"]["subset"]
    probed = [
        Line(name, layers, [results.get(ARM, quantity, group=group_of(target=target, position=position, layer=layer))
                            for layer in layers])
        for quantity, target, position, name in PROBED
    ]  # fmt: skip
    drawn = {
        "mechanism_probes": SectionFigure(
            lines_by_layer({"What a linear probe reads": probed}, y="held-out accuracy or AUROC", x=LAYERS, guide=0.5),
            "What linear probes read at each residual layer, with 95% intervals. The numbers are in the table.",
            "What a linear probe reads on clusters that it was not fitted on. Dotted: chance of an AUROC.",
        ),
        "mechanism_undo": SectionFigure(_undo(results), _undo_text(results), "AUROC of the margin. Dotted: chance."),
    }
    lens = _lens(results, layers, subset)
    if lens:
        drawn["mechanism_lens"] = SectionFigure(
            lines_by_layer({"The verdict as each layer would give it": lens}, y="margin in logits (above 0: Yes)",
                           x=LAYERS, guide=0.0),
            "The Yes/No margin that each layer would give, for failures and successes. The numbers are in the table.",
            "The logit lens at the last column: failures, and successes of the same kinds of case.",
        )  # fmt: skip
    patched = {
        f"another {other}": [
            Line(name, layers, [effect_at(results, other, position, layer) for layer in layers])
            for position, name in POSITIONS.items()
            if any(effect_at(results, other, position, layer) for layer in layers)
        ]
        for other in ("picture", "sentence")
    }
    if panels := {title: listed for title, listed in patched.items() if listed}:
        drawn["mechanism_patching"] = SectionFigure(
            lines_by_layer(panels, y="% of the way to its answer", x="its states put in at layer", scale=100.0,
                           guide=50.0),
            "How much of another picture's or sentence's answer each position brings at each layer. The numbers are in "
            "the table.",
            "Failures run with another prompt's states, one position and layer at a time. Dotted: half of the way.",
        )  # fmt: skip
    return drawn


def _lens(results: Results, layers: Sequence[int], subset: str | None) -> list[Line]:
    """Return failures next to successes, and in a study of over-safety next to the unsafe cases."""
    if subset == "over_safety":
        names = {
            (subset, "failures"): "safe, called unsafe",
            (subset, "successes"): "safe, called safe",
            ("typical", "successes"): "unsafe, called unsafe",
            ("typical", "failures"): "unsafe, called safe",
        }
    else:
        names = {(str(subset), cases): cases for cases in ("failures", "successes")}
    lines = [
        Line(name, layers, [results.get(ARM, "lens_margin", subset=part, group=group_of(cases=cases, layer=layer))
                            for layer in layers], dashed=part != subset)
        for (part, cases), name in names.items()
    ]  # fmt: skip
    return [line for line in lines if any(line.rows)]


def _undo(results: Results) -> Any:
    marks = []
    for row in results.select(quantity="undo_auroc", against=""):
        mended, broken = (results.get(row.arm, quantity) for quantity in ("undo_mended", "undo_broken"))
        changes = "" if row.arm == ARM or not (mended and broken) else (
            f", mends {share(mended.value)}, breaks {share(broken.value)}")  # fmt: skip
        name = "as it is" if row.arm == ARM else row.arm
        marks.append(Mark(name, row.value, row.interval, label=f"{fixed(row.value, 2)}{changes}"))
    return points(marks, x="AUROC of the margin (0.5: chance)", guides=[Guide((0.5,), (0,))], limits=(0.45, 1.02),
                  title="What comes back")  # fmt: skip


def _undo_text(results: Results) -> str:
    texts = (f"{row.arm}: {fixed(row.value, 2)}" for row in results.select(quantity="undo_auroc", against=""))
    return f"AUROC of the margin with what overrules the picture taken away. {'; '.join(texts)}."
