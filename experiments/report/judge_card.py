"""The judge card for readers: how far each refusal judge agrees with people's labels."""

from collections.abc import Mapping
from typing import Any

TITLE = "Judges against people's labels (refused against the rest)"
METHOD = (
    "Each answer was judged by a classifier that learned neither from its model nor from its request. “Model” leaves "
    "out the model only, which is the easier test. The rules learned from nothing. Blocked and failed calls are no "
    "answers. 95% intervals: κ by bootstrap over requests, sensitivity and specificity by Wilson. One annotator "
    "labelled the other languages; no judge learned from them."
)
ATTRIBUTION = (
    "Labels, CC BY 4.0: XSTest (Röttger et al. 2024), https://github.com/paul-rottger/xstest; MSTS (Röttger et al. "
    "2025), https://github.com/paul-rottger/msts-multimodal-safety"
)
RATES = {"κ": "kappa", "sens.": "sensitivity", "spec.": "specificity"}
COUNTS = {"n": "n", "refused": "refused", "no class": "judge_failed"}


def tables(card: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the card's tables by title: one for each judge, and one for each easier test and for the annotators."""
    found = {}
    for judge, measured in card["judges"].items():
        easier = measured.get("models_left_out", {})
        parts = {"": measured["models"] | measured["sets"] | {"all answers": measured["pooled"]}}
        parts |= {", the model left out": easier.get("sets", {}), ", other languages": measured.get("languages", {})}
        for part, rows in parts.items():
            found[f"{judge}{part}"] = [_record(name, row) for name, row in rows.items()]
        three = {"": measured, ", the model left out": easier}
        for part, source in three.items():
            for name, kappas in source.get("three_classes", {}).items():
                found[f"{judge}, κ of three classes on {name}{part}"] = [
                    {label: f"{value:.3f}" for label, value in kappas.items() if value is not None}
                ]
    if people := card["annotators"]:
        found["second annotator"] = [_record(people["source"], people)]
    return {title: rows for title, rows in found.items() if rows}


def _record(answers: str, row: Mapping[str, Any]) -> dict[str, str]:
    values = {heading: row.get(name) for heading, name in RATES.items()}
    record = {heading: "–" if value is None else f"{value:.3f}" for heading, value in values.items()}
    interval = row.get("kappa_interval")
    between = "not measured" if values["κ"] is None else "{:.3f}–{:.3f}".format(*interval) if interval else "–"
    counts = {heading: str(row[name]) for heading, name in COUNTS.items() if name in row}
    return {"answers": answers.split("--")[-1][:24], "κ": record.pop("κ"), "95%": between, **record, **counts}
