"""``+exp=direction_ablation``: arms with a direction removed, over-caution and harmful compliance side by side.

Beside all that a study leaves, the run's directory holds ``ablation.json``, a section of the report, and ``learned/``
with the directions and the checkpoint with orthogonalised weights, learned on the development split. All numbers but
the twins' agreement are those of metrics.json. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.metrics.findings import Answer, Finding
from experiments.report.build import add_section
from experiments.report.findings import direction_ablation as sentences
from experiments.report.numbers import change, fixed, percent, percent_interval
from experiments.report.sections import Section
from experiments.report.table import Cell, Column, Narrow, Table, terminal
from experiments.runs.directory import write_json
from experiments.runs.launch import sharded
from experiments.runs.saved import read_run
from interp.errors import UserError

RESULT = "ablation.json"
BASELINE = "baseline"
TITLE = "Without the direction: over-caution and harmful compliance together"


class Sides(NamedTuple):
    """The subsets of over-caution and of harmful compliance, and what a wrong answer in each is called."""

    caution: str
    harm: str
    caution_words: str
    harm_words: str


YES_NO = Sides("over_safety", "unsafe", "safe cases called unsafe", "unsafe cases called safe")
REFUSAL = Sides("benign", "contrast", "benign requests refused", "contrast requests complied with")
SIDE_WORDS = {"caution": "over-caution", "harm": "harmful compliance"}
NOTE = (
    "Rates in percent with their 95% intervals; change: paired difference from the baseline with its bootstrap "
    "interval. A safety mechanism that only over-refuses could be removed for nothing: then the first rate falls and "
    "the second stays."
)


@sharded
@dataclass(frozen=True)
class Ablation:
    """The task. Answers are those of the run's arms.

    ``twins`` are pairs of arms that should answer alike (projection while running, weights): the largest difference of
    their margins is reported. ``controls`` maps each ablation that the summary describes to the arms that remove
    something else in the same way.
    """

    twins: list[list[str]] = field(default_factory=list)
    controls: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, run: Run) -> Path:
        """Evaluates, prints what came of it, and returns the run's directory."""
        self._check(run)
        return study.run(run, after=self._conclude)

    def _conclude(self, work: study.Study) -> Iterable[RenderableType]:
        return conclude(work.store.path, twins=self.twins, controls=self.controls)

    def _check(self, run: Run) -> None:
        """What no weights are needed to refuse."""
        named = [arm for group in (self.controls, *self.controls.values(), *self.twins) for arm in group]
        if unknown := [arm for arm in named if arm not in run.arms]:
            raise UserError(f"task names an arm {unknown[0]!r}; known: {', '.join(run.arms)}; mend twins or controls")
        if any(len(pair) != 2 for pair in self.twins):
            raise UserError(f"task.twins={self.twins}: must be pairs of arms")
        _ = run.weights  # what is looked into must be here


def conclude(
    folder: Path, *, twins: Sequence[Sequence[str]], controls: Mapping[str, Sequence[str]]
) -> list[RenderableType]:
    """Writes the result and the section of the run in ``folder``; returns what to print."""
    run = read_run(folder)
    found = evaluate(run.metrics, controls=controls)
    found["twins"] = [_agreement(run.predictions, pair) for pair in twins]
    found["summary"] += [sentences.twins(twin) for twin in found["twins"] if twin["largest"] is not None]
    write_json(folder / RESULT, found)
    shown = table(found["arms"])
    page = add_section(folder, "ablation", Section(TITLE, found["summary"], [shown], note=NOTE))
    return [terminal(shown), *found["summary"], f"report: {page}"]


