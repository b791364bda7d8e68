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


def entries(path: Path) -> list[tuple[str, str]]:
    """Return the inputs of a file (lines that begin with ``$``), each with the text under it."""
    parts = (entry.partition("\n") for entry in path.read_text(encoding="utf-8").strip().split("\n\n"))
    return [(first.removeprefix("$ "), text) for first, _, text in parts]


def check_entry(path: Path, entry: tuple[str, str], text: str) -> None:
    """Compare ``text`` with the one of an entry."""
    if os.environ.get("UPDATE_SNAPSHOTS"):
        before, after = ("\n".join(["$ " + entry[0], one]).strip() + "\n" for one in (entry[1], text))
        path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
        pytest.skip("wrote the text; read it")
    assert text == entry[1]
