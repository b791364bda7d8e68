"""What is looked at once a run's arms are reported, and what became of it: one analysis never takes another with it.

``analyses.json`` in the run's directory holds the state of each: ``pending`` (not begun, cut off, or at work), ``done``
or ``failed``. A failed one leaves a sentence there and its traceback in ``tracebacks/<name>.txt``. A run is finished
only when its arms are reported and none of its analyses is pending or failed (``mark_finished``). The same command
then makes up for what is missing.
"""

import gc
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runs.store import IDENTITY, read_object, write_json
from interp.errors import UserError

FILE = "analyses.json"
FOLDER = "tracebacks"
REPORT = "report"  # what the figures of the report itself are part of
PENDING, DONE, FAILED = "pending", "done", "failed"
LONGEST = 300  # characters of an error's message in a sentence
UNFINISHED: set[Path] = set()
"""Runs of this process whose requests did not all get through, or of which an analysis failed."""


@dataclass
class Outcome:
    """Why an analysis ``failed``; empty if it did not."""

    failed: str = ""


def expect(folder: Path, missing: Mapping[str, str]) -> None:
    """Note which analyses are to come: name → what a reader would miss, as ``attention was not analysed``.

    What is done stays done. Entries of analyses that this run no longer has go, and those of the report's figures.

    Raises:
        UserError: the directory cannot be written.
    """
    before = _states(folder)
    after = {name: {"missing": words, "state": PENDING} for name, words in missing.items()}
    after |= {name: state for name, state in before.items() if name in missing and state["state"] == DONE}
    after |= {name: state for name, state in before.items() if state.get("part_of") in missing}
    if after or before:
        write_json(folder / FILE, after)


@contextmanager
def guarded(folder: Path, name: str, missing: str, *, part_of: str | None = None) -> Iterator[Outcome]:
    """Turn whatever exception the block raises into ``Outcome.failed`` and the state of ``name``.

    KeyboardInterrupt and SystemExit still end the run. ``missing`` as in ``expect``. A part of another analysis
    (``part_of``) is noted only if it fails, and forgotten when the analysis begins again. If the state itself cannot be
    written, nothing is raised: it stays pending.
    """
    _note(folder, name, {"missing": missing, "state": PENDING} if part_of is None else None, again=True)
    outcome = Outcome()
    try:
        yield outcome
    except Exception as error:
        outcome.failed = f"{missing}: {_reason(error)} ({_traced(folder, name, error)}the same command tries it again)"
        entry = {"missing": missing, "state": FAILED, "sentence": outcome.failed}
        _note(folder, name, entry | ({} if part_of is None else {"part_of": part_of}))
    else:
        if part_of is None:
            _note(folder, name, {"missing": missing, "state": DONE})
    if outcome.failed:
        _free()  # what the error's frames held


def unfinished(folder: Path) -> list[str]:
    """The names of analyses that are pending or failed."""
    return [name for name, one in _states(folder).items() if one["state"] != DONE]


def failures(folder: Path, part_of: str | None = None) -> list[str]:
    """The sentences of what failed; of the parts of one analysis alone where ``part_of`` is given."""
    failed = [one for one in _states(folder).values() if one["state"] == FAILED]
    return [str(one["sentence"]) for one in failed if part_of is None or one.get("part_of") == part_of]


def missing(folder: Path) -> list[str]:
    """What a reader of the run misses, in sentences: what failed, and what is not there yet."""
    yet = "yet: the run is still at work or was cut off, and the same command goes on"
    pending = [f"{one['missing']} {yet}" for one in _states(folder).values() if one["state"] == PENDING]
    return [*failures(folder), *pending]


def mark_finished(folder: Path) -> bool:
    """Marks the run as finished where its arms are reported and no analysis is missing; whether that is so.

    Where it is not, the folder is one of ``UNFINISHED``, which the command's exit code tells.

    Raises:
        UserError: the directory cannot be written.
    """
    identity = read_object(folder / IDENTITY)
    complete = bool(read_object(folder / "environment.json").get("finished")) and not unfinished(folder)
    if complete and identity and not identity.get("finished"):
        write_json(folder / IDENTITY, identity | {"finished": True})
    (UNFINISHED.discard if complete else UNFINISHED.add)(folder)
    return complete


def _states(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries by name; what is no entry, as in a file from elsewhere, is passed over."""
    entries = read_object(folder / FILE)
    return {name: one for name, one in entries.items() if isinstance(one, dict) and {"missing", "state"} <= one.keys()}


def _note(folder: Path, name: str, entry: Mapping[str, Any] | None, *, again: bool = False) -> None:
    """Replaces the entry of ``name`` (None: removes it); if it begins ``again``, those of its parts go."""
    before = _states(folder)
    after = {one: value for one, value in before.items() if not (again and value.get("part_of") == name)}
    after.pop(name, None)
    after |= {} if entry is None else {name: dict(entry)}
    if after != before:
        with suppress(UserError):
            write_json(folder / FILE, after)


def _reason(error: Exception) -> str:
    """One line: a user's mistake in its own words, anything else with its type."""
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = lines[0] if lines else "without a message"
    short = words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    return " ".join(lines) if isinstance(error, UserError) else f"{type(error).__name__}: {short}"


def _traced(folder: Path, name: str, error: Exception) -> str:
    """Writes the traceback; where it is, as the beginning of a remark."""
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
