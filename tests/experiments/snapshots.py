"""Texts that users see, kept as files next to the tests. ``UPDATE_SNAPSHOTS=1 pytest …`` writes them again."""

import os
from pathlib import Path

import pytest


def check(path: Path, text: str) -> None:
    """Compare ``text`` with the file at ``path``; blanks at the ends of lines do not count."""
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.skip(f"wrote {path.name}; read it")
    assert text == path.read_text(encoding="utf-8")
