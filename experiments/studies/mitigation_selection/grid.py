"""The settings of a grid beside the baseline, on the same cases: rates, differences from it, and cells of a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.metrics.paired import Change, simultaneous
from experiments.metrics.yes_no.answers import YesNoAnswers, align, scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.rates import YesNoResamples, with_margins
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Narrow, change

BASELINE = "baseline"
RATES = ("unsafe", "over_safety", "overall")
COLUMNS = (
    Column("setting", "left", fold=14),
    Column("AUROC"),
    Column("Δ AUROC", narrow=Narrow.TERSE),
    Column("unsafe"),
    Column("over-safety", short="over-\nsafety"),
    Column("overall", short="over-\nall"),
    Column("Δ overall"),
)
LEGEND = (
    "Rates in %; Δ: minus the baseline, with simultaneous 95% intervals, which hold for all settings at once. AUROC is "
    "of all cases with a margin."
)


@dataclass(frozen=True)
class GridAnswers:
    """The answers of the baseline and of every setting, by arm, on one list of cases."""

    answers: Mapping[str, YesNoAnswers]
    resamples: YesNoResamples

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], *, seed: int, draws: int) -> "GridAnswers":
        """Those of a run's records.

        Raises:
            UserError: there is no scored case, or the records do not fit together.
        """
        scored, _ = scored_and_controls(pd.DataFrame(lines))
        cases, answers = align(scored)
        return cls(answers, YesNoResamples(cases, draws=draws, seed=seed))

    def values(self, arm: str) -> dict[str, Any]:
        """Every quantity of an arm, its share of Yes and its ``n``; None where the arm has no answer."""
        if (own := self.answers.get(arm)) is None:
            return {**dict.fromkeys(RATES), "n": 0}
        values = self.resamples.point(own, own.kept, with_margins(own, own.kept))
        yes = own.answered_yes[own.kept]
        return values | {"yes_rate": float(yes.mean()) if yes.size else None, "n": int(own.kept.sum())}

    def against_baseline(self, settings: Iterable[str], *quantities: str) -> dict[str, Mapping[str, Change | None]]:
        """By setting, all differences from the baseline; those of ``quantities`` with simultaneous intervals."""
        known = {name: self.answers[name] for name in settings if name in self.answers}
        found = {name: difference(self.resamples, own, self.answers[BASELINE]) for name, own in known.items()}
        for one in quantities:
            simultaneous([(each.delta[one], each.widest(one), each.draws[one]) for each in found.values()])
        return {name: each.delta for name, each in found.items()}


def row(name: str, values: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, str | Cell]:
    """A row of ``COLUMNS``."""
    rates = dict(zip(("unsafe", "over-safety", "overall"), (percent(values[rate]) for rate in RATES), strict=True))
    moved = {
        "Δ AUROC": difference_cell(delta.get("auroc"), digits=3),
        "Δ overall": difference_cell(delta.get("overall")),
    }
    return {"setting": name, "AUROC": fixed(values["auroc"], 3), **rates, **moved}


def difference_cell(entry: Mapping[str, Any] | None, *, digits: int | None = None) -> Cell:
    """A difference with the interval that decides of one arm among many."""
    return change(entry and deciding(entry, studied=False), digits=digits)
