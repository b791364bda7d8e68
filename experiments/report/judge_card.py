"""The judge card for readers: how far each refusal judge agrees with XSTest's human labels, by model."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from experiments.benchmarks.xstest import SOURCE

TITLE = "Judges against XSTest's human labels (refusal = full or partial)"
METHOD = (
    "The classifier judges each model's answers after training on the other models' alone, its settings also chosen on "
    "those alone; phrase lists and normalisation were fixed before any labelled answer was scored. 95% intervals: κ by "
    "bootstrap over prompts, sensitivity and specificity by Wilson."
)
ATTRIBUTION = f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {SOURCE}"
COLUMNS = ("judge", "model", "n", "refused", "κ", "sensitivity", "specificity", "not judged")
TERMINAL_COLUMNS = ("judge", "model", "κ", "sensitivity", "specificity")


def judge_card(judges: Mapping[str, Any], **settings: int) -> dict[str, Any]:
    """The card as JSON. ``judges`` maps each judge to its measured agreement; ``settings`` say how it was measured."""
    return {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION, **settings, "judges": dict(judges)}


def markdown(card: Mapping[str, Any]) -> str:
    """The card as a Markdown page."""
    lines = [f"# {card['title']}", "", _line(COLUMNS), _line(("---",) * len(COLUMNS)), *map(_line, _rows(card))]
    return "\n".join([*lines, "", card["method"], "", card["attribution"], ""])


def terminal(card: Mapping[str, Any]) -> Table:
    """The card as a table of at most 80 columns: the intervals of the two shares are only in the file."""
    table = Table(title=card["title"])
    for name in TERMINAL_COLUMNS:
        table.add_column(name, justify="left" if name in ("judge", "model") else "right")
    for row in _rows(card):
        cells = dict(zip(COLUMNS, row, strict=True))
        table.add_row(*(cells[name] if name == "κ" else cells[name].partition(" [")[0] for name in TERMINAL_COLUMNS))
    return table


def _rows(card: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Every judge on every model and on all answers together, then the mean κ over the models."""
    for judge, found in card["judges"].items():
        for model, one in [*found["models"].items(), ("all answers", found["pooled"])]:
            numbers = [_number(one[name], one[f"{name}_interval"]) for name in ("kappa", "sensitivity", "specificity")]
            yield judge, model, str(one["n"]), str(one["refused"]), *numbers, str(one.get("judge_failed", ""))
        mean = _number(found["mean_kappa"], found["mean_kappa_interval"])
        yield judge, "mean of the models", "", "", mean, "", "", ""


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
