"""Records of the conditions → the contents of words_and_picture.json, and the rule by which a model is called blind."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from experiments.benchmarks.iconworld.parts import PARTS, TAG
from experiments.metrics.findings import Answer, Finding, plain
from experiments.metrics.parts import HELD_OUT, by_part, headline
from experiments.metrics.statistical_tests import wilson
from experiments.metrics.yes_no.results import evaluate
from experiments.studies.words_and_picture.conditions import CONDITIONS, PICTURE, POINTING

ALL = "all"
BLIND = "blind"
WORDS_SUFFICE = 0.85  # AUROC in words, pointing: below it the model does not know the answer, or what "this" means
LOWER_BY = 0.10  # how much lower the AUROC with the picture must be
WORDS, LOWER, INTERVAL = "words suffice", "lower with the picture", "interval below 0"  # the conditions of the rule


def summarise(
    records: Sequence[Mapping[str, Any]], captions: Mapping[str, bool], *, seed: int, draws: int
) -> dict[str, Any]:
    """The contents of words_and_picture.json but for sentences.

    Args:
        records: of the scored cases under every condition; their ``arm`` is the condition.
        captions: by case, whether its caption is right.
    """
    frame = pd.DataFrame(records)
    measure = partial(evaluate, seed=seed, draws=draws, baseline=POINTING, study=PICTURE)
    parts = {ALL: headline(measure(frame)), **by_part(frame, measure)}
    part_of = {record["case"]: (record.get("tags") or {}).get(TAG) for record in records}
    for name, block in parts.items():
        block["captions"] = _captions(captions, [case for case, part in part_of.items() if _belongs(part, name)])
    findings = [blindness(block, name) for name, block in parts.items()]
    return plain({
        "conditions": CONDITIONS,
        "rule": {"words_suffice": WORDS_SUFFICE, "lower_by": LOWER_BY},
        "parts": parts,
        "claim_on": held_out_of(parts),
        "findings": [finding.as_json() for finding in findings],
    })  # fmt: skip


def held_out_of(parts: Mapping[str, Any]) -> str | None:
    """The part that the claim is made on: all held-out cases; None where it is not known which those are."""
    unseen = [name for name in parts if name in PARTS[1:]]
    return HELD_OUT if HELD_OUT in parts else unseen[0] if unseen else None


def blindness(block: Mapping[str, Any], part: str) -> Finding:
    """YES where words suffice and the picture does not, by ``WORDS_SUFFICE`` and ``LOWER_BY``; else NOT_SHOWN.

    TOO_FEW and CANNOT_TELL as of the difference in AUROC, picture − words. ``failed`` in the evidence names the
    conditions that are not met.
    """
    words = block["arms"][POINTING]["auroc"]
    entry = block["comparisons"][PICTURE]["delta"]["auroc"]
    if entry is None or words is None:
        return Finding(BLIND, Answer.CANNOT_TELL, {"words": words}, part)
    answer = Answer(entry["statement"])
    met = {WORDS: words >= WORDS_SUFFICE, LOWER: entry["value"] <= -LOWER_BY, INTERVAL: answer is Answer.FELL}
    evidence = {
        "words": words,
        "picture": entry["to"],
        "difference": entry["value"],
        "failed": [condition for condition, holds in met.items() if not holds],
        "n": entry["n"],
    }
    unknown = answer if answer in (Answer.TOO_FEW, Answer.CANNOT_TELL) else None
    return Finding(BLIND, unknown or (Answer.YES if all(met.values()) else Answer.NOT_SHOWN), evidence, part)


def _belongs(part: str | None, name: str) -> bool:
    return name == ALL or part == name or (name == HELD_OUT and part in PARTS[1:])


def _captions(right: Mapping[str, bool], cases: Sequence[str]) -> dict[str, Any]:
    known = [right[case] for case in cases if case in right]
    rate = sum(known) / len(known) if known else None
    return {"rate": rate, "interval": wilson(sum(known), len(known)), "n": len(known), "n_of": len(cases)}
