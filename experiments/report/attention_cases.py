"""Attention of single cases, as the page's case browser reads it. Reads the run alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "attention/cases.json"  # written by experiments.attention.cases
_NEEDED = ("tokens", "layers", "groups", "keys", "segments", "names", "masses", "grid", "words", "words_scale")


def attention_of_cases(run_dir: Path) -> Mapping[str, Any] | None:
    """None for a run that logged no attention of single cases, or whose file of it cannot be read."""
    try:
        found = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
        cases, note = found["cases"], str(found["note"])
        whole = all(key in block for arms in cases.values() for block in arms.values() for key in _NEEDED)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {"note": note, "cases": cases} if whole and cases else None
