"""Sections of a run's report beyond its metrics: what a study adds (text, tables, figures), and attention.

A study's section is ``sections/<name>.json`` in the run's directory, next to the figures it names. So the report can be
built again without the study. The section on attention is read from attention.json. Templates print all of this as
text; nothing in it is marked as safe HTML.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from experiments.metrics.claims import RULES
from experiments.report.figures import embedded, svg_bytes
from experiments.report.tables import lines_of, table
from experiments.report.text import lines
from experiments.runs.store import write_json
from interp.errors import UserError
from interp.figures.glyphs import Figure

FOLDER = "sections"


@dataclass(frozen=True)
class Section:
    """A section of the report; all of it is printed as text."""

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
    """Write ``section`` and its ``figures`` (``figures/<name>.svg``) into the run's ``folder``.

    Raises:
        UserError: a name has other characters than letters, digits and ``_``.
    """
    for each in (name, *figures):
        if not re.fullmatch(r"[A-Za-z0-9_]+", each):
            raise UserError(f"section or figure {each!r}: must be a file's name; use letters, digits and _ only")
    (folder / "figures").mkdir(exist_ok=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    for each, drawn in figures.items():
        (folder / "figures" / f"{each}.svg").write_bytes(svg_bytes(drawn.figure))
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
        "figures": [{"name": key, "alt": drawn.alt, "caption": drawn.caption} for key, drawn in figures.items()],
    }
    write_json(folder / FOLDER / f"{name}.json", content)


def read_sections(folder: Path) -> list[dict[str, Any]]:
    """Return the sections in ``folder`` as the template prints them, by name.

    Files that are not sections and missing figures are passed over.
    """
    sections = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            section = {key: str(content[key]) for key in ("title", "note")} | {"name": path.stem}
            sentences = [str(sentence) for sentence in content["sentences"]]
            tables = [table([dict(zip(kept["columns"], map(str, cells), strict=True)) for cells in kept["rows"]],
                            title=str(kept["caption"]), note=str(kept["note"]))
                      for kept in content["tables"] if kept["rows"]]  # fmt: skip
            figures = list(_figures(folder / "figures", content["figures"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        sections.append({**section, "sentences": sentences, "tables": tables, "figures": figures})
    return sections


def _figures(folder: Path, listed: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    for drawn in listed:
        path = folder / f"{Path(str(drawn['name'])).name}.svg"  # the name only: no path leaves the run
        if path.is_file():
            yield embedded(path.stem, path.read_bytes(), alt=str(drawn["alt"]), caption=str(drawn["caption"]))


def attention_section(folder: Path, figures: list[dict[str, str]]) -> dict[str, Any] | None:
    """Return what attention.json of the run says as a section with ``figures``; None if it cannot be read."""
    try:
        content = json.loads((folder / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in content["sentences"]]
        note = " ".join(lines("words", words=content.get("words") or []))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"name": "attention", "title": "Where failures look", "sentences": sentences, "tables": [], "note": note,
            "figures": figures}  # fmt: skip
