"""What is served, by name: the model with each arm's method, the one under study first and the plain model last.

Methods that learn, or that are fitted, are read from a finished run. Imports neither torch nor transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.config import Run
from experiments.evaluation.arms import DEVELOPMENT
from experiments.evaluation.fitting import FOLDER, fitted, is_fitted
from experiments.runs import record_fields
from experiments.runs.responses import Responses
from experiments.runs.store import complete_lines, read_object
from interp.errors import UserError
from mitigation.method import TrainableMethod

BASELINE = "baseline"


def served(run: Run) -> dict[str, Any]:
    """Return the answering method by its name in ``/v1/models``, checked before any weights are loaded.

    Raises:
        UserError: an arm brings its own responses, or has yet to learn and no run is given that it did so in.
    """
    order = sorted(run.arms, key=lambda arm: (arm == BASELINE, arm != run.arm))
    return {_name(run, arm): _ready(run, arm, run.arms[arm]) for arm in order}


def check_model(run: Run, vlm: Any) -> None:
    """Refuse a method that was learned on another model than ``vlm``.

    Raises:
        UserError: they differ.
    """
    if _source(run) is None or not any(map(_learns, run.arms.values())):
        return
    model = read_object(Path(str(_source(run))) / "environment.json").get("model") or {}
    if other := vlm.other_than(model):
        raise UserError(
            f"run={_source(run)} is of {model.get('name')}, which differs from {vlm.name} in {other}; a learned method "
            "belongs to its model; give a run of this model"
        )


def _source(run: Run) -> str | None:
    """Return the folder of the run in which arms learned, an option of the task."""
    return getattr(run.task, "run", None)


def _name(run: Run, arm: str) -> str:
    return run.model.name if arm == BASELINE else f"{run.model.name}+{arm}"


def _learns(method: Any) -> bool:
    return isinstance(method, TrainableMethod) or is_fitted(method)


def _ready(run: Run, arm: str, method: Any) -> Any:
    if isinstance(method, Responses):
        raise UserError(f"{arm} has responses made elsewhere, which cannot answer new questions; remove it")
    if not _learns(method):
        return method
    if _source(run) is None:
        raise UserError(
            f"{arm} learns before it answers; give the run of a study with this arm on cases to learn from: "
            "run=outputs/<name>/<time>"
        )
    folder = Path(str(_source(run)))
    saved = read_object(folder / "environment.json")
    if not saved.get("finished"):
        raise UserError(
            f"run={folder} has no finished run; give the directory of a finished run: outputs/<name>/<time>"
        )
    _check_settings(run, arm, saved)
    read = _read_learned if isinstance(method, TrainableMethod) else _fitted
    return read(folder, arm, method, saved)


def _check_settings(run: Run, arm: str, saved: Mapping[str, Any]) -> None:
    arms = (saved.get("config") or {}).get("arms") or {}
    if arm not in arms:
        raise UserError(f"run={_source(run)} has no arm {arm} (it has {', '.join(arms) or 'none'}); give one that has")
    here = json.loads(json.dumps(run.config["arms"][arm], default=str))
    other = [key for key in sorted({*here, *arms[arm]}) if here.get(key) != arms[arm].get(key)]
    if other:
        key = other[0]
        raise UserError(
            f"run={_source(run)} has {arm} with {key}={arms[arm].get(key)}, and {key}={here.get(key)} is asked for; "
            "give it the same settings, or another run"
        )


def _read_learned(folder: Path, arm: str, method: TrainableMethod, _: Mapping[str, Any]) -> Any:
    """Return the method as the run in ``folder`` learned it.

    Raises:
        UserError: the run has no single file of what the arm learned.
    """
    name = Path(arm).name  # a run's folder may be a stranger's, and an arm of it be called ../../x
    file = folder / FOLDER / f"{name}.safetensors"
    if not file.is_file():
        in_folds = any(file.parent.glob(f"{name}-without-fold-*.safetensors"))
        why = "was learned in folds, so there is no single one" if in_folds else "has no saved file"
        raise UserError(f"{arm} {why} in run={folder}; give the run of a study on a benchmark with a development split")
    return method.read(file)


def _fitted(folder: Path, arm: str, method: Any, saved: Mapping[str, Any]) -> Any:
    """Return the constant of a control, fitted again on the development split as that study did."""
    answers = [line for *_, line in complete_lines(folder / DEVELOPMENT) if isinstance(line, dict)]
    if not answers:
        raise UserError(
            f"{arm} was fitted in folds in run={folder}, so there is no single method; give the run of a study on a "
            "benchmark with a development split"
        )
    return fitted(method, record_fields.current(answers), study=str(saved.get("arm_under_study")))
