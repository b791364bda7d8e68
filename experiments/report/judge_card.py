"""The judge card for readers: how far each refusal judge agrees with XSTest's human labels, by model."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.benchmarks.xstest import REPOSITORY
from experiments.report import table as tables
from experiments.report.table import Cell, Column, Narrow, Table

TITLE = "Judges against XSTest's human labels (refusal = full or partial)"
METHOD = (
    "The classifier judges each model's answers to each fifth of the prompts after training on the other models' "
    "answers to the other prompts alone (“model, prompt”), its threshold also chosen on those alone; prompts of one "
    "focus stay together. “Model” leaves out models only, and is the easier figure: the same prompts were learned "
    "from. The rules have learned from neither. Phrase lists and normalisation were fixed before any labelled answer "
    "was scored. 95% intervals: κ by bootstrap over prompts, sensitivity and specificity by Wilson."
)
ATTRIBUTION = f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {REPOSITORY}"
COLUMNS = (
    Column("judge", "left"),
    Column("left out", "left"),
    Column("model", "left"),
    Column("n", narrow=Narrow.NOTHING),
    Column("refused", narrow=Narrow.NOTHING),
    Column("κ"),
    Column("sensitivity", narrow=Narrow.VALUE),
    Column("specificity", narrow=Narrow.VALUE),
    Column("not judged", narrow=Narrow.NOTHING),
)


def judge_card(judges: Mapping[str, Any], **settings: int) -> dict[str, Any]:
    """The card as JSON. ``judges`` maps each judge to its measured agreement; ``settings`` say how it was measured."""
    return {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION, **settings, "judges": dict(judges)}


def table(card: Mapping[str, Any]) -> Table:
    """Every judge on every model and on all answers together, then the mean κ over the models."""
    return Table.of(card["title"], _records(card), columns=COLUMNS)


def markdown(card: Mapping[str, Any]) -> str:
    """The card as a Markdown page."""
    return "\n".join([f"# {card['title']}", "", tables.markdown(table(card)), "", card["method"], "",
                      card["attribution"], ""])  # fmt: skip


def _records(card: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for judge, found in card["judges"].items():
        if "models_left_out" not in found:
            yield from _of_judge(judge, "", found)
            continue
        yield from _of_judge(judge, "model, prompt", found)
        yield from _of_judge(judge, "model", found["models_left_out"])


def _of_judge(judge: str, left_out: str, found: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for model, one in [*found["models"].items(), ("all answers", found["pooled"])]:
        yield {
            "judge": judge,
            "left out": left_out,
            "model": model,
            "n": str(one["n"]),
            "refused": str(one["refused"]),
            "κ": _number(one["kappa"], one["kappa_interval"]),
            "sensitivity": _number(one["sensitivity"], one["sensitivity_interval"]),
            "specificity": _number(one["specificity"], one["specificity_interval"]),
            "not judged": str(one.get("judge_failed", "")),
        }
    mean = _number(found["mean_kappa"], found["mean_kappa_interval"])
    yield {"judge": judge, "left out": left_out, "model": "mean of the models", "κ": mean}


def _number(value: float | None, interval: list[float] | None) -> Cell:
    if value is None:
        return Cell("not defined")
    return Cell(f"{value:.3f}", "" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}")
