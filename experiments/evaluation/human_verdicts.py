"""People's verdicts in a run: how many there are, and how far the people agree."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from experiments.metrics.agreement import krippendorff_alpha, pairwise_kappa
from experiments.runs.labels import Labels, Record, answer_id


def agreement_of_raters(records: Sequence[Record], labels: Labels) -> dict[str, Any]:
    """Raters, α and pairwise κ; an answer that several arms gave to a case counts once.

    ``records`` are those of the run, labelled or not. Labels of answers that it does not hold count nowhere.
    """
    of = {(record["case"], record["arm"]): answer_id(record) for record in records if record.get("response")}
    known = set(of.values())
    given: dict[str, dict[str, str]] = defaultdict(dict)
    for label in labels.labels:
        answer = label.answer or of.get((label.case, label.arm), "")
        if answer in known:
            given[answer].setdefault(label.annotator, label.verdict.value)
    return {
        "raters": sorted({rater for one in given.values() for rater in one}),
        "krippendorff_alpha": krippendorff_alpha([list(one.values()) for one in given.values()]),
        "pairwise_kappa": pairwise_kappa(given),
    }


def agreement_sentence(found: dict[str, Any]) -> str:
    """The contents of ``agreement_of_raters`` in a sentence."""
    alpha = found["krippendorff_alpha"]
    words = (
        "Krippendorff's α is not defined: no two labels to compare, or all the same"
        if alpha is None
        else f"Krippendorff's α {alpha:.3f} (nominal)"
    )
    pairs = [
        f"{' and '.join(pair['raters'])} κ {pair['kappa']:.3f} on {pair['n']} answers"
        for pair in found["pairwise_kappa"]
        if pair["kappa"] is not None
    ]
    return "; ".join([words, *pairs]) + "."


def share_sentence(used: int, records: int, found: dict[str, Any]) -> str:
    """How many verdicts of a run are people's, and how far these agree."""
    who = ", ".join(found["raters"]) or "nobody"
    return f"{used:,} of {records:,} verdicts are people's ({who}), the others the judge's. {agreement_sentence(found)}"