def evaluate(metrics: Mapping[str, Any], *, controls: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Over-caution and harmful compliance of every arm, their changes from the baseline, and two sentences an ablation.

    ``controls`` are those of each ablation. Pure.
    """
    sides = REFUSAL if metrics.get("kind") == "refusal" else YES_NO
    arms = {name: _arm(metrics, name, sides) for name in metrics["arms"]}
    moved = movements(arms)
    return {
        "controls": {name: list(others) for name, others in controls.items()},
        "sides": sides._asdict(),
        "arms": arms,
        "summary": [
            sentence
            for name, others in controls.items()
            for sentence in (sentences.rates(arms, name, sides._asdict()), sentences.meaning(moved, arms, name, others))
        ],
        "findings": [asdict(finding) for pair in moved.values() for finding in pair],
    }


def movements(arms: Mapping[str, Any]) -> dict[str, tuple[Finding, Finding]]:
    """Which way over-caution and harmful compliance moved under each arm, by intervals that exclude 0."""
    found = {}
    for name, arm in arms.items():
        caution, harm = (
            Finding(f"{SIDE_WORDS[side]} under {name}", _moved(arm[side]["change"]), arm[side]) for side in SIDE_WORDS
        )
        found[name] = (caution, harm)
    return found


def _moved(change: Mapping[str, Any] | None) -> Answer:
    if change is None or change["low"] is None:
        return Answer.NOT_SHOWN
    return Answer.ROSE if change["low"] > 0 else Answer.FELL if change["high"] < 0 else Answer.NOT_SHOWN


def _arm(metrics: Mapping[str, Any], name: str, sides: Sides) -> dict[str, Any]:
    one = metrics["arms"][name]
    against = metrics["comparisons"].get(name, {})
    changes = against.get("delta", {})
    # Yes/no accuracies of both, and the contrast's refusal rate, are rates of what is right; turn them round.
    return {
        "caution": _side(one, changes, sides.caution),
        "harm": _side(one, changes, sides.harm),
        "auroc": one.get("auroc"),
        "n": one["n"],
        "n_of": one["n_of"],
    }


def _side(one: Mapping[str, Any], changes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The rate of wrong answers of one kind of case: 1 − accuracy, its interval turned round, and its change."""
    right, interval, change_of = one["accuracy"][name], one["intervals"].get(name), changes.get(name)
    refused = name == "benign"  # whose interval and change are of the refusal rate, which is wrong there already
    turned = interval if refused or not interval else [1 - interval[1], 1 - interval[0]]
    return {
        "rate": None if right is None else 1 - right,
        "interval": turned,
        "change": change_of if refused else _turned(change_of),
    }


def _turned(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The same difference of the rate of wrong answers."""
    if entry is None:
        return None
    low, high = entry["low"], entry["high"]
    minus = {"value": -entry["value"], "low": None if high is None else -high, "high": None if low is None else -low}
    return {**entry, **minus, "from": 1 - entry["from"], "to": 1 - entry["to"]}


def _agreement(records: Sequence[Mapping[str, Any]], pair: Sequence[str]) -> dict[str, Any]:
    """The largest difference of the two arms' margins, over the cases of which both are known."""
    first, second = (
        {
            record["case"]: record["margin"]
            for record in records
            if record["arm"] == arm and record["margin"] is not None
        }
        for arm in pair
    )
    both = [abs(first[case] - second[case]) for case in first.keys() & second.keys()]
    return {"arms": list(pair), "n": len(both), "largest": max(both, default=None)}


def table(arms: Mapping[str, Any]) -> Table:
    """Both rates of wrong answers with their changes, an arm a row; a terminal has no room for the changes."""
    columns = [Column("arm", "left")]
    for words in SIDE_WORDS.values():
        columns += [Column(words), Column(f"{words}, change", narrow=Narrow.NOTHING)]
    records = [_record(name, arm) for name, arm in arms.items()]
    return Table.of("Every arm on the same cases.", records, columns=[*columns, Column("AUROC")])


def _record(name: str, arm: Mapping[str, Any]) -> dict[str, str | Cell]:
    record: dict[str, str | Cell] = {"arm": name}
    for side, words in SIDE_WORDS.items():
        one = arm[side]
        record[words] = Cell(percent(one["rate"]), percent_interval(one["interval"]))
        record[f"{words}, change"] = change(one["change"]) if one["change"] else "–"
    return record | {"AUROC": fixed(arm["auroc"], 3)}
