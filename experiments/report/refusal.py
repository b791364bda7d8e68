"""metrics.json of a refusal benchmark as tables, the same for the terminal and the page."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from experiments.benchmarks.published import MOSSBENCH
from experiments.metrics.refusal.leaderboard import COLUMNS, CONVENTIONS, leaderboard_rows
from experiments.report.arm_tables import (
    Block,
    against,
    by_arm,
    d_prime_cell,
    known_cell,
    marks,
    outcomes_table,
    remarks,
    share_cell,
)
from experiments.report.numbers import fixed, p_value, percent, percent_interval
from experiments.report.sentences.wording import deciding, statement_text
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, number, rate
from experiments.types import REFUSAL_SUBSETS

DELTAS = {"benign": "benign", "contrast": "contrast", "difference": "apart", "d_prime": "d′"}
CONVENTION = {"partial_as_compliance": "partial as compliance", "published": "published"}
NOT_RUN = "not compared"
_MOST_TAGS = 12
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def context(metrics: Mapping[str, Any], *, benchmark: str = "", names: Mapping[str, str] = _NO_NAMES) -> dict[str, Any]:
    """What ``templates/refusal.html.j2`` prints of the metrics; MOSSBench has published rows beside them.

    ``names`` are what answered in arms whose responses were made elsewhere.
    """
    arms, types, tags = arms_table(metrics), types_table(metrics), tags_table(metrics)
    return {
        "refusal": True,
        "arms": arms,
        "types": types,
        **marks(metrics, arms, types),
        "outcomes": outcomes_table(metrics),
        "conventions": conventions_table(metrics),
        "tags": tags if tags.rows else None,
        "empty_as_refusal": bool(metrics["method"]["empty_as_refusal"]),
        "against": against(metrics),
        "comparisons": comparisons_table(metrics) if metrics.get("comparisons") else None,
        "remarks": remarks(metrics, conclusion),
        "published": leaderboard_table(metrics, names) if benchmark == "mossbench" else None,
        "pairs": pairs_table(metrics) if any(arm.get("pairs") for arm in metrics["arms"].values()) else None,
        "as_published": as_published_table(metrics, names) if metrics.get("as_published") else None,
        "as_published_rule": (metrics.get("as_published") or {}).get("rule", ""),
    }


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, in the order of metrics.json, then those that cannot enter, with the reason."""

    def of_subset(arm: Block, subset: str) -> Cell:
        n, n_of = arm["n_by_subset"][subset]
        bounds = percent_interval(arm["bounds"][subset], 1) if n < n_of else ""
        return rate(arm["refusal_rate"][subset], arm["intervals"][subset], bounds)

    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("known of N", short="known\nof N"): known_cell,
        Column("benign"): lambda arm: of_subset(arm, "benign"),
        Column("contrast"): lambda arm: of_subset(arm, "contrast"),
        Column("apart"): lambda arm: change(arm["apart"]),
        Column("mean of types", short="mean of\ntypes"): (
            lambda arm: rate(arm["refusal_rate"]["type_mean"], arm["intervals"]["type_mean"])
        ),
        Column("d′", narrow=Narrow.VALUE): d_prime_cell,
        Column("criterion", narrow=Narrow.VALUE): lambda arm: number(arm["criterion"], arm["intervals"]["criterion"]),
    }
    return by_arm("Refusals by arm", metrics, cells)


def conventions_table(metrics: Mapping[str, Any]) -> Table:
    """The same answers by two other conventions, and for the judge's error where that was measured."""

    def column(heading: str) -> Column:
        return Column(heading, short=heading.replace(" ", "\n"))

    def other(convention: str, subset: str, block: Any) -> Cell:
        return Cell(percent(block[0][convention][subset]))

    def without_error(subset: str, block: Any) -> Cell:
        return share_cell(block[1].get(subset), "rate")

    cells: dict[Column, Callable[[Any], Cell]] = {
        column(f"{words}: {subset}"): partial(other, key, subset)
        for key, words in CONVENTION.items()
        for subset in REFUSAL_SUBSETS
    }
    corrected = (metrics.get("corrected") or {}).get("arms") or {}
    for subset in REFUSAL_SUBSETS if corrected else ():
        cells[column(f"corrected: {subset}")] = partial(without_error, subset)
    blocks = {name: (arm, corrected.get(name, {})) for name, arm in metrics["arms"].items()}
    return by_arm("The same answers by other conventions", metrics, cells, blocks)


