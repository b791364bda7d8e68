"""Does an answer depend on its batch? Some cases are asked in a batch of one, and compared with their records.

In 16 bits a batch rounds otherwise than a single prompt. A method of the user's may use statistics of its batch. Only
such arms are checked; ``batch_check.json`` has the counts.
"""

from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.images import BadImage, open_pictures
from experiments.evaluation.case_batches import prompt_of
from experiments.evaluation.controls import BASELINE
from experiments.runs import provenance, record_fields
from experiments.types import Sample

FILE = "batch_check.json"
CASES = 24  # that are asked alone, evenly from those with an answer


def checked_arms(study: Any) -> list[str]:
    """Return the arms whose answers may depend on their batch: in 16 bits the two compared, and the user's methods."""
    if study.vlm is None or study.run.endpoint is not None or study.run.batch_size == 1:
        return []
    narrow = getattr(study.vlm.dtype, "itemsize", 4) < 4
    compared = {BASELINE, study.run.arm} if narrow else set()
    return [arm for arm in study.methods if arm in {*compared, *provenance.code(study.run.arms)}]


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
