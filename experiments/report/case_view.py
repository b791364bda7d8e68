"""Single cases as the page shows them: text, verdicts in words, and whether the picture stays blurred."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report import cases as flips
from experiments.report.cases import GOLD_WORDS, LONGEST_TEXT, VERDICT_WORDS, blurred, scenario_name, subset_name
from experiments.report.numbers import fixed
from experiments.runs.saved_run import SavedRun
from experiments.types import Status


@dataclass(frozen=True)
class ShownAnswer:
    """One arm's answer to one case, as text. ``judged`` is "right", "wrong", or empty where it is not known."""

    arm: str
    response: str
    cut: int  # characters that were left out of ``response``
    verdict: str
    judged: str
    margin: str


@dataclass(frozen=True)
class ShownCase:
    """One case. ``hidden``: the image stays blurred until the reader asks for it."""

    id: str
    fixed: bool  # right under the arm under study, wrong under the reference
    subset: str
    scenario: str
    text: str
    gold: str
    change: str
    hidden: bool
    thumbnail: str | None
    answers: list[ShownAnswer]


def shown_case(run: SavedRun, flip: flips.Flip, studied: str, arms: Sequence[str] | None = None) -> ShownCase:
    """The case as text, with the answers of ``arms``: by default all of the run."""
    record = flip.records[studied]
    arms = [arm for arm in (run.metrics["arms"] if arms is None else arms) if arm in flip.records]
    return ShownCase(
        id=flip.case,
        fixed=flip.fixed,
        subset=subset_name(record),
        scenario=scenario_name(record),
        text=str(record["text"])[:LONGEST_TEXT],
        gold=GOLD_WORDS.get(record["gold"], str(record["gold"])),
        change="" if flip.margin_change is None else fixed(flip.margin_change, 2, sign=True),
        hidden=blurred(record),
        thumbnail=run.thumbnail(flip.case),
        answers=[_answer(arm, flip.records[arm]) for arm in arms],
    )


def _answer(arm: str, record: Mapping[str, Any]) -> ShownAnswer:
    right, status = flips.correct(record), Status(record["status"])
    response = str(record["response"] or "")
    verdict = VERDICT_WORDS.get(record["verdict"], str(record["verdict"]))
    if right is None:
        verdict = status.replace("_", " ")
    elif status is not Status.ANSWERED:
        verdict += f" ({status.replace('_', ' ')})"
    return ShownAnswer(
        arm=arm,
        response=response[:LONGEST_TEXT],
        cut=max(0, len(response) - LONGEST_TEXT),
        verdict=verdict,
        judged="" if right is None else ("right" if right else "wrong"),
        margin=fixed(record["margin"], 2, sign=True),
    )
