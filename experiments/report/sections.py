"""Sections of a run's report beyond its metrics: what a study adds (text, tables, figures), and attention.

A study's section is ``sections/<name>.json`` in the run's directory, beside the figures it names, so that the report
can be built again without the study. The section on attention is read from attention.json. Templates print all of
this as text; nothing in it is marked as safe HTML.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from experiments.metrics.claims import RULES
from experiments.report.figures import embedded, svg_bytes
from experiments.report.numbers import percent
from experiments.report.tables import lines_of
from experiments.runs.resumption import write_json
from interp.errors import UserError
from interp.figures.glyphs import Figure

FOLDER = "sections"
WORDS = 8  # of those that draw most attention, how many are listed


@dataclass(frozen=True)
class Section:
    """What a section says; all of it is shown as text."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[pd.DataFrame] = ()
    note: str = ""


class SectionFigure(NamedTuple):
    """A figure with its text alternative and its caption."""

    figure: Figure
    alt: str
    caption: str = ""


def write_section(
    folder: Path, name: str, section: Section, figures: Mapping[str, SectionFigure] = MappingProxyType({})
) -> None:
    """Writes ``section`` and its ``figures`` (name → figure, kept as ``figures/<name>.svg``) into the run's ``folder``.

    Raises:
        UserError: a name has other characters than letters, digits and ``_``.
    """
    for one in (name, *figures):
        if not re.fullmatch(r"[A-Za-z0-9_]+", one):
            raise UserError(f"section or figure {one!r}: must be a file's name; use letters, digits and _ alone")
    (folder / "figures").mkdir(exist_ok=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    for one, drawn in figures.items():
        (folder / "figures" / f"{one}.svg").write_bytes(svg_bytes(drawn.figure))
    content = {
        "rules": RULES,
        "title": section.title,
        "sentences": list(section.sentences),
        "tables": [
            {
                "caption": frame.attrs["title"],
                "note": frame.attrs["note"],
                "columns": list(frame.columns),
                "rows": [list(map(str, cells)) for _, cells in lines_of(frame)],
            }
            for frame in section.tables
        ],
        "note": section.note,
        "figures": [{"name": one, "alt": drawn.alt, "caption": drawn.caption} for one, drawn in figures.items()],
    }
    write_json(folder / FOLDER / f"{name}.json", content)


def read_sections(folder: Path) -> list[dict[str, Any]]:
    """The sections in ``folder`` as the template prints them, by name.

    Files that are not sections and missing figures are passed over.
    """
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            found.append(_read(folder, path.stem, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _read(folder: Path, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    tables = [pd.DataFrame(kept["rows"], columns=kept["columns"]).astype(str) for kept in content["tables"]]
    for frame, kept in zip(tables, content["tables"], strict=True):
        frame.attrs = {"title": str(kept["caption"]), "note": str(kept["note"])}
    figures = []
    for one in content["figures"]:
        path = folder / "figures" / f"{Path(str(one['name'])).name}.svg"  # the name alone: no path leaves the run
        if path.is_file():
            figures.append(embedded(path.stem, path.read_bytes(), alt=str(one["alt"]), caption=str(one["caption"])))
    sentences = [str(sentence) for sentence in content["sentences"]]
    return {"name": name, "title": str(content["title"]), "sentences": sentences, "note": str(content["note"]),
            "tables": [frame for frame in tables if len(frame)], "figures": figures}  # fmt: skip


def attention_section(folder: Path, figures: list[dict[str, str]]) -> dict[str, Any] | None:
    """Return what attention.json of the run says as a section with ``figures``; None if it cannot be read."""
    try:
        content = json.loads((folder / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in content["sentences"]]
        words = [f"{word['word']} ({percent(word['mass'])}%)" for word in (content.get("words") or [])[:WORDS]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    note = f"Words that draw most attention in failures (mean share): {', '.join(words)}." if words else ""
    return {"name": "attention", "title": "Where failures look", "sentences": sentences, "tables": [], "note": note,
            "figures": figures}  # fmt: skip
