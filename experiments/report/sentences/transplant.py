"""words_and_picture.json's ``transplant`` as sentences: what other states at "this" do to the verdict."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import fixed, fixed_interval
from experiments.report.sentences.wording import too_few

TITLE = "Another state at “this”"
NOTE = (
    "After one decoder layer (from 0) the state at “this” in the run with the picture is replaced, and the margin is "
    "read: by the noun's own state in the run in words (“the cockroach”, last token), by that of the other thing of "
    "the pair (truth reversed), or by the mean over the nouns of all cases. Verdicts are the signs of margins. "
    "Differences are paired with the picture as it is; what is said of them is by intervals that hold for all states "
    "and layers at once. Of the other thing's state, AUROC is that of the case's own truth."
)
MOVED, FOLLOWS = "auroc with another state at this", "verdicts follow the state"  # asked
_STATES = {
    "noun": "The noun's state from the run in words, put onto “this” in the run with the picture",
    "other": "The state of the pair's other thing",
    "mean": "The mean of all nouns' states, which names no thing",
}
_SAID = {
    Answer.ROSE: "raises it",
    Answer.FELL: "lowers it",
    Answer.NO_CHANGE: "changes it by no more than .02",
    Answer.NOT_SHOWN: "is not shown to change it",
    Answer.TOO_FEW: "stands on too few cases to tell",
    Answer.CANNOT_TELL: "cannot be told apart",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """The cases, each of the three states, and what the verdict follows; the numbers are in the table."""
    return [_entered(result), *(_state(result, state) for state in _STATES), *_follows(result)]


def _entered(result: Mapping[str, Any]) -> str:
    cases = result["cases"]
    return (
        f"{cases['entered']} of {cases['of']} scored cases entered, those whose request says “this”; the other thing "
        f"of the pair is known in {cases['with_other']}. With the picture as it is their AUROC is "
        f"{fixed(result['picture']['auroc'], 3)}."
    )


def _state(result: Mapping[str, Any], state: str) -> str:
    """The layers by what may be said there."""
    rows = [row for row in result["transplants"] if row["state"] == state]
    if not rows:
        return f"{_STATES[state]}: no case has one."
    by_answer: dict[Answer, list[Mapping[str, Any]]] = {}
    for row in rows:
        finding = found(result["findings"], MOVED, f"{state}@{row['layer']}")
        assert finding is not None
        by_answer.setdefault(finding.answer, []).append(row)
    lines = [f"{words} after {_layers(by_answer[answer])}" for answer, words in _SAID.items() if answer in by_answer]
    few = by_answer.get(Answer.TOO_FEW)
    why = f" ({too_few(few[0]['change'])})" if few else ""
    return f"{_STATES[state]}, and the AUROC: it {'; it '.join(lines)}{why}."


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
