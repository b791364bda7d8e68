"""The analyses of a study after its arms are measured, what is still missing of them, and their sections of the report.

If one analysis fails, the others still run. ``missing.json`` in the run's directory has a sentence for each analysis
that has not begun, was cut off or failed. A failed one also leaves its traceback in ``tracebacks/<name>.txt``. A run is
finished only if its arms are reported and nothing is missing (``mark_finished``). The same command then makes up for
what is missing.

A section (text, tables, figures) is ``sections/<name>.json`` in the run's directory, next to the figures it names. So
the report can be built again without the study. The section on attention is read from attention.json. Templates print
all of this as text; nothing in it is marked as safe HTML.
"""

import gc
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import pandas as pd
from rich.console import RenderableType

from experiments.metrics.estimates import RULES
from experiments.report.figures import embedded, svg_bytes
from experiments.report.tables import lines, lines_of, table
from experiments.runs.store import IDENTITY, read_object, write_json
from interp.errors import UserError
from interp.figures.glyphs import Figure

FOLDER = "sections"
FILE = "missing.json"
TRACEBACKS = "tracebacks"
REPORT = "report"  # what the figures of the report itself are part of
YET = "yet: the run is still at work or was cut off, and the same command goes on"
NOTE = "note: "  # what an analysis' remarks begin with
LONGEST = 300  # characters of an error's message in a sentence
UNFINISHED: set[Path] = set()
"""Runs of this process whose requests did not all get through, or of which an analysis failed."""
Work = TypeVar("Work")


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


@dataclass
class Outcome:
    """Why an analysis ``failed``; empty if it did not."""

    failed: str = ""


def expect_analyses(folder: Path, missing: Mapping[str, str]) -> None:
    """Note which analyses are to come: name → what a reader would miss, as ``attention was not analysed``.

    Raises:
        UserError: the directory cannot be written.
    """
    if missing or (folder / FILE).exists():
        write_json(folder / FILE, {name: {"sentence": f"{words} {YET}"} for name, words in missing.items()})


@contextmanager
def guarded(folder: Path, name: str, missing: str, *, part_of: str | None = None) -> Iterator[Outcome]:
    """Turn an exception of the block into ``Outcome.failed`` and a sentence in the file.

    KeyboardInterrupt and SystemExit still end the run. ``missing`` as in ``expect``. A part of another analysis
    (``part_of``) is only noted if it fails, and is dropped when that analysis begins again. If the file cannot be
    written, nothing is raised.
    """
    begun = {} if part_of else {name: {"sentence": f"{missing} {YET}"}}
    _save(folder, {key: entry for key, entry in _entries(folder).items() if entry.get("part_of") != name} | begun)
    outcome = Outcome()
    try:
        yield outcome
    except Exception as error:
        outcome.failed = f"{missing}: {_reason(error)} ({_traced(folder, name, error)}the same command tries it again)"
    entries = _entries(folder)
    entries.pop(name, None)
    if outcome.failed:
        _save(folder, entries | {name: {"sentence": outcome.failed} | ({"part_of": part_of} if part_of else {})})
        _free()  # what the error's frames held
    else:
        _save(folder, entries)


def missing_analyses(folder: Path, part_of: str | None = None) -> list[str]:
    """Return what a reader of the run misses, in sentences; only parts of one analysis if ``part_of`` is given."""
    entries = _entries(folder).values()
    return [entry["sentence"] for entry in entries if part_of in (None, entry.get("part_of"))]


def mark_finished(folder: Path) -> bool:
    """Mark the run as finished if its arms are reported and nothing is missing; return whether that is so.

    If not, add the folder to ``UNFINISHED``, which decides the command's exit code.

    Raises:
        UserError: the directory cannot be written.
    """
    identity = read_object(folder / IDENTITY)
    complete = bool(read_object(folder / "environment.json").get("finished")) and not _entries(folder)
    if complete and identity and not identity.get("finished"):
        write_json(folder / IDENTITY, identity | {"finished": True})
    (UNFINISHED.discard if complete else UNFINISHED.add)(folder)
    return complete


def _entries(folder: Path) -> dict[str, dict[str, str]]:
    """Return the entries by name; what is no entry, as in a file from elsewhere, is left out."""
    entries = read_object(folder / FILE)
    return {name: entry for name, entry in entries.items() if isinstance(entry, dict) and "sentence" in entry}


def _save(folder: Path, entries: Mapping[str, Mapping[str, str]]) -> None:
    if entries != _entries(folder):
        with suppress(UserError):
            write_json(folder / FILE, entries)


def _reason(error: Exception) -> str:
    """Return one line: a user's mistake in its own words, anything else with its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a message"]
    if isinstance(error, UserError):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0][:LONGEST]}{'…' if len(lines[0]) > LONGEST else ''}"


def _traced(folder: Path, name: str, error: Exception) -> str:
    """Write the traceback, and return where it is as the beginning of a remark."""
    path = folder / TRACEBACKS / f"{name}.txt"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
    except OSError:
        return "its traceback could not be written; "
    return f"traceback: {TRACEBACKS}/{path.name}; "


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with suppress(RuntimeError):  # a device that failed cannot be freed either
            torch.cuda.empty_cache()


class NoMargin(UserError):
    """Refusals have no margin that tools may follow."""


@dataclass(frozen=True)
class Analysis(Generic[Work]):
    """``work`` adds to the run's directory and returns what to print; ``name`` is the name of its traceback.

    ``missing`` says what a reader misses if it fails: ``attention was not analysed``. All processes of a launch take
    part in an analysis that is done ``together``; the others are rank 0's. Sentences that it returns are printed, and
    with ``verbose=true`` tables and notes too. A ``detail`` is not what the study was run for; only the report shows
    it.
    """

    name: str
    missing: str
    work: Callable[[Work], Iterable[RenderableType]]
    together: bool = False
    detail: bool = False


def perform(study: Any, analyses: Sequence[Analysis[Any]]) -> bool:
    """Do the analyses, print what came of each, and return whether nothing failed.

    An exception becomes a sentence in terminal and report, and a traceback in a file. ``study`` is an
    ``experiments.evaluation.study.Study``.

    Raises:
        UserError: an analysis that is done together failed, so the processes of the launch are at different places.
    """
    if study.store.launch.first:
        done = [_done(study, analysis) for analysis in analyses]
        return all(done)
    for analysis in analyses:
        if analysis.together:
            list(analysis.work(study))
    return True


def _done(study: Any, analysis: Analysis[Any]) -> bool:
    """Do an analysis, print what came of it, and return whether it did not fail."""
    folder = study.store.path
    lines: list[RenderableType] = []
    with guarded(folder, analysis.name, analysis.missing) as outcome:
        try:
            lines = list(analysis.work(study))
        except NoMargin as error:
            lines = [f"{analysis.missing}: {error}"]
            write_section(folder, analysis.name, Section("Without a margin", [f"{analysis.missing}: {error}"]))
    if not study.run.verbose:
        brief = (line for line in lines if isinstance(line, str) and not line.startswith(NOTE))
        lines = [] if analysis.detail else list(brief)
    failed = [*filter(None, [outcome.failed, *missing_analyses(folder, analysis.name)])]
    for line in [*lines, *failed]:
        study.console.print(line, highlight=False, soft_wrap=isinstance(line, str), markup=False)
    if outcome.failed and analysis.together and study.store.launch.size > 1:
        raise UserError(outcome.failed)
    return not failed
