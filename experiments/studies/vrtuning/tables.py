"""vrtuning.json and metrics.json → one table of all arms.

Rates are in percent, changes in points, with 95% intervals; what was not measured is a dash.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from experiments.report.numbers import fixed, fixed_interval, percent, percent_interval
from experiments.report.table import Cell, Column, Narrow, Table, markdown, terminal
from experiments.report.words import with_sentences
from experiments.runs.resumption import read_object
from experiments.studies.vrtuning.arms import NewAdapter

SUBSETS = {"typical": "typical", "attack": "attack", "over_safety": "over-safety", "overall": "overall"}
# In a terminal the study has printed the rest already.
PRINTED = ("arm", "reasoning", "unseen", "image share", "captions", "perception")
NOT_MEASURED = "–"
NOTE = (
    "Rates in percent. Unseen: over-safety accuracy on template × thing combinations that no adapter was trained on. "
    "Image share: of the attention that the first token leaves, at the query off which the verdict is read, mean over "
    "heads and layers, on the same cases. Perception: questions about the picture answered word for word. Adapters are "
    "those of this run, trained with equal steps on equal pictures and questions."
)


def write_tables(folder: Path, arms: Mapping[str, Any]) -> list[RenderableType]:
    """Writes ``vrtuning.md`` of the run in ``folder``; returns what to print.

    ``arms`` are the run's as configured: a ``NewAdapter`` says which adapter an arm answers with.
    """
    metrics, result = read_object(folder / "metrics.json"), read_object(folder / "vrtuning.json")
    names = {arm: method.adapter if isinstance(method, NewAdapter) else None for arm, method in arms.items()}
    shown = table(names, metrics, result)
    summary = with_sentences(metrics, read_object(folder / "environment.json"))["summary"]
    page = "\n".join([*summary, "", markdown(shown), "", NOTE])
    (folder / "vrtuning.md").write_text(page + "\n", encoding="utf-8")
    cards = [folder / "adapters" / name / "adapter" / "README.md" for name in dict.fromkeys(names.values()) if name]
    return [terminal(shown), f"tables: {folder / 'vrtuning.md'}", *(f"model card: {card}" for card in cards)]


def table(names: Mapping[str, str | None], metrics: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    """What each arm was trained on, and what that cost; ``names`` maps an arm to its adapter, if it has one."""
    records = [_row(arm, names[arm], metrics, result) for arm in metrics.get("arms", {})]
    headings = list(records[0]) if records else list(PRINTED)
    columns = [Column(name, "left", narrow=Narrow.WHOLE if name in PRINTED else Narrow.NOTHING) for name in headings]
    return Table.of("what the adapters were trained on, and what they cost", records, columns=columns)


def _row(arm: str, name: str | None, metrics: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str | Cell]:
    block = metrics["arms"][arm]
    adapter = "baseline" if arm == "baseline" else name
    measured = result.get("measured", {}).get(adapter, {}) if adapter else {}
    unseen = block["by_tag"].get("combination", {}).get("unseen", {}).get("over_safety")
    comparison = metrics.get("comparisons", {}).get(arm)
    return {
        "arm": arm,
        "reasoning": result.get("adapters", {}).get(name, NOT_MEASURED) if name else NOT_MEASURED,
        **{shown: percent(block["accuracy"][key]) for key, shown in SUBSETS.items()},
        "unseen": percent(unseen["accuracy"]) if unseen else NOT_MEASURED,
        "AUROC": Cell(fixed(block["auroc"], 3), fixed_interval(block["intervals"]["auroc"], 2)),
        "d′": fixed(block["d_prime"], 2),
        "c": fixed(block["criterion"], 2),
        "flip": percent(block["flip_rate"]),
        "image share": _share(arm, measured),
        "captions": _perception(measured, "caption"),
        "perception": _perception(measured, "all"),
        "wins": ("yes" if comparison["wins"] else "no") if comparison else NOT_MEASURED,
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
