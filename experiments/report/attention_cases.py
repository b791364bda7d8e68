"""Attention of single cases, as the page's case browser reads it. Reads the run alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def attention_of_cases(run_dir: Path) -> Mapping[str, Any] | None:
    """None for a run that logged no attention of single cases."""
    return None
