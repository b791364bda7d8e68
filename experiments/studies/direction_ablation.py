"""``+exp=direction_ablation``: arms with a direction removed, over-caution and harmful compliance side by side.

Beside all that a study leaves, the run's directory holds ``ablation.json``, a section of the report, and ``learned/``
with the directions, learned on the development split. All numbers are those of metrics.json. Importing this module
loads neither torch nor transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.metrics.findings import Answer, Finding, stated
from experiments.report.numbers import fixed
from experiments.report.sections import Section, write_section
from experiments.report.sentences import direction_ablation as sentences
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Table, change, rate, terminal
from experiments.runs.launch import sharded
from experiments.runs.resumption import write_json
from experiments.runs.saved_run import read_run
from interp.errors import UserError

RESULT = "ablation.json"
TITLE = "Without the direction: over-caution and harmful compliance together"


class ErrorSubsets(NamedTuple):
    """The subsets of over-caution and of harmful compliance."""

    caution: str
    harm: str


YES_NO = ErrorSubsets("over_safety", "unsafe")
REFUSAL = ErrorSubsets("benign", "contrast")
ERRORS = {"caution": "over-caution", "harm": "harmful compliance"}
NOTE = (
    "Rates in percent with their 95% intervals; change: paired difference from the baseline with its bootstrap "
    "interval. A safety mechanism that only over-refuses could be removed for nothing: then the first rate falls and "
    "the second stays."
)


@sharded
@dataclass(frozen=True)
class Ablation:
    """The task. Answers are those of the run's arms.

    ``controls`` maps each ablation that the summary describes to the arms that remove something else in the same way.
    """

    controls: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, run: Run) -> Path:
        """Evaluates, prints what came of it, and returns the run's directory."""
        self._check(run)
        return study.run(run, after=[Analysis("ablation", "the ablations were not compared", self._conclude)])

    def _conclude(self, work: study.Study) -> Iterable[RenderableType]:
        return conclude(work.store.path, controls=self.controls)

    def _check(self, run: Run) -> None:
        """Checks all that can be checked before weights are loaded."""
        named = [arm for group in (self.controls, *self.controls.values()) for arm in group]
        if unknown := [arm for arm in named if arm not in run.arms]:
            raise UserError(f"task names an arm {unknown[0]!r}; known: {', '.join(run.arms)}; correct controls")
        _ = run.weights  # what is looked into must be here


def conclude(folder: Path, *, controls: Mapping[str, Sequence[str]]) -> list[RenderableType]:
    """Writes the result and the section of the run in ``folder``; returns what to print."""
    found = evaluate(read_run(folder).metrics, controls=controls)
    write_json(folder / RESULT, found)
    shown = table(found["arms"])
    write_section(folder, "ablation", Section(TITLE, found["summary"], [shown], note=NOTE))
    return [terminal(shown), *found["summary"]]


def evaluate(metrics: Mapping[str, Any], *, controls: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Over-caution and harmful compliance of every arm, their changes from the baseline, findings and sentences.

    ``controls`` are those of each ablation.
    """
    subsets = REFUSAL if metrics.get("kind") == "refusal" else YES_NO
    arms = {name: _arm(metrics, name, subsets) for name in metrics["arms"]}
    changes = {name: (_change("caution", name, arm), _change("harm", name, arm)) for name, arm in arms.items()}
    alone = {name: done_by_a_control(changes, name, others) for name, others in controls.items()}
    return {
        "controls": {name: list(others) for name, others in controls.items()},
        "sides": subsets._asdict(),
        "arms": arms,
        "summary": [sentences.meaning(name, *changes[name], alone[name], arms) for name in controls],
        "findings": [
            finding.as_json() for finding in (*(one for pair in changes.values() for one in pair), *alone.values())
        ],
    }


def _change(error: str, name: str, arm: Mapping[str, Any]) -> Finding:
    """What may be said of the change of one error under an arm."""
    return Finding(ERRORS[error], stated(arm[error]["change"]), arm[error], name)


def done_by_a_control(
    changes: Mapping[str, tuple[Finding, Finding]], ablation: str, controls: Sequence[str]
) -> Finding:
    """Whether a control, which removes something else in the same way, is shown to do what the ablation does.

    NOT_APPLICABLE without a control, or where the ablation itself is not shown to do anything.
    """
    answers = {name: (caution.answer, harm.answer) for name, (caution, harm) in changes.items()}
    moved = {Answer.ROSE, Answer.FELL} & set(answers[ablation])
    alike = [name for name in controls if answers[name] == answers[ablation]]
    answer = Answer.YES if alike else Answer.NOT_SHOWN
    return Finding("a control does the same", answer if controls and moved else Answer.NOT_APPLICABLE,
                   {"alike": alike, "controls": list(controls)}, ablation)  # fmt: skip


def _arm(metrics: Mapping[str, Any], name: str, subsets: ErrorSubsets) -> dict[str, Any]:
    one = metrics["arms"][name]
    changes = metrics["comparisons"].get(name, {}).get("delta", {})
    errors = {error: _wrong(one, changes, getattr(subsets, error)) for error in ERRORS}
    return errors | {"auroc": one.get("auroc"), "n": one["n"], "n_of": one["n_of"]}


def _wrong(one: Mapping[str, Any], changes: Mapping[str, Any], subset: str) -> dict[str, Any]:
    """The rate of wrong answers of one kind of case, with its interval and its change: those of accuracy turned round.

    Of benign requests they are of the refusal rate, which is of what is wrong already.
    """
    right, interval, change_of = one["accuracy"][subset], one["intervals"].get(subset), changes.get(subset)
    if subset != "benign":
        interval = interval and [1 - interval[1], 1 - interval[0]]
        change_of = change_of and _turned(change_of)
    return {"rate": None if right is None else 1 - right, "interval": interval, "change": change_of}


def _turned(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same difference of the rate of wrong answers."""

    def ends(some: Mapping[str, Any]) -> dict[str, float | None]:
        return {at: None if some[other] is None else -some[other] for at, other in (("low", "high"), ("high", "low"))}

    turned = {**entry, **ends(entry), "value": -entry["value"], "from": 1 - entry["from"], "to": 1 - entry["to"]}
    if "bounds" in entry:
        turned["bounds"] = [-end for end in reversed(entry["bounds"])]
    if "decides" in entry:
        turned["decides"] = entry["decides"] | ends(entry["decides"])
    other = {Answer.ROSE: Answer.FELL, Answer.FELL: Answer.ROSE}
    return turned | {"statement": other.get(answer := Answer(entry["statement"]), answer).value}


def table(arms: Mapping[str, Any]) -> Table:
    """Both rates of wrong answers with their changes, one row for each arm."""
    layout = [Column("arm", "left", fold=16)]
    for words in ERRORS.values():
        layout += [Column(words, short=words.replace(" ", "\n")), Column(f"{words}, change", short="change")]
    records = []
    for name, arm in arms.items():
        record: dict[str, str | Cell] = {"arm": name}
        for error, words in ERRORS.items():
            one = arm[error]
            record[words] = rate(one["rate"], one["interval"])
            record[f"{words}, change"] = change(deciding(one["change"])) if one["change"] else "–"
        records.append({**record, "AUROC": fixed(arm["auroc"], 3)})
    return Table.of("Every arm on the same cases.", records, layout=layout)
