"""What a run says of itself: environment.json and batch_check.json.

Does an answer depend on its batch? Some cases are asked in a batch of one, and compared with their records. In 16 bits
a batch rounds otherwise than a single prompt. A method of the user's may use statistics of its batch. Only such arms
are checked; ``batch_check.json`` has the counts.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.images import BadImage, open_pictures
from experiments.config import Run
from experiments.evaluation.cases import prompt_of
from experiments.evaluation.fitting import BASELINE
from experiments.runs import record_fields
from experiments.runs.responses import Responses
from experiments.types import Loaded, Sample

if TYPE_CHECKING:
    from interp.vlm import VLM


def describe(run: Run, vlm: "VLM | None", loaded: Loaded, complete: int) -> dict[str, Any]:
    """Return the contents of environment.json, before the run has finished; ``complete`` counts cases without a
    limit.
    """
    return {
        **record_fields.machine(vlm),
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
        "code": record_fields.code(run.arms),
        "note": run.note,
        "command": record_fields.command(),
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
    model["title"] = record_fields.model_title(model)
    if adapters := record_fields.adapters(run.arms):
        model["adapters"] = adapters
    if brought:
        model["responses"] = {arm: {"name": one.name, "revision": one.fingerprint()} for arm, one in brought.items()}
    return model


FILE = "batch_check.json"
CASES = 24  # that are asked alone, evenly from those with an answer


def checked_arms(study: Any) -> list[str]:
    """Return the arms whose answers may depend on their batch: in 16 bits the two compared, and the user's methods."""
    if study.vlm is None or study.run.endpoint is not None or study.run.batch_size == 1:
        return []
    narrow = getattr(study.vlm.dtype, "itemsize", 4) < 4
    compared = {BASELINE, study.run.arm} if narrow else set()
    return [arm for arm in study.methods if arm in {*compared, *record_fields.code(study.run.arms)}]


def check_batches(study: Any) -> dict[str, dict[str, int]]:
    """Ask some cases in a batch of one, on rank 0. Return by arm how many were asked and how many differ.

    ``answers`` counts other texts, ``verdicts`` other verdicts.
    """
    if not study.store.launch.first:
        return {}
    counts: dict[str, dict[str, int]] = {}
    samples = {sample.id: sample for sample in study.samples}
    lines = record_fields.current(study.store.records())
    for arm in checked_arms(study):
        given = [line for line in lines if line["arm"] == arm and line["response"] and line["case"] in samples]
        chosen = given[:: max(1, len(given) // CASES)][:CASES]
        if chosen:
            counts[arm] = _compared(study, arm, {line["case"]: line for line in chosen}, samples)
    if counts:
        study.store.write_json(FILE, counts)
    return counts


def _compared(
    study: Any, arm: str, given: Mapping[str, Mapping[str, Any]], samples: Mapping[str, Sample]
) -> dict[str, int]:
    answering, counts = study.answering, {"n": 0, "answers": 0, "verdicts": 0}
    with study.console.status(f"{arm}: {len(given)} cases asked alone"):
        for case, before in given.items():
            sample = samples[case]
            try:
                picture = open_pictures(sample)
            except BadImage:
                continue
            alone = answering.generate(arm, study.methods[arm], [prompt_of(sample, picture)])
            (line,) = answering.judged([sample], arm, alone)
            counts["n"] += 1
            counts["answers"] += line["response"] != before["response"]
            counts["verdicts"] += line["verdict"] != before["verdict"]
    return counts
