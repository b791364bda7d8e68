"""Sections of a run's report beyond its metrics: what a study adds (text, tables, figures), and attention.

A study's section is ``sections/<name>.json`` in the run's directory, beside the figures it names, so that the report
can be built again without the study. The section on attention is read from attention.json. Templates print all of
this as text; nothing in it is marked as safe HTML.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.metrics.findings import RULES
from experiments.report import attention_figure
from experiments.report.cases import LONGEST_TEXT, blurred
from experiments.report.figures import PHONE, SCREEN, data_uri, in_dark, svg_bytes
from experiments.report.numbers import percent
from experiments.report.table import Table
from experiments.runs.resumption import write_json
from experiments.runs.saved_run import SavedRun, thumbnail_name
from interp.errors import UserError

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
    tables: Sequence[Table] = ()
    note: str = ""


class SectionFigure(NamedTuple):
    """A figure with its text alternative and its caption."""

    figure: Figure
    alt: str
    caption: str = ""


class EmbeddedFigure(NamedTuple):
    """A figure as the template prints it, data URIs; ``name`` is that of its file, without its ending.

    The forms for dark pages and for phones are empty where there are none.
    """

    name: str
    uri: str
    alt: str
    caption: str = ""
    dark_uri: str = ""
    phone_uri: str = ""
    phone_dark_uri: str = ""


@dataclass(frozen=True)
class SavedSection:
    """A section as the template prints it."""

    name: str
    title: str
    sentences: list[str]
    tables: list[Table]
    note: str
    figures: list[EmbeddedFigure] = field(default_factory=list)


class Heatmap(NamedTuple):
    """A drawn heatmap: its kind in words, the image, and whether it shows a picture that stays blurred."""

    kind: str
    figure: EmbeddedFigure
    hidden: bool


class CaseHeatmaps(NamedTuple):
    """The heatmaps of one case."""

    case: str
    text: str
    maps: list[Heatmap]


class AttentionSection(NamedTuple):
    """The conclusions of attention.json, its curves by layer, and the heatmaps of single cases.

    ``left_out`` is the number of heatmaps beyond the limit.
    """

    sentences: list[str]
    words: list[str]
    curves: list[EmbeddedFigure]
    heatmaps: list[CaseHeatmaps]
    left_out: int


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
    return SavedSection(name, str(content["title"]), sentences, tables, str(content["note"]), figures)


def attention_section(run: SavedRun) -> AttentionSection | None:
    """What attention.json of the run says; None where there is none or it cannot be read."""
    folder = run.directory
    try:
        found = json.loads((folder / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in found["sentences"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    words = [f"{word['word']} ({percent(word['mass'])}%)" for word in (found.get("words") or [])[:WORDS]]
    names = [Path(str(name)).name for name in _named(found)]  # the name alone: no path leaves the run
    heatmaps, left_out = _heatmaps(run, names)
    return AttentionSection(sentences, words, _curves(found), heatmaps, left_out)


def _named(found: Mapping[str, Any]) -> Iterator[str]:
    """The names of all figures of attention.json, those of the attributions last."""
    yield from found.get("figures") or []
    for one in (found.get("attribution") or {}).values():
        yield from (one.get("figures") or []) if isinstance(one, Mapping) else ()


def _curves(found: Mapping[str, Any]) -> list[EmbeddedFigure]:
    """The subsets' curves as one figure; nothing where they cannot be drawn."""
    try:
        subsets = attention_figure.subsets_by_layer(found)
        if not subsets:
            return []
        drawn = [svg_bytes(attention_figure.share_by_layer(subsets, form)) for form in (SCREEN, PHONE)]
        alt = attention_figure.describe(subsets)
    except (KeyError, TypeError, AttributeError, ValueError):
        return []
    (screen, screen_dark), (phone, phone_dark) = ((data_uri(one), data_uri(in_dark(one))) for one in drawn)
    return [EmbeddedFigure("attention_by_layer", screen, alt, "", screen_dark, phone, phone_dark)]


def _heatmaps(run: SavedRun, names: Sequence[str]) -> tuple[list[CaseHeatmaps], int]:
    """The heatmaps among ``names`` that are in the run and whose case is known, by case, and how many were too many."""
    records = {Path(thumbnail_name(str(record["case"]))).stem: record for record in run.predictions}
    by_case: dict[str, CaseHeatmaps] = {}
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
        record = records[match[2]]
        kind = f"{match[1]} {OVER[match[3]]}"
        hidden = match[3] in ("image", "answers") and blurred(record)
        shown = Heatmap(kind, _embedded(path, f"{kind}, case {record['case']}"), hidden)
        text = str(record["text"])[:LONGEST_TEXT]
        by_case.setdefault(match[2], CaseHeatmaps(str(record["case"]), text, [])).maps.append(shown)
    return list(by_case.values()), left_out


def _embedded(path: Path, alt: str, caption: str = "") -> EmbeddedFigure:
    content = path.read_bytes()
    if path.suffix == ".svg":
        dark = "" if b"<image" in content else data_uri(in_dark(content))  # words on a picture need their own ink
        return EmbeddedFigure(path.stem, data_uri(content), alt, caption, dark)
    uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return EmbeddedFigure(path.stem, uri, alt, caption)
