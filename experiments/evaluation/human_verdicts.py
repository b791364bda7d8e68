"""People's verdicts in a run: how many there are, and how far the people agree."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from experiments.metrics.agreement import pairwise_kappa
from experiments.runs.labels import Labels, Record, answer_id


def agreement_of_raters(records: Sequence[Record], labels: Labels) -> dict[str, Any]:
    """Return raters and pairwise κ; an answer that several arms gave to a case counts once.

    ``records`` are the run's, labelled or not. Labels of other answers do not count.
    """
    answers = {answer_id(record) for record in records if record.get("response")}
    given: dict[str, dict[str, str]] = defaultdict(dict)
    for label in labels.labels:
        if label.answer in answers:
            given[label.answer].setdefault(label.annotator, label.verdict.value)
    raters = sorted({rater for verdicts in given.values() for rater in verdicts})
    return {"raters": raters, "pairwise_kappa": pairwise_kappa(given)}
