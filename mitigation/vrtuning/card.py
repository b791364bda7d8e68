"""An adapter's model card: what it was made from, as Markdown. Knows nothing of files."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mitigation.vrtuning.checkpoint import Origin


def card(origin: "Origin", rows: Sequence[Mapping[str, str]]) -> str:
    """The card as Markdown; ``rows`` are those of the table before and after, column → cell."""
    revision = f" (`{origin.base_revision}`)" if origin.base_revision else ", built in memory"
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    return f"""\
---
base_model: {json.dumps(origin.base_path or origin.base)}
library_name: peft
tags: [lora, vrtuning-style, trl]
---

# VRTuning-style adapter for {origin.base}

LoRA on the language model only; vision tower, projector and output head are the base model's. MMSafeAware
(arXiv 2502.11184) publishes neither the data nor the settings of its VRTuning, so these are ours.

    from peft import PeftModel
    model = PeftModel.from_pretrained(base, "<this folder>")

- Base model: {origin.base}{revision}
- Data: {origin.data or "not described"}; {origin.examples} examples, digest `{origin.data_digest}`
- Training: {origin.steps} optimiser steps, seed {origin.settings.get("seed")}, {origin.processes} process(es)
- Last logged loss: {origin.final_loss:.4f}
- Versions: {versions}

## Before and after

{_table(rows)}

## Settings

{_table(_settings(origin))}

## Licence and limits

The adapter is a derivative of the base model: the base model's licence applies to it, and so may that of the data. Rows
of MOSSBench and MMSafeAware are refused in training. The adapter changes how a model answers safety questions; it is no
safety guarantee.
"""


def _settings(origin: "Origin") -> list[dict[str, str]]:
    shown = {name: value for name, value in origin.settings.items() if name not in ("report_to", "merge")}
    return [{"setting": name, "value": _cell(value)} for name, value in shown.items()]


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return "Not measured."
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows])


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
