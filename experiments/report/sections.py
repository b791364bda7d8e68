"""Sections of a run's report beyond its metrics: what a study adds (text, tables, figures), and attention.

A study's section is ``sections/<name>.json`` in the run's directory, beside the figures it names, so that the report
can be built again without the study. The section on attention is read from attention.json. Templates print all of
this as text; nothing in it is marked as safe HTML.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.metrics.findings import RULES
from experiments.report.earlier import is_earlier
from experiments.report.figures import svg_bytes
from experiments.report.numbers import percent
from experiments.report.table import Table
from experiments.runs.directory import write_json
from interp.errors import UserError

FOLDER = "sections"
CURVES = "attention_by_layer_"  # how the names of the figures by layer begin
EARLIER = "What this run concluded here was concluded under earlier rules and is not repeated; {way}."
WORDS = 8  # of those that draw most attention, how many are listed


@dataclass(frozen=True)
class Section:
    """What a section says; all of it is shown as text."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    note: str = ""


class SectionFigure(NamedTuple):
    """A figure with its text alternative and its caption."""

    figure: Figure
    alt: str
    caption: str = ""


class EmbeddedFigure(NamedTuple):
    """A figure as the template prints it, a data URI; ``name`` is that of its file, without its ending."""

    name: str
    uri: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class SavedSection:
    """A section as the template prints it."""

    name: str
    title: str
    sentences: list[str]
    tables: list[Table]
    note: str
    figures: list[EmbeddedFigure] = field(default_factory=list)


class AttentionSection(NamedTuple):
    """The conclusions of attention.json and its curves by layer.

    Of the heatmaps of single cases only the number is given: they show pictures of unsafe subsets.
    """

    sentences: list[str]
    words: list[str]
    curves: list[EmbeddedFigure]
    heatmaps: int


def write_section(folder: Path, name: str, section: Section, figures: Mapping[str, SectionFigure]) -> None:
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
        "tables": [{"caption": table.title, "rows": table.records()} for table in section.tables],
        "note": section.note,
        "figures": [{"name": one, "alt": drawn.alt, "caption": drawn.caption} for one, drawn in figures.items()],
    }
    write_json(folder / FOLDER / f"{name}.json", content)


def read_sections(folder: Path) -> list[SavedSection]:
    """The sections in ``folder``, by name; files that are not sections and missing figures are passed over."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            found.append(_read(folder, path.stem, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _read(folder: Path, name: str, content: Mapping[str, Any]) -> SavedSection:
    tables = [
        Table.of(str(table["caption"]), [{str(k): str(v) for k, v in row.items()} for row in table["rows"]])
        for table in content["tables"]
        if table["rows"]
    ]
    figures = []
    for one in content["figures"]:
        path = folder / "figures" / f"{Path(str(one['name'])).name}.svg"  # the name alone: no path leaves the run
        if path.is_file():
            figures.append(_embedded(path, str(one["alt"]), str(one["caption"])))
    sentences = [str(sentence) for sentence in content["sentences"]]
    if sentences and is_earlier(content):
        sentences = [EARLIER.format(way="repeat the run’s command for today’s")]
    return SavedSection(name, str(content["title"]), sentences, tables, str(content["note"]), figures)


def attention_section(folder: Path) -> AttentionSection | None:
    """None for a run without an attention analysis, or whose attention.json cannot be read."""
    try:
        found = json.loads((folder / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in found["sentences"]]
        if is_earlier(found):
            sentences = [EARLIER.format(way=f"task=attention run={folder} concludes again")]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    words = [f"{word['word']} ({percent(word['mass'])}%)" for word in (found.get("words") or [])[:WORDS]]
    names = [Path(str(name)).name for name in found.get("figures") or []]  # the name alone: no path leaves the run
    curves = [path for name in names if name.startswith(CURVES) and (path := folder / "figures" / name).is_file()]
    heatmaps = sum(not name.startswith(CURVES) for name in names)
    return AttentionSection(sentences, words, [_embedded(path, _curve_in_words(path)) for path in curves], heatmaps)


def _curve_in_words(path: Path) -> str:
    subset = path.stem.removeprefix(CURVES).replace("_", "-")
    return f"Attention on the image by layer, failures and matched successes of {subset} cases."


def _embedded(path: Path, alt: str, caption: str = "") -> EmbeddedFigure:
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    uri = f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode("ascii")
    return EmbeddedFigure(path.stem, uri, alt, caption)
