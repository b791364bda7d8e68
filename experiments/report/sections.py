"""Sections of a run's report beyond its metrics: what a study adds (text, tables, figures), and attention.

A study's section is ``sections/<name>.json`` in the run's directory, beside the figures it names, so that the report
can be built again without the study. The section on attention is read from attention.json. Templates print all of
this as text; nothing in it is marked as safe HTML.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from experiments.metrics.claims import RULES
from experiments.report import attention_figure
from experiments.report.cases import LONGEST_TEXT, blurred
from experiments.report.figures import PHONE, SCREEN, embedded, svg_bytes
from experiments.report.numbers import percent
from experiments.report.tables import lines_of, table
from experiments.runs.results_table import Results
from experiments.runs.saved_run import SavedRun, thumbnail_name
from experiments.runs.store import write_json
from interp.errors import UserError
from interp.figures.glyphs import Figure

FOLDER = "sections"
LARGEST = 6_000_000  # bytes of all heatmaps of single cases together
OVER = {
    "image": "over the picture, by layers",
    "words": "over the words, by layers",
    "heads": "on the picture, by layer and head",
    "answers": "over the picture, by arm",
}
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
    tables = [
        table(
            [dict(zip(map(str, kept["columns"]), map(str, cells), strict=True)) for cells in kept["rows"]],
            title=str(kept["caption"]),
            note=str(kept["note"]),
        )
        for kept in content["tables"]
        if kept["rows"]
    ]
    figures = []
    for one in content["figures"]:
        path = folder / "figures" / f"{Path(str(one['name'])).name}.svg"  # the name alone: no path leaves the run
        if path.is_file():
            figures.append(embedded(path.stem, path.read_bytes(), alt=str(one["alt"]), caption=str(one["caption"])))
    sentences = [str(sentence) for sentence in content["sentences"]]
    return {"name": name, "title": str(content["title"]), "sentences": sentences, "tables": tables,
            "note": str(content["note"]), "figures": figures}  # fmt: skip


def attention_section(run: SavedRun) -> dict[str, Any] | None:
    """What attention.json of the run says; None where there is none or it cannot be read.

    Returns:
        ``sentences``, ``words``, ``curves`` by layer, ``heatmaps`` of single cases, and ``left_out``, the number of
        heatmaps beyond the limit.
    """
    try:
        found = json.loads((run.directory / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in found["sentences"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    words = [f"{word['word']} ({percent(word['mass'])}%)" for word in (found.get("words") or [])[:WORDS]]
    attributed = [one for one in (found.get("attribution") or {}).values() if isinstance(one, Mapping)]
    named = [name for one in (found, *attributed) for name in one.get("figures") or ()]
    heatmaps, left_out = _heatmaps(run, [Path(str(name)).name for name in named])  # no path leaves the run
    return {"sentences": sentences, "words": words, "curves": _curves(run.results), "heatmaps": heatmaps,
            "left_out": left_out}  # fmt: skip


def _curves(results: Results) -> list[dict[str, str]]:
    """The subsets' curves as one figure; empty without any."""
    if not (lines := attention_figure.panels(results)):
        return []
    screen, phone = (svg_bytes(attention_figure.share_by_layer(lines, form)) for form in (SCREEN, PHONE))
    return [embedded("attention_by_layer", screen, phone, alt=attention_figure.describe(results))]


def _heatmaps(run: SavedRun, names: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """The heatmaps among ``names`` that are in the run and whose case is known, by case, and how many were too many."""
    records = {Path(thumbnail_name(str(record["case"]))).stem: record for record in run.predictions}
    by_case: dict[str, dict[str, Any]] = {}
    room, left_out = LARGEST, 0
    for name in names:
        match = re.fullmatch(r"(attention|attribution)_(.+)_(image|words|heads|answers)\.png", name)
        path = run.directory / "figures" / name
        if not match or match[2] not in records or not path.is_file():
            continue
        room -= path.stat().st_size
        if room < 0:
            left_out += 1
            continue
        record, kind = records[match[2]], f"{match[1]} {OVER[match[3]]}"
        one = {
            "name": path.stem,
            "kind": kind,
            "uri": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii"),
            "alt": f"{kind}, case {record['case']}",
            "hidden": match[3] in ("image", "answers") and blurred(record),
        }
        text = str(record["text"])[:LONGEST_TEXT]
        by_case.setdefault(match[2], {"case": str(record["case"]), "text": text, "maps": []})["maps"].append(one)
    return list(by_case.values()), left_out
