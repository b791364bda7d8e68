"""Finished runs as input to other tasks: read from their directories, or run first."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.config import Run, digest
from experiments.evaluation import study
from experiments.report.build import build
from experiments.runs.provenance import model_title
from experiments.runs.resumption import PREDICTIONS, open_run, read_object
from interp.errors import UserError


class Finished(NamedTuple):
    """A finished run: its model as reports call it, its benchmark, and the contents of its metrics.json."""

    model: str
    benchmark: str
    metrics: Mapping[str, Any]


def studied(run: Run) -> Path:
    """Runs the study of this configuration and returns its directory.

    Raises:
        UserError: the study did not finish, as when requests failed in transport.
    """
    folder = study.run(run)
    if not read_object(folder / "environment.json").get("finished"):
        raise UserError(
            f"the study in {folder} is unfinished; run the same command again, which goes on where it ended"
        )
    return folder


def read(folder: Path) -> Finished:
    """Model, benchmark and metrics of a run's directory.

    Raises:
        UserError: the directory holds no finished run.
    """
    metrics, environment = read_object(folder / "metrics.json"), read_object(folder / "environment.json")
    if not isinstance(metrics.get("arms"), dict) or not environment.get("finished"):
        raise UserError(f"{folder}: holds no finished run; give directories outputs/<name>/<time> of finished studies")
    return Finished(
        model_title(environment.get("model")), str((environment.get("benchmark") or {}).get("name")), metrics
    )


def arm_of(metrics: Mapping[str, Any], wanted: str) -> str:
    """``wanted``, or the arm under study where the baseline is wanted of a run without one, as of responses."""
    arms = metrics.get("arms") or {wanted: None}
    return str(metrics.get("study")) if wanted == "baseline" and wanted not in arms else wanted


def needed(run: str | None, task: str) -> Path:
    """The directory ``run``, which ``task`` cannot do without.

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
    *,
    pictures: Sequence[Path],
) -> Path:
    """Writes a run made of others' answers, and gives its report; the same command continues what was cut off.

    ``sources`` say what it was made of and by whom, ``files`` are its JSON files, ``pictures`` the runs whose
    thumbnails it takes.
    """
    with open_run(run.output_root, name, run.config, digest([*sources, digest(predictions)]), fresh=run.fresh) as store:
        (store.path / PREDICTIONS).unlink(missing_ok=True)  # of a command that was cut off
        store.append(predictions)
        for file, contents in files.items():
            (store.path / file).parent.mkdir(exist_ok=True)
            store.write_json(file, contents)
        for folder in pictures:
            if (folder / "thumbnails").is_dir():
                shutil.copytree(folder / "thumbnails", store.path / "thumbnails", dirs_exist_ok=True)
        page = build(store.path)
        store.finish()
    return page


def given(run: str | None, runs: Sequence[str] | None = None) -> list[Path]:
    """The directories of ``runs``, else of ``run``, as a task's options give them; empty where none is given."""
    return [Path(folder) for folder in runs or ([run] if run else [])]
