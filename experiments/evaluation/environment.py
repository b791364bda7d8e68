"""What a run says of itself: environment.json."""

from typing import TYPE_CHECKING, Any

from experiments.config import Run
from experiments.runs import provenance, record_fields
from experiments.runs.responses import Responses
from experiments.types import Loaded

if TYPE_CHECKING:
    from interp.vlm import VLM


def describe(run: Run, vlm: "VLM | None", loaded: Loaded, complete: int) -> dict[str, Any]:
    """Return the contents of environment.json, before the run has finished; ``complete`` counts cases without a
    limit.
    """
    return {
        **provenance.machine(vlm),
        "seed": run.seed,
        "model": _model(run, vlm),
        "benchmark": {
            "name": run.benchmark.name,
            "manifest": loaded.manifest,
            "n": len(loaded.samples),
            "complete": complete,
            "missing": loaded.missing,
        },
        "judge": run.judge.name,
        "arm_under_study": run.arm,
        "code": provenance.code(run.arms),
        "note": run.note,
        "command": provenance.command(),
        "config": run.config if vlm is not None else run.config | {"model": None},
        "config_hash": run.config_hash,
        "started": record_fields.timestamp(),
        "finished": None,
    }


def _model(run: Run, vlm: "VLM | None") -> dict[str, Any]:
    brought = {arm: method for arm, method in run.arms.items() if isinstance(method, Responses)}
    model: dict[str, Any] = {"path": None, "revision": None, "dtype": None}
    if vlm is None:
        studied = brought[run.arm]
        model |= {"name": studied.name, "revision": studied.fingerprint(), "made_elsewhere": True}
    elif run.endpoint is not None:
        model |= {"name": vlm.name, "endpoint": run.endpoint.identity()}
    else:
        dtype = str(vlm.dtype).removeprefix("torch.")
        model |= {"name": vlm.name, "path": run.weights.path, "revision": vlm.revision, "dtype": dtype}
        model["preprocessing"] = vlm.preprocessing
        if spellings := getattr(vlm, "answer_spellings", None):
            model["answers_counted"] = spellings
        if rounded := getattr(vlm, "rounded", ""):
            model["rounded"] = rounded
    model["title"] = provenance.model_title(model)
    if adapters := provenance.adapters(run.arms):
        model["adapters"] = adapters
    if brought:
        model["responses"] = {arm: {"name": one.name, "revision": one.fingerprint()} for arm, one in brought.items()}
    return model
