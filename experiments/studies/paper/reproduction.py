"""Writes reproduce.sh of a run, and compares its new run with the results table of the paper's folder."""

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.evaluation.finished_runs import sha256
from experiments.report.next_commands import PROGRAM, typed, without
from experiments.report.saved_run import SavedRun
from experiments.runs import analyses
from experiments.runs.provenance import HUB_ID, without_paths
from experiments.runs.results_table import COLUMNS, FILE, KEY, Results, Row, read_results
from experiments.runs.store import read_object
from interp.errors import UserError

MANIFEST, SETTINGS = "manifest.sha256", "settings.json"
TOLERANCE = 1e-6
MOST = 5  # differences in an error
COMMIT = re.compile(r"[0-9a-f]{7,64}")
IDENTITY = ("commit", "model", "benchmark", "judge", "versions", "device")  # what may explain other numbers
SCRIPT = """#!/usr/bin/env bash
# Runs the paper's study again, and compares its results with results.csv beside this file, to 1e-6.
# Code: forestlens, commit {commit}. Type this where it is installed:
#     bash reproduce.sh
# If the command below names files, type it in the folder that has them. PYTHON names another python.
set -euo pipefail
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
out=$(mktemp -d)
"${{PYTHON:-python}}" {command} output_root="'$out'" || echo "The study ended with errors. What it has is compared."
"${{PYTHON:-python}}" {compare} run="'$out'" task.against="'$here'"
"""


def script(saved: SavedRun) -> str:
    """Return reproduce.sh. Every word of the run's command is quoted; a model of the hub gets the run's revision."""
    model, commit = saved.environment.get("model") or {}, str(saved.environment.get("commit"))
    words = without(typed(saved.environment) or (), "output_root", "fresh")
    revision = str(model.get("revision"))
    if HUB_ID.fullmatch(str(model.get("path"))) and COMMIT.fullmatch(revision):
        words = [*without(words, "model.revision"), f"model.revision={revision}"]
    return SCRIPT.format(
        commit=(commit if COMMIT.fullmatch(commit) else "not recorded")
        + (", with changes that no commit has" if saved.environment.get("dirty") else ""),
        command=shlex.join([*PROGRAM[1:], *words]),
        compare=shlex.join([*PROGRAM[1:], "task=paper"]),
    )


def settings(saved: SavedRun) -> dict[str, Any]:
    """Return what decides the run's numbers, without a path of this machine."""
    names = ("commit", "dirty", "model", "benchmark", "judge", "versions", "device", "threads", "processes", "config",
             "config_hash", "family")  # fmt: skip
    return dict(without_paths({key: saved.environment.get(key) for key in names}))


def compare(made: Path, folder: Path) -> list[str]:
    """Return sentences on the run in or below ``made``, compared with the numbers in a paper's ``folder``.

    If an analysis of the run failed, its rows are missing: the others are compared, and a sentence names these.

    Raises:
        UserError: ``folder`` is not a paper's folder, or was changed. There is no run in ``made``. A row differs. A row
            is missing although every analysis of the run was done.
    """
    _check_unchanged(folder)
    expected, other = read_results(folder), read_object(folder / SETTINGS)
    run = _run_in(made, other.get("config_hash"))
    results, environment = read_results(run), read_object(run / "environment.json")
    ours = settings(SavedRun(run, results, {}, environment, []))
    unlike = [key for key in IDENTITY if ours[key] != other.get(key)]
    notes = [f"another {', '.join(unlike)} than the paper's ({SETTINGS})"] if unlike else []
    there = {row[KEY] for row in results}
    absent = [_name(row) for row in expected if row[KEY] not in there]
    excused = absent and analyses.missing(run)
    differing = [*differences(expected, results), *([] if excused else [f"{name} is missing" for name in absent])]
    if differing:
        more = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
        raise UserError(
            f"{run}: {len(differing)} rows differ from {folder / FILE}: "
            f"{'; '.join([*differing[:MOST], *notes])}{more}; repeat it with the same code, model and cases"
        
                        )  # fmt: skip
    number = len(expected) - len(absent)
    lines = [f"{run / FILE}: {number} of {len(expected)} rows are those of {folder}, to {TOLERANCE:g}"]
    if excused:
        lines += [f"Missing rows: {', '.join(absent[:MOST])}{' …' if len(absent) > MOST else ''}.", *excused]
    return [*lines, *notes]


def _check_unchanged(folder: Path) -> None:
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        for digest, name in (line.split("  ", 1) for line in lines):
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()) or sha256(path) != digest:
                raise UserError(f"{path} has another hash than in {MANIFEST}; give the unchanged folder")
    except (OSError, ValueError) as error:
        raise UserError(f"task.against={folder} is no folder that task=paper wrote ({error}); give one") from None


def _run_in(folder: Path, config_hash: Any) -> Path:
    """Return the one run in or below ``folder``; of several the one with this configuration."""
    runs = sorted(path.parent for path in folder.rglob(FILE) if read_object(path.parent / "environment.json"))
    same = [run for run in runs if read_object(run / "environment.json").get("config_hash") == config_hash]
    chosen = same if len(same) == 1 else runs
    if len(chosen) != 1:
        raise UserError(f"run={folder} has {len(chosen)} finished runs to compare with; give the folder of one run")
    return chosen[0]


def _name(row: Row) -> str:
    parts = (row.arm, row.against, row.quantity, row.subset, row.group, row.rule)
    return " ".join(filter(None, parts))


def differences(expected: Results, results: Results) -> Iterator[str]:
    """Yield how rows of both differ, as ``vcd auroc: value 0.6 and 0.7``; numbers to 1e-6."""
    rows = {row[KEY]: row for row in results}
    for row in expected:
        other = rows.get(row[KEY], row)
        parts = [f"{column} {first} and {second}" for column, first, second in zip(COLUMNS, row, other, strict=True)
                 if column != "run" and not _equal(first, second)]  # fmt: skip
        if parts:
            yield f"{_name(row)}: {', '.join(parts)}"


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(first == second)
