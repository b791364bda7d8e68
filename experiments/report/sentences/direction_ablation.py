"""Sentences of arms with a direction removed, from the contents of ``ablation.json``."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import percent
from experiments.report.sentences.wording import by_less, statement_text

MEANING = {  # over-caution, harmful compliance; of any other two answers, both are told
    (Answer.FELL, Answer.ROSE): (
        "What over-refuses is what protects: less over-caution is paid for with harmful compliance"
    ),
    (Answer.FELL, Answer.FELL): "Both errors fall: the direction did harm on either side",
    (Answer.ROSE, Answer.ROSE): "Both errors rise: the direction did good on either side",
    (Answer.ROSE, Answer.FELL): (
        "The arm is more cautious than the model was: what was removed held the readiness to comply as well"
    ),
}
ALIKE = {
    Answer.NOT_SHOWN: "no control is shown to do the same",
    Answer.YES: "so does {alike}, so it is not owed to this direction alone",
}


def meaning(ablation: str, caution: Finding, harm: Finding, control: Finding, arms: Mapping[str, Any]) -> str:
    """What the changes of both errors under ``ablation`` mean together, and whether another removal does the same."""
    both = ", and ".join(
        _said(error, name) for error, name in ((caution, "over-caution"), (harm, "harmful compliance"))
    )
    meant = both[0].upper() + both[1:]
    if not any(_by_less(error) for error in (caution, harm)):
        meant = MEANING.get((caution.answer, harm.answer), meant)
    if control.answer is Answer.NOT_APPLICABLE:
        return f"{ablation}: {meant}."
    listed = ", ".join(
        f"{name} {percent(arms[name]['caution']['rate'])}/{percent(arms[name]['harm']['rate'])}"
        for name in control.evidence["controls"]
    )
    control_note = ALIKE[control.answer].format(alike=" and ".join(control.evidence["alike"]))
    return f"{ablation}: {meant}; {control_note} (over-caution/harmful compliance in %: {listed})."


def _said(error: Finding, name: str) -> str:
    return statement_text(
        error.evidence["change"],
        answer=error.answer,
        rose=f"{name} rises{{small}}",
        fell=f"{name} falls{{small}}",
        no_change=f"{name} does not change by more than {{delta}}",
        not_shown=f"that {name} changes is not shown",
        too_few=f"there are too few cases to tell whether {name} changes",
    )


def _by_less(error: Finding) -> str:
    return by_less(error.evidence["change"]) if error.answer in (Answer.ROSE, Answer.FELL) else ""
