"""The judge card for readers: how far each refusal judge agrees with people's labels."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import fixed, span

TITLE = "Judges against people's labels (refused against the rest)"
METHOD = (
    "Each answer was judged by a classifier that learned neither from its model nor from its request. "
    "The rules learned from nothing. Blocked and failed calls are no "
    "answers. 95% intervals: κ by bootstrap over requests, sensitivity and specificity by Wilson. One annotator "
    "labelled the other languages; no judge learned from them."
)
ATTRIBUTION = (
    "Labels, CC BY 4.0: XSTest (Röttger et al. 2024), https://github.com/paul-rottger/xstest; MSTS (Röttger et al. "
    "2025), https://github.com/paul-rottger/msts-multimodal-safety"
)


def tables(card: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the card's tables by title: one for each judge, and the annotators."""
    listed: dict[str, Mapping[str, Any]] = {}
    for judge, measured in card["judges"].items():
        listed[judge] = measured["models"] | measured["sets"] | {"all answers": measured["pooled"]}
        listed |= {f"{judge}, other languages": measured.get("languages", {})}
    if people := card["annotators"]:
        listed["second annotator"] = {people["source"]: people}
    return {title: [_record(*row) for row in rows.items()] for title, rows in listed.items() if rows}


def _record(answers: str, row: Mapping[str, Any]) -> dict[str, str]:
    counts = {"n": "n", "refused": "refused", "no class": "judge_failed"}
    return {
        "answers": answers.split("--")[-1][:24],
        "κ": fixed(row.get("kappa"), 3),
        "95%": "not measured" if row.get("kappa") is None else span(row.get("kappa_interval"), 3),
        "sens.": fixed(row.get("sensitivity"), 3),
        "spec.": fixed(row.get("specificity"), 3),
        **{heading: str(row[name]) for heading, name in counts.items() if name in row},
    }
