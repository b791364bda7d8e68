"""The run's arms beside published rows, counted as those are."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments.benchmarks.published import MOSSBENCH, PublishedRow
from experiments.metrics.refusal.leaderboard import COLUMNS, CONVENTIONS, leaderboard_rows
from experiments.report.arm_tables import ACCURACIES
from experiments.report.numbers import fixed, percent
from experiments.report.table import Column, Record, Table

_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def published_table(metrics: Mapping[str, Any], published: Sequence[PublishedRow]) -> Table:
    """The run's own rows, by the published scorer, then the published ones by number."""
    own = [_row("no. and model", row, row.name) for row in own_rows(metrics)]
    theirs = [_row("no. and model", row, f"{number}. {row.name}") for number, row in enumerate(published, start=1)]
    return _beside("Published rows of this benchmark", own, theirs)


def _row(first: str, row: PublishedRow, name: str) -> Record:
    rates = {"typical": row.typical, "attack": row.attack, "unsafe": row.unsafe, "over-safety": row.over_safety,
             "overall": row.overall}  # fmt: skip
    return {
        first: name,
        "table": row.table,
        **{heading: "–" if rate is None else percent(rate) for heading, rate in rates.items()},
        "d′": fixed(row.d_prime, 2),
        "criterion": fixed(row.criterion, 2),
    }


def own_rows(metrics: Mapping[str, Any]) -> list[PublishedRow]:
    """The run's arms as rows to stand beside the published ones: by the published scorer, as those are."""
    rows = []
    for name, arm in metrics["arms"].items():
        accuracy = (arm.get("published") or {}).get("accuracy") or {}
        known = [one for key in ACCURACIES.values() if (one := accuracy.get(key)) is not None]
        if len(known) == len(ACCURACIES):
            typical, attack, over_safety, overall = known
            rows.append(PublishedRow("here", name, typical, attack, (typical + attack) / 2, over_safety, overall))
    return rows


def leaderboard_table(metrics: Mapping[str, Any], names: Mapping[str, str] = _NO_NAMES) -> Table:
    """Refusals of MOSSBench's benign requests in %, by type: the run's arms, then the published rows."""

    def row(name: str, source: str, cells: Iterable[float | None]) -> Record:
        shown = zip((*COLUMNS, "average"), cells, strict=True)
        return {"model or arm": name, "source": source, **{heading: fixed(cell, 1) for heading, cell in shown}}

    own = [
        row(names.get(one.model, one.model), "here", (*one.cells, one.average))
        for one in leaderboard_rows(metrics)
        if one.convention == CONVENTIONS[0]
    ]
    return _beside("MOSSBench’s leaderboard", own, [row(name, "published", each) for name, each in MOSSBENCH.items()])


def as_published_table(metrics: Mapping[str, Any], names: Mapping[str, str] = _NO_NAMES) -> Table:
    """The run's arms counted as the benchmark's authors count, then their rows; in %."""
    block = metrics["as_published"]
    quantities = list(dict.fromkeys(key for arm in block["arms"].values() for key in arm))

    def row(name: str, source: str, found: Mapping[str, Any]) -> Record:
        return {"model or arm": name, "source": source, **{key: percent(found.get(key)) for key in quantities}}

    own = [row(names.get(name, name), "here", arm) for name, arm in block["arms"].items()]
    known = ((name, one) for name, one in block["published"].items() if one.keys() & set(quantities))
    return _beside("As its authors count", own, [row(name, "published", one) for name, one in known])


def _beside(title: str, own: Sequence[Record], published: Iterable[Record]) -> Table:
    """The run's rows, marked, then published ones."""
    return Table.of(
        title, [*own, *published], layout=[Column("table", "left"), Column("source", "left")], marked=[True] * len(own)
    )
