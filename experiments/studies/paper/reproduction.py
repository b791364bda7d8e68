"""reproduce.sh of a run, and the comparison of the run that it makes with the numbers of the paper's folder."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.evaluation.finished_runs import sha256
from experiments.report.next_commands import PROGRAM, typed, without
from experiments.runs.provenance import HUB_ID, without_paths
from experiments.runs.resumption import read_object
from experiments.runs.saved_run import SavedRun
from interp.errors import UserError

MANIFEST, METRICS, SETTINGS = "manifest.sha256", "metrics.json", "settings.json"
TOLERANCE = 1e-6
SHOWN = 5  # differences in an error
COMMIT = re.compile(r"[0-9a-f]{7,64}")
IDENTITY = ("commit", "model", "benchmark", "judge", "versions", "device")  # what may explain other numbers
SCRIPT = """#!/usr/bin/env bash
# Asks again what the paper's run asked, and compares the numbers with metrics.json beside this file, to 1e-6.
# Code: forestlens, commit {commit}. Type it where that is installed:
#     bash reproduce.sh
# If the command below names files, type it in the folder from which they are found. PYTHON names another python.
set -euo pipefail
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
out=$(mktemp -d)
"${{PYTHON:-python}}" {command} output_root="'$out'"
"${{PYTHON:-python}}" {compare} run="'$out'" task.against="'$here'"
"""


def script(saved: SavedRun) -> str:
    """reproduce.sh; every word of the run's command is quoted, and the revision of a model of the hub is the run's."""
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
    """What decides the run's numbers, without a path of this machine."""
    kept = ("commit", "dirty", "model", "benchmark", "judge", "versions", "device", "threads", "processes", "config",
            "config_hash", "family")  # fmt: skip
    return dict(without_paths({key: saved.environment.get(key) for key in kept}))


def compare(made: Path, folder: Path) -> list[str]:
    """Sentences on the run in or below ``made`` beside the numbers in a paper's ``folder``.

    Raises:
        UserError: ``folder`` is none, or was changed; there is no such run; or a number differs by more than 1e-6.
    """
    _check_unchanged(folder)
    expected, asked = read_object(folder / METRICS), read_object(folder / SETTINGS)
    found = _run_in(made, asked.get("config_hash"))
    ours = settings(SavedRun(found, {}, read_object(found / "environment.json"), []))
    other = [key for key in IDENTITY if ours[key] != asked.get(key)]
    notes = [f"another {', '.join(other)} than the paper's ({SETTINGS})"] if other else []
    if differing := list(differences(expected, read_object(found / METRICS))):
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise UserError(f"{found}: {len(differing)} values are other than in {folder / METRICS}: "
                        f"{'; '.join([*differing[:SHOWN], *notes])}{more}; ask the same code, model and cases again"
                        )  # fmt: skip
    return [f"{found / METRICS}: the numbers are those of {folder}, to {TOLERANCE:g}", *notes]


def _check_unchanged(folder: Path) -> None:
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        for digest, name in (line.split("  ", 1) for line in lines):
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()) or sha256(path) != digest:
                raise UserError(f"{path} is not the file that {MANIFEST} names; take the paper's folder as it came")
    except (OSError, ValueError) as error:
        raise UserError(f"task.against={folder} is no folder that task=paper wrote ({error}); give one") from None


def _run_in(folder: Path, config_hash: Any) -> Path:
    """The one run in or below ``folder``; of several the one of this configuration."""
    runs = sorted(path.parent for path in folder.rglob(METRICS) if read_object(path.parent / "environment.json"))
    same = [run for run in runs if read_object(run / "environment.json").get("config_hash") == config_hash]
    chosen = same if len(same) == 1 else runs
    if len(chosen) != 1:
        raise UserError(f"run={folder} holds {len(chosen)} finished runs to compare with; give the folder of one")
    return chosen[0]


def differences(expected: Any, found: Any, at: str = "") -> Iterator[str]:
    """Where ``found`` has another value than ``expected``, as ``arms.vcd.auroc: 0.6 and 0.7``; numbers to 1e-6."""
    numbers = [isinstance(one, int | float) and not isinstance(one, bool) for one in (expected, found)]
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif all(numbers):
        if not math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{at}: {expected} and {found}"
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        yield f"{at}: {json.dumps(expected)[:60]} and {json.dumps(found)[:60]}"
