"""words_and_picture.json's ``transplant`` as sentences: what other states at "this" do to the verdict."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import fixed, fixed_interval

TITLE = "Another state at “this”"
NOTE = (
    "After one decoder layer (from 0) the state at “this” in the run with the picture is replaced, and the margin is "
    "read: by the noun's own state in the run in words (“the cockroach”, last token), by that of the other thing of "
    "the pair (truth reversed), or by the mean over the nouns of all cases. Verdicts are the signs of margins. "
    "Differences are paired with the picture as it is; what is said of them is by intervals that hold for all states "
    "and layers at once. Of the other thing's state, AUROC is that of the case's own truth."
)
MOVED, FOLLOWS = "auroc with another state at this", "verdicts follow the state"  # asked


def sentences(result: Mapping[str, Any]) -> list[str]:
    """The cases, and what the verdict follows; what each state does, and what is said of it, is in the table."""
    return [_entered(result), *_follows(result)]


def _entered(result: Mapping[str, Any]) -> str:
    cases = result["cases"]
    return (
        f"{cases['entered']} of {cases['of']} scored cases entered, those whose request says “this”; the other thing "
        f"of the pair is known in {cases['with_other']}. With the picture as it is their AUROC is "
        f"{fixed(result['picture']['auroc'], 3)}."
    )


def _follows(result: Mapping[str, Any]) -> list[str]:
    """Where the verdicts go with the other thing's truth."""
    rows = [row for row in result["transplants"] if row["state"] == "other"]
    answers = {row["layer"]: found(result["findings"], FOLLOWS, f"other@{row['layer']}") for row in rows}
    below = [row for row in rows if (one := answers[row["layer"]]) is not None and one.answer is Answer.YES]
    if below:
        lowest = min(below, key=lambda row: row["auroc"])
        least = "lowest " if len(below) > 1 else ""
        return [
            f"With the other thing's state the AUROC of the case's own truth lies below .5 after {_layers(below)} "
            f"({least}after {lowest['layer']}: {fixed(lowest['auroc'], 3)} "
            f"[{fixed_interval(lowest['intervals']['auroc'], 3)}], of each layer by itself): there the verdict follows "
            "the state in the place of “this”, against the picture."
        ]
    if any(one is not None and one.answer is Answer.NOT_SHOWN for one in answers.values()):
        lower = "AUROC of the case's own truth lower, and below .5"
        return [f"That the verdict follows the other thing's state ({lower}) is not shown."]
    return []


def _layers(rows: Iterable[Mapping[str, Any]]) -> str:
    numbers = [str(row["layer"]) for row in rows]
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    return f"layers {', '.join(numbers[:-1])} and {numbers[-1]}"
