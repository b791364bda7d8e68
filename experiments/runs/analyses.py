"""What a run still misses after its arms are reported: one analysis never takes another with it.

``missing.json`` in the run's directory has a sentence for each analysis that has not begun, was cut off or failed. A
failed one also leaves its traceback in ``tracebacks/<name>.txt``. A run is finished only if its arms are reported and
nothing is missing (``mark_finished``). The same command then makes up for what is missing.
"""

import gc
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.store import IDENTITY, read_object, write_json
from interp.errors import UserError

FILE = "missing.json"
FOLDER = "tracebacks"
REPORT = "report"  # what the figures of the report itself are part of
YET = "yet: the run is still at work or was cut off, and the same command goes on"
LONGEST = 300  # characters of an error's message in a sentence
UNFINISHED: set[Path] = set()
"""Runs of this process whose requests did not all get through, or of which an analysis failed."""


@dataclass
class Outcome:
    """Why an analysis ``failed``; empty if it did not."""

    failed: str = ""


def expect(folder: Path, missing: Mapping[str, str]) -> None:
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


def missing(folder: Path, part_of: str | None = None) -> list[str]:
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
    path = folder / FOLDER / f"{name}.txt"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
    except OSError:
        return "its traceback could not be written; "
    return f"traceback: {FOLDER}/{path.name}; "


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with suppress(RuntimeError):  # a device that failed cannot be freed either
            torch.cuda.empty_cache()
