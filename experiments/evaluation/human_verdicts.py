"""People's verdicts in a run: how many there are, and how far the people agree."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.agreement import pairwise_kappa
from experiments.report.text import lines
from experiments.runs.labels import Labels, Record, answer_id


def agreement_of_raters(records: Sequence[Record], labels: Labels) -> dict[str, Any]:
    """Return raters and pairwise κ; an answer that several arms gave to a case counts once.

    ``records`` are the run's, labelled or not. Labels of other answers do not count.
    """
    answers = {(record["case"], record["arm"]): answer_id(record) for record in records if record.get("response")}
    here = set(answers.values())
    given: dict[str, dict[str, str]] = defaultdict(dict)
    for label in labels.labels:
        answer = label.answer or answers.get((label.case, label.arm), "")
        if answer in here:
            given[answer].setdefault(label.annotator, label.verdict.value)
    return {
        "raters": sorted({rater for one in given.values() for rater in one}),
        "pairwise_kappa": pairwise_kappa(given),
    }


def share_sentence(used: int, records: int, agreement: Mapping[str, Any]) -> str:
    """Return how many verdicts of a run are people's, and how far these agree (``agreement_of_raters``)."""
    (sentence,) = lines("labels", people=agreement, used=used, records=records)
    return sentence
