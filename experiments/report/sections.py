"""Sections that a study adds to a run's report: sentences, tables and figures of its own.

A section is ``sections/<name>.json`` in the run's directory beside the figures it names, so that the report can be
built again without the study. Knows nothing of what a section says.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.report.figures import svg_bytes
from experiments.report.table import Table
from experiments.runs.directory import write_json
from interp.errors import UserError

FOLDER = "sections"


@dataclass(frozen=True)
class Section:
    """What a section says; all of it is shown as text."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    note: str = ""


class Drawn(NamedTuple):
    """A figure with the words for who cannot see it, and what stands below it."""

    figure: Figure
    alt: str
    caption: str = ""


class Shown(NamedTuple):
    """A figure as the template prints it; ``name`` is that of its file, without its ending."""

    name: str
    uri: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Read:
    """A section as the template prints it; nothing in it is marked as safe HTML."""

    name: str
    title: str
    sentences: list[str]
    tables: list[Table]
    note: str
    figures: list[Shown] = field(default_factory=list)


def write_section(folder: Path, name: str, section: Section, figures: Mapping[str, Drawn]) -> None:
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
        "title": section.title,
        "sentences": list(section.sentences),
        "tables": [{"caption": table.title, "rows": table.records()} for table in section.tables],
        "note": section.note,
        "figures": [{"name": one, "alt": drawn.alt, "caption": drawn.caption} for one, drawn in figures.items()],
    }
    write_json(folder / FOLDER / f"{name}.json", content)


def read_sections(folder: Path) -> list[Read]:
    """The sections in ``folder``, by name; a file that is none, or a figure that is not there, is passed over."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            found.append(_read(folder, path.stem, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _read(folder: Path, name: str, content: Mapping[str, Any]) -> Read:
    tables = [
        Table.of(str(table["caption"]), [{str(k): str(v) for k, v in row.items()} for row in table["rows"]])
        for table in content["tables"]
        if table["rows"]
    ]
    figures = []
    for one in content["figures"]:
        path = folder / "figures" / f"{Path(str(one['name'])).name}.svg"  # the name alone: no path leaves the run
        if path.is_file():
            uri = "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
            figures.append(Shown(path.stem, uri, str(one["alt"]), str(one["caption"])))
    sentences = [str(sentence) for sentence in content["sentences"]]
    return Read(name, str(content["title"]), sentences, tables, str(content["note"]), figures)
