"""The judge card for readers: how far each refusal judge agrees with people's labels, by model, class and language."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.benchmarks import msts, xstest
from experiments.report import table as tables
from experiments.report.table import Cell, Column, Narrow, Table

TITLE = "Judges against people's labels (refused, fully or in part, against the rest)"
METHOD = (
    "The classifier judges each model's answers to each fifth of the requests after training on the other models' "
    "answers to the other requests alone (“model, request”); requests of one focus or one picture stay together. "
    "“Model” leaves out models only, and is the easier figure: the same requests were learned from. The rules have "
    "learned from neither. Calls that were blocked or failed are no answers. 95% intervals: κ by bootstrap over "
    "requests, sensitivity and specificity by Wilson. Other languages have one annotator; in them no judge learned."
)
ATTRIBUTION = (
    f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {xstest.REPOSITORY}; MSTS (Röttger et al. 2025), CC BY 4.0, "
    f"{msts.REPOSITORY}"
)
NOT_MEASURED = "not measured"
COLUMNS = (
    Column("judge", "left"),
    Column("left out", "left"),
    Column("answers", "left", fold=28),
    Column("n", narrow=Narrow.NOTHING),
    Column("refused", narrow=Narrow.NOTHING),
    Column("κ"),
    Column("sensitivity", narrow=Narrow.VALUE),
    Column("specificity", narrow=Narrow.VALUE),
    Column("not judged", narrow=Narrow.NOTHING),
)


def judge_card(judges: Mapping[str, Any], people: Mapping[str, Any] | None = None, **settings: int) -> dict[str, Any]:
    """The card as JSON.

    Args:
        judges: each judge's measured agreement.
        people: that of one annotator with the other, None where nobody labelled twice.
        settings: how it was measured.
    """
    return {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION, **settings, "judges": dict(judges),
            "annotators": people}  # fmt: skip


def tables_of(card: Mapping[str, Any]) -> list[Table]:
    """Agreement by model and set; three classes; base rates; other languages. Tables without a row are left out."""
    found = [
        Table.of(card["title"], _records(card), columns=COLUMNS),
        Table.of("Refused, rebutted, answered: κ over all three, and of each against the other two", _classes(card)),
        Table.of("κ by the share of refusals, from sensitivity and specificity over all answers", _base_rates(card)),
        Table.of("Other languages", _languages(card)),
    ]
    return [one for one in found if len(one.frame)]


def markdown(card: Mapping[str, Any]) -> str:
    """The card as a Markdown page."""
    parts = [part for one in tables_of(card) for part in (f"## {one.title}", "", tables.markdown(one), "")]
    return "\n".join(["# Judge card", "", *parts, card["method"], "", card["attribution"], ""])


def _records(card: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for judge, found in card["judges"].items():
        if "models_left_out" not in found:
            yield from _of_judge(judge, "", found)
            continue
        yield from _of_judge(judge, "model, request", found)
        yield from _of_judge(judge, "model", found["models_left_out"])
    if people := card["annotators"]:
        yield _row("second annotator", "", f"{people['source']}, all", people)


def _of_judge(judge: str, left_out: str, found: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for model, one in found["models"].items():
        yield _row(judge, left_out, model, one)
    for source, one in found["sets"].items():
        yield _row(judge, left_out, f"{source}, all", one["pooled"])
        if "without" in one:
            yield _row(judge, left_out, f"{source} without {one['without']['model']}", one["without"])
        mean = _number(one["mean_kappa"], one["mean_kappa_interval"])
        yield {"judge": judge, "left out": left_out, "answers": f"{source}, mean of the models", "κ": mean}
    yield _row(judge, left_out, "all answers", found["pooled"])


def _row(judge: str, left_out: str, answers: str, one: Mapping[str, Any]) -> dict[str, str | Cell]:
    return {
        "judge": judge,
        "left out": left_out,
        "answers": answers,
        "n": str(one["n"]),
        "refused": str(one["refused"]),
        "κ": _number(one["kappa"], one["kappa_interval"]),
        "sensitivity": _number(one["sensitivity"], one["sensitivity_interval"]),
        "specificity": _number(one["specificity"], one["specificity_interval"]),
        "not judged": str(one.get("judge_failed", "")),
    }


def _classes(card: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    people = card["annotators"]
    named = {judge: found["sets"] for judge, found in card["judges"].items()}
    named |= {"second annotator": {people["source"]: people}} if people else {}
    for judge, sets in named.items():
        for source, one in sets.items():
            if found := one.get("three_classes"):
                each = {name: _number(value, None) for name, value in found["by_class"].items()}
                yield {"judge": judge, "answers": source, "κ": _number(found["kappa"], None), **each}


def _base_rates(card: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for judge, found in card["judges"].items():
        for name, one in (*found["sets"].items(), ("all answers", found)):
            if rates := one["base_rates"]:
                cells = {f"{100 * float(rate):g}%": _number(value, None) for rate, value in rates.items()}
                yield {"judge": judge, "answers": name, **cells}


def _languages(card: Mapping[str, Any]) -> Iterator[dict[str, str | Cell]]:
    for judge, found in card["judges"].items():
        for tag, one in found.get("languages", {}).items():
            row: dict[str, str | Cell] = {"judge": judge, "language": tag, "n": str(one["n"])}
            if "sensitivity" not in one:
                yield row | {"κ": Cell(f"{NOT_MEASURED}: it gives no verdict")}
                continue
            few = one["kappa"] is None
            yield row | {
                "κ": Cell(NOT_MEASURED) if few else _number(one["kappa"], one["kappa_interval"]),
                "refusals found": _count(one["found"], one["refused"], one["sensitivity_interval"]),
                "wrongly called refusals": _count(one["wrongly_called"], one["n"] - one["refused"], None),
                "specificity": _number(one["specificity"], one["specificity_interval"]),
                "not judged": str(one["judge_failed"]),
            }


def _count(found: int, of: int, interval: list[float] | None) -> Cell:
    return Cell(f"{found} of {of}", "" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}")


def _number(value: float | None, interval: list[float] | None) -> Cell:
    if value is None:
        return Cell("not defined")
    return Cell(f"{value:.3f}", "" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}")
