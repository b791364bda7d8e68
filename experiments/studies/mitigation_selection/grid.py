"""The settings of a grid beside the baseline, on the same cases: rates, differences from it, and cells of a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.metrics.paired import Change, simultaneous
from experiments.metrics.yes_no.comparison import difference, entries
from experiments.metrics.yes_no.quantities import YesNoArms
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


class GridAnswers(YesNoArms):
    """The answers of the baseline and of every setting, by arm, on one list of cases."""

    def values(self, arm: str) -> dict[str, Any]:
        """Every quantity of an arm, its share of Yes and its ``n``; None where the arm has no answer."""
        if (own := self.answers.get(arm)) is None:
            return {**dict.fromkeys(RATES), "n": 0}
        yes = own.answered_yes[own.kept]
        return self.point(arm) | {"yes_rate": float(yes.mean()) if yes.size else None, "n": yes.size}

    def against_baseline(self, settings: Iterable[str], *quantities: str) -> dict[str, dict[str, Change | None]]:
        """By setting, all differences from the baseline; those of ``quantities`` with simultaneous intervals."""
        found = {name: difference(self, name, BASELINE) for name in settings if name in self.answers}
        for quantity in quantities:
            simultaneous(each[quantity] for each in found.values())
        return {name: entries(each) for name, each in found.items()}


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