def types_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm and type of stimulus, the rows of an arm together."""

    def counted(block: Any) -> Cell:
        benign = block[1]["benign"]
        return Cell(f"{benign['refused']} of {benign['n']}" if benign else "")

    cells: dict[Column, Callable[[Any], Cell]] = {
        Column("type", "left", fold=32): lambda block: Cell(block[0]),
        Column("benign"): lambda block: share_cell(block[1]["benign"], "rate"),
        Column("refused of n"): counted,
        Column("contrast"): lambda block: share_cell(block[1]["contrast"], "rate"),
        Column("apart"): lambda block: change(block[1]["difference"]),
    }
    blocks = [(name, one) for name, arm in metrics["arms"].items() for one in arm["by_type"].items()]
    return by_arm("Refusals by type of stimulus", metrics, cells, blocks)


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, flips, Holm's p."""

    def difference(key: str, comparison: Block) -> Cell:
        return change(comparison["delta"][key], digits=2 if key == "d_prime" else None)

    def flips(subset: str, comparison: Block) -> Cell:
        counts = comparison["mcnemar"]["by_subset"][subset]
        return Cell(f"{counts['fixed']}/{counts['broken']}")

    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("cases", narrow=Narrow.NOTHING): lambda one: Cell(str(one["n"])),
        **{Column(heading): partial(difference, key) for key, heading in DELTAS.items()},
        **{
            Column(f"fixed/broken: {subset}", short=f"fixed/\nbroken\n{subset}"): partial(flips, subset)
            for subset in REFUSAL_SUBSETS
        },
        Column("p (Holm)", short="p", narrow=Narrow.TERSE): lambda one: Cell(p_value(one["mcnemar"]["p_holm"])),
    }
    blocks = metrics.get("comparisons") or {}
    return by_arm(f"Paired differences against {against(metrics)}", metrics, cells, blocks)


def conclusion(delta: Mapping[str, Any], studied: bool) -> str:
    """What is said of both kinds of request."""
    benign, contrast = (
        statement_text(deciding(entry, studied=studied)) if (entry := delta.get(subset)) else NOT_RUN
        for subset in REFUSAL_SUBSETS
    )
    return f"refusals of benign requests: {benign}; of harmful ones: {contrast}"


def tags_table(metrics: Mapping[str, Any]) -> Table:
    """Refusals of the studied arm by what the benchmark says of its cases; the first dozen values."""
    name = str(metrics["study"])
    records = [
        {"tag": tag, "value": value, "benign": share_cell(cells.get("benign"), "rate").value,
         "contrast": share_cell(cells.get("contrast"), "rate").value,
         "benign cases": str((cells.get("benign") or {}).get("n", 0))}
        for tag, values in metrics["arms"][name]["by_tag"].items()
        for value, cells in values.items()
    ]  # fmt: skip
    return Table.of(f"Refusals of {name} by tag", records[:_MOST_TAGS])


def pairs_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm: how often a benign case and its harmful twin, alike but for picture or text, were told apart."""
    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("pairs"): known_cell,
        Column("flip rate"): lambda pairs: rate(pairs["flip_rate"], pairs["interval"]),
        Column("both answered"): lambda pairs: Cell(str(pairs["both_answered"])),
        Column("both refused"): lambda pairs: Cell(str(pairs["both_refused"])),
        Column("wrong way round"): lambda pairs: Cell(str(pairs["wrong_way_round"])),
    }
    blocks = {name: arm["pairs"] for name, arm in metrics["arms"].items() if arm.get("pairs")}
    return by_arm("Counterfactual pairs", metrics, cells, blocks)


def as_published_table(metrics: Mapping[str, Any], names: Mapping[str, str] = _NO_NAMES) -> Table:
    """The run's arms counted as the benchmark's authors count, then their rows; in %."""
    block = metrics["as_published"]
    quantities = list(dict.fromkeys(key for arm in block["arms"].values() for key in arm))

    def cells(row: Mapping[str, Any]) -> list[str]:
        return [percent(row.get(key)) for key in quantities]

    own = [(names.get(name, name), cells(arm)) for name, arm in block["arms"].items()]
    theirs = [(name, cells(row)) for name, row in block["published"].items() if row.keys() & set(quantities)]
    return _beside_published("As its authors count", quantities, own, theirs)


def leaderboard_table(metrics: Mapping[str, Any], names: Mapping[str, str] = _NO_NAMES) -> Table:
    """Refusals of MOSSBench's benign requests in %, by type: the run's arms, then the published rows."""
    own = [
        (names.get(row.model, row.model), [fixed(cell, 1) for cell in (*row.cells, row.average)])
        for row in leaderboard_rows(metrics)
        if row.convention == CONVENTIONS[0]
    ]
    theirs = [(name, [fixed(cell, 1) for cell in cells]) for name, cells in MOSSBENCH.items()]
    return _beside_published("MOSSBench’s leaderboard", (*COLUMNS, "average"), own, theirs)


def _beside_published(
    title: str,
    headings: Iterable[str],
    own: Iterable[tuple[str, list[str]]],
    published: Iterable[tuple[str, list[str]]],
) -> Table:
    """The run's rows by name, marked, then published ones."""
    columns = [Column("model or arm", "left"), Column("source", "left"), *map(Column, headings)]
    rows = [
        Row([Cell(text) for text in (name, source, *cells)], marked=source == "here")
        for source, listed in (("here", own), ("published", published))
        for name, cells in listed
    ]
    return Table(title, columns, rows)
