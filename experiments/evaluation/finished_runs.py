"""Finished runs as input to other tasks, and the folders that these write."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config import Run, digest
from experiments.report.build import build
from experiments.runs.results_table import Results
from experiments.runs.store import PREDICTIONS, open_run
from interp.errors import UserError


def needed(run: str | None, task: str) -> Path:
    """Return the directory ``run``, which ``task`` cannot do without.

    Raises:
        UserError: there is none.
    """
    if run is None:
        raise UserError(f"run=<dir>: task={task} needs a run's directory; give one, outputs/<name>/<time>")
    return Path(run)


def derived(
    run: Run,
    name: str,
    sources: Sequence[str],
    predictions: Sequence[Mapping[str, Any]],
    files: Mapping[str, Mapping[str, Any]],
    results: Results,
    *,
    pictures: Sequence[Path],
) -> Path:
    """Write a run made of others' answers, and build its report; the same command continues what was cut off.

    ``sources`` say what it was made of and by whom. ``files`` are its JSON files, ``results`` its results table,
    ``pictures`` the runs whose thumbnails are copied.
    """
    with open_run(run.output_root, name, run.config, digest([*sources, digest(predictions)]), fresh=run.fresh) as store:
        (store.path / PREDICTIONS).unlink(missing_ok=True)  # of a command that was cut off
        store.append(predictions)
        for file, contents in files.items():
            (store.path / file).parent.mkdir(exist_ok=True)
            store.write_json(file, contents)
        results.write(store.path)
        for folder in pictures:
            if (folder / "thumbnails").is_dir():
                shutil.copytree(folder / "thumbnails", store.path / "thumbnails", dirs_exist_ok=True)
        page = build(store.path)
        store.finish()
    return page


def fill(folder: Path, contents: Mapping[str, str | bytes | Path]) -> None:
    """Empty ``folder`` and write ``contents`` into it: texts, bytes, and copies of the files at paths, by name.

    Raises:
        UserError: it cannot be written.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, path)
            else:
                path.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror or error}); make room") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
