"""``+exp=direction_ablation``: arms with a direction removed, over-caution and harmful compliance in one table.

Adds the rows ``over_caution``, ``harmful_compliance`` and ``done_by_a_control`` to the run's results table, and a
section to its report. ``learned/`` has the directions, learned on the development split. Importing this module loads
neither torch nor transformers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.metrics.claims import HIGHER, LOWER, is_small
from experiments.metrics.quantities import ANSWERED, CAUGHT, HARMFUL_REFUSED, REFUSED, Key
from experiments.report.arms import arms_of
from experiments.report.sections import Section, write_section
from experiments.report.tables import by_arm, in_terminal, unit
from experiments.report.text import lines
from experiments.runs.launch import sharded
from experiments.runs.results_table import Results, Row, read_results, row, write_results
from experiments.runs.store import read_object
from experiments.types import Kind
from interp.errors import UserError

TITLE = "Without the direction: over-caution and harmful compliance together"
CAUTION, HARM, CONTROL = "over_caution", "harmful_compliance", "done_by_a_control"
HEADINGS = {CAUTION: "over-caution", HARM: "harmful compliance"}
SOURCES: dict[Kind, dict[str, Key]] = {  # the rows that the rates of wrong answers are made of
    "yes_no": {CAUTION: ANSWERED, HARM: CAUGHT},
    "refusal": {CAUTION: REFUSED, HARM: HARMFUL_REFUSED},
}
OPPOSITE = {HIGHER: LOWER, LOWER: HIGHER}
NOTE = (
    "Rates in percent with their 95% intervals; change: paired difference from the baseline with its interval. If the "
    "safety mechanism only over-refuses, its removal costs nothing: the first rate falls and the second does not rise."
)
Meaning = Literal["trade", "both fall", "both rise", "more cautious", ""]
MEANINGS: dict[tuple[str, str], Meaning] = {  # by the claims about over-caution and harmful compliance
    (LOWER, HIGHER): "trade",
    (LOWER, LOWER): "both fall",
    (HIGHER, HIGHER): "both rise",
    (HIGHER, LOWER): "more cautious",
}
unit(CONTROL, 0)


@sharded
@dataclass(frozen=True)
class Ablation:
    """The task. Answers are those of the run's arms.

    ``controls`` maps each ablation that the summary describes to the arms that remove something else in the same way.
    """

    controls: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, run: Run) -> Path:
        """Evaluate, print the conclusion, and return the run's directory."""
        named = [arm for group in (self.controls, *self.controls.values()) for arm in group]
        if unknown := [arm for arm in named if arm not in run.arms]:
            raise UserError(f"task names an arm {unknown[0]!r}; known: {', '.join(run.arms)}; correct controls")
        _ = run.weights  # what is looked into must be here
        return study.run(run, after=[Analysis("ablation", "the ablations were not compared", self._conclude)])

    def _conclude(self, work: study.Study) -> Iterable[RenderableType]:
        return conclude(work.store.path, self.controls)


def conclude(folder: Path, controls: Mapping[str, Sequence[str]]) -> list[RenderableType]:
    """Add the rows and the section to the run in ``folder``, and return what to print."""
    design = read_object(folder / "metrics.json")
    results = write_results(folder, compared(read_results(folder), design, controls))
    columns: dict[str, dict[str, Any]] = {}
    for quantity, heading in HEADINGS.items():
        columns |= {heading: {"quantity": quantity},
                    f"{heading}: change": {"quantity": quantity, "against": design["baseline"]}}  # fmt: skip
    columns |= {"AUROC": {"quantity": "auroc"}}
    frame = by_arm(results, columns, arms_of(results, design), title="Every arm on the same cases")
    sentences = describe(results, design, controls)
    write_section(folder, "ablation", Section(TITLE, sentences, [frame], note=NOTE))
    return [in_terminal(frame), *sentences]


def describe(results: Results, design: Mapping[str, Any], controls: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what the changes of both errors mean together, for each ablation."""
    base = design["baseline"]
    changes = {name: changes_of(results, name, base) for name in controls}
    meanings = {name: meaning(*pair) for name, pair in changes.items()}
    return lines("direction_ablation", results=results, controls=controls, changes=changes, meanings=meanings,
                 small=_small)  # fmt: skip


def compared(results: Results, design: Mapping[str, Any], controls: Mapping[str, Sequence[str]]) -> list[Row]:
    """Return both rates of wrong answers by arm, their differences, and whether a control does what an ablation does.

    A control, which removes something else in the same way, does so if both of its claims are the ablation's. This is
    asked only of an ablation with an error that is higher or lower.
    """
    base = design["baseline"]
    rows = [
        _wrong(entry, quantity)
        for quantity, key in SOURCES[design["kind"]].items()
        for entry in results.select(quantity=key.quantity, subset=key.subset, group=key.group, rule="")
        if entry.against in ("", base)
    ]
    return [*rows, *_by_controls(Results(rows), base, controls)]


def _wrong(entry: Row, quantity: str) -> Row:
    """Return a row of right answers as one of wrong answers; a refused benign request is wrong already."""
    if entry.subset == REFUSED.subset:
        return entry._replace(quantity=quantity, subset="")
    total = 0.0 if entry.against else 1.0

    def turned(number: float | None) -> float | None:
        return None if number is None else total - number

    return entry._replace(
        quantity=quantity, subset="", value=turned(entry.value), low=turned(entry.high), high=turned(entry.low),
        bound_low=turned(entry.bound_high), bound_high=turned(entry.bound_low),
        claim=OPPOSITE.get(entry.claim, entry.claim),
    )  # fmt: skip


def changes_of(results: Results, arm: str, base: str) -> list[Row | None]:
    """Return the differences of an arm in over-caution and in harmful compliance."""
    return [results.get(arm, quantity, against=base) for quantity in (CAUTION, HARM)]


def _by_controls(results: Results, base: str, controls: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    def claims(arm: str) -> list[str]:
        return [entry.claim if entry else "" for entry in changes_of(results, arm, base)]

    for name, others in controls.items():
        if {HIGHER, LOWER} & set(claims(name)):
            for other in others:
                yield row(CONTROL, arm=name, against=other, value=claims(other) == claims(name))


def meaning(caution: Row | None, harm: Row | None) -> Meaning:
    """Return what both changes mean together; "" if an error is neither higher nor lower, or only by a little."""
    if caution is None or harm is None or _small(caution) or _small(harm):
        return ""
    return MEANINGS.get((caution.claim, harm.claim), "")


def _small(entry: Row) -> bool:
    return is_small(entry._asdict())
