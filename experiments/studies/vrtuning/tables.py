"""vrtuning.json and metrics.json → a table of what each arm was trained on, and what that cost.

Rates are in percent, changes in points, with 95% intervals. A dash stands for a value that was not measured. What each
arm answers is in the report and in metrics.json.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from experiments.evaluation.study import Study
from experiments.report.numbers import percent, percent_interval
from experiments.report.table import Column, Table, markdown, terminal
from experiments.runs.resumption import read_object
from experiments.studies.vrtuning.arms import NewAdapter

HEADINGS = ("arm", "reasoning", "unseen", "image share", "captions", "perception")
NOT_MEASURED = "–"
NOTE = (
    "Rates in percent. Unseen: over-safety accuracy on template × thing combinations that no adapter was trained on. "
    "Image share: of the attention that the first token leaves, at the query off which the verdict is read, mean over "
    "heads and layers, on the same cases. Perception: questions about the picture answered word for word. Adapters are "
    "those of this run, trained with equal steps on equal pictures and questions."
)


def write_tables(arms: Mapping[str, Any], work: Study) -> list[RenderableType]:
    """Write ``vrtuning.md`` into the run's folder, and return what to print.

    ``arms`` are the run's as configured: a ``NewAdapter`` says which adapter an arm answers with.
    """
    folder = work.store.path
    metrics, result = read_object(folder / "metrics.json"), read_object(folder / "vrtuning.json")
    names = {arm: method.adapter if isinstance(method, NewAdapter) else None for arm, method in arms.items()}
    rows = [_row(arm, names[arm], block, result) for arm, block in metrics.get("arms", {}).items()]
    columns = [Column(name, "left") for name in HEADINGS]
    shown = Table.of("what the adapters were trained on, and what they cost", rows, columns=columns)
    (folder / "vrtuning.md").write_text(f"{markdown(shown)}\n\n{NOTE}\n", encoding="utf-8")
    cards = [folder / "adapters" / name / "adapter" / "README.md" for name in dict.fromkeys(names.values()) if name]
    return [terminal(shown), f"tables: {folder / 'vrtuning.md'}", *(f"model card: {card}" for card in cards)]


def _row(arm: str, name: str | None, block: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    measured = result.get("measured", {}).get("baseline" if arm == "baseline" else name, {})
    unseen = block["by_tag"].get("combination", {}).get("unseen", {}).get("over_safety")
    return {
        "arm": arm,
        "reasoning": result.get("adapters", {}).get(name, NOT_MEASURED),
        "unseen": percent(unseen["accuracy"]) if unseen else NOT_MEASURED,
        "image share": _share(arm, measured),
        "captions": _perception(measured, "caption"),
        "perception": _perception(measured, "all"),
    }


def _perception(measured: Mapping[str, Any], kind: str) -> str:
    found = (measured.get("utility") or {}).get(kind)
    return percent(found["accuracy"]) if found else NOT_MEASURED


def _share(arm: str, measured: Mapping[str, Any]) -> str:
    """The baseline's own share, or the share after with the paired change."""
    found = measured.get("image_share")
    if not found or found["after"] is None:
        return NOT_MEASURED
    if arm == "baseline":
        return percent(found["after"])
    spread = percent_interval(found["interval"], 1)
    return f"{percent(found['after'])} ({percent(found['difference'], sign=True)}{f' [{spread}]' if spread else ''})"
