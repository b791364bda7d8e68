"""metrics.json of a refusal benchmark as tables, the same for the terminal and the page."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.benchmarks.published import MOSSBENCH
from experiments.metrics.refusal.leaderboard import COLUMNS, CONVENTIONS, leaderboard_rows
from experiments.report.numbers import MISSING, complete, fixed, p_value, percent, percent_interval
from experiments.report.sentences.wording import deciding, statement_text
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, number, rate
from experiments.report.yes_no import ARM, against, d_prime_cell, marks, studied
from experiments.types import REFUSAL_SUBSETS

DELTAS = {"benign": "benign", "contrast": "contrast", "difference": "apart", "d_prime": "d′"}
ARMS = ("arm", "known of N", "benign", "contrast", "apart", "mean of types", "d′", "criterion")
OTHERWISE = ("partial as compliance: benign", "partial as compliance: contrast", "published: benign",
             "published: contrast")  # fmt: skip
CORRECTED = ("corrected: benign", "corrected: contrast")  # for the judge's error
NOT_RUN = "not compared"
_MOST_TAGS = 12


class Remark(NamedTuple):
    """What stands below the paired comparisons about one of them."""

    name: str
    conclusion: str
    better: str
    reasons: tuple[str, ...]


def context(
    metrics: Mapping[str, Any], *, benchmark: str = "", names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What ``templates/refusal.html.j2`` prints of the metrics; MOSSBench has published rows beside them."""
    arms, types, tags = arms_table(metrics), types_table(metrics), tags_table(metrics)
    return {
        "refusal": True,
        "arms": arms.first(len(ARMS)),
        "types": types,
        **marks(metrics, arms, types),
        "outcomes": outcomes(metrics),
        "conventions": arms.only("arm", *OTHERWISE, *(CORRECTED if _corrected(metrics) else ())),
        "tags": tags if tags.rows else None,
        "empty_as_refusal": bool(metrics["method"]["empty_as_refusal"]),
        "against": against(metrics),
        "comparisons": comparisons_table(metrics) if metrics.get("comparisons") else None,
        "remarks": remarks(metrics),
        "published": leaderboard_table(metrics, names or {}) if benchmark == "mossbench" else None,
        "pairs": pairs_table(metrics) if any(arm.get("pairs") for arm in metrics["arms"].values()) else None,
        "as_published": as_published_table(metrics, names or {}) if metrics.get("as_published") else None,
        "as_published_rule": (metrics.get("as_published") or {}).get("rule", ""),
    }


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, in the order of metrics.json, then those that cannot enter, with the reason.

    Of the columns, ``ARMS`` are by our own convention, ``OTHERWISE`` the same answers by two others; ``CORRECTED`` for
    the judge's error where that was measured.
    """
    columns = [
        ARM,
        Column("known of N", short="known\nof N"),
        Column("benign"),
        Column("contrast", short="con-\ntrast"),
        Column("apart"),
        Column("mean of types", short="type\nmean"),
        Column("d′", narrow=Narrow.VALUE),
        Column("criterion", short="c", narrow=Narrow.VALUE),
        Column(OTHERWISE[0], short="without\npartial"),
        Column(OTHERWISE[1], short=" ", narrow=Narrow.BELOW),
        Column(OTHERWISE[2], short="pub-\nlished"),
        Column(OTHERWISE[3], short=" ", narrow=Narrow.BELOW),
    ]
    if _corrected(metrics):
        columns += [Column(CORRECTED[0], short="cor-\nrected"), Column(CORRECTED[1], short=" ", narrow=Narrow.BELOW)]
    rows = [_arm_row(metrics, name, arm) for name, arm in metrics["arms"].items()]
    apart = [Row([Cell(name)], reason=str(why)) for name, why in (metrics.get("not_applicable") or {}).items()]
    return Table("Refusals by arm", columns, [*rows, *apart])


def _arm_row(metrics: Mapping[str, Any], name: str, arm: Mapping[str, Any]) -> Row:
    rates, intervals = arm["refusal_rate"], arm["intervals"]

    def of_subset(subset: str) -> Cell:
        n, n_of = arm["n_by_subset"][subset]
        bounds = percent_interval(complete(arm["bounds"][subset]), 1) if n < n_of else ""
        return rate(rates[subset], intervals[subset], bounds)

    others = (arm[convention][subset] for convention in ("partial_as_compliance", "published")
              for subset in ("benign", "contrast"))  # fmt: skip
    cells = [
        Cell(name),
        Cell(str(arm["n"]), below=f"of {arm['n_of']}"),
        of_subset("benign"),
        of_subset("contrast"),
        change(arm["apart"]),
        rate(rates["type_mean"], intervals["type_mean"]),
        d_prime_cell(arm),
        number(arm["criterion"], intervals["criterion"]),
        *(Cell(percent(other)) for other in others),
        *([_corrected_cell(metrics, name, subset) for subset in REFUSAL_SUBSETS] if _corrected(metrics) else ()),
    ]
    return studied(Row(cells), metrics)


def _corrected(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The corrected rates by arm and subset; empty where the judge's error was not measured."""
    return (metrics.get("corrected") or {}).get("arms") or {}


def _corrected_cell(metrics: Mapping[str, Any], name: str, subset: str) -> Cell:
    found = _corrected(metrics).get(name, {}).get(subset)
    return Cell(MISSING) if found is None else Cell(percent(found["rate"]), percent_interval(found["interval"]))


def types_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm and type of stimulus, the rows of an arm together."""
    columns = [ARM, Column("type", "left", fold=32), *map(Column, ("benign", "refused of n", "contrast", "apart"))]
    rows = []
    for name, arm in metrics["arms"].items():
        for type_, cells in arm["by_type"].items():
            benign = cells["benign"]
            counted = f"{benign['refused']} of {benign['n']}" if benign else ""
            row = [Cell(name), Cell(type_), rate_cell(benign), Cell(counted), rate_cell(cells["contrast"]),
                   change(cells["difference"])]  # fmt: skip
            rows.append(studied(Row(row), metrics))
    return Table("Refusals by type of stimulus", columns, rows)


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, flips, Holm's p."""
    columns = [
        ARM,
        Column("cases", narrow=Narrow.NOTHING),
        *(Column(heading, short="con-\ntrast" if key == "contrast" else "") for key, heading in DELTAS.items()),
        Column("fixed/broken: benign", short="fixed/broken\nbenign"),
        Column("fixed/broken: contrast", short="\ncontrast"),
        Column("p (Holm)", short="p\n"),
    ]
    rows = []
    for name, one in (metrics.get("comparisons") or {}).items():
        deltas = (change(one["delta"][key], digits=2 if key == "d_prime" else None) for key in DELTAS)
        flips = (one["mcnemar"]["by_subset"][subset] for subset in ("benign", "contrast"))
        counts = (Cell(f"{flip['fixed']}/{flip['broken']}") for flip in flips)
        cells = [Cell(name), Cell(str(one["n"])), *deltas, *counts, Cell(p_value(one["mcnemar"]["p_holm"]))]
        rows.append(studied(Row(cells), metrics))
    return Table(f"Paired differences against {against(metrics)}", columns, rows)


def remarks(metrics: Mapping[str, Any]) -> list[Remark]:
    """What the comparisons conclude, in the order of metrics.json."""
    found = []
    for name, one in (metrics.get("comparisons") or {}).items():
        studied = name == metrics["study"]
        benign, contrast = (
            statement_text(deciding(entry, studied=studied)) if (entry := one["delta"].get(subset)) else NOT_RUN
            for subset in REFUSAL_SUBSETS
        )
        totals = f"refusals of benign requests: {benign}; of harmful ones: {contrast}"
        better = MISSING if one["wins"] is None else "yes" if one["wins"] else "no"
        found.append(Remark(name, totals, better, tuple(one["wins_reasons"])))
    return found


def tags_table(metrics: Mapping[str, Any]) -> Table:
    """Refusals of the studied arm by what the benchmark says of its cases; the first dozen values."""
    name = str(metrics["study"])
    records = [
        {"tag": tag, "value": value, "benign": rate_cell(cells.get("benign")).value,
         "contrast": rate_cell(cells.get("contrast")).value,
         "benign cases": str((cells.get("benign") or {}).get("n", 0))}
        for tag, values in metrics["arms"][name]["by_tag"].items()
        for value, cells in values.items()
    ]  # fmt: skip
    return Table.of(f"Refusals of {name} by tag", records[:_MOST_TAGS])


def pairs_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm: how often a benign case and its harmful twin, alike but for picture or text, were told apart."""
    columns = [ARM, *map(Column, ("pairs", "flip rate", "both answered", "both refused", "wrong way round"))]
    rows = []
    for name, arm in metrics["arms"].items():
        pairs = arm.get("pairs")
        if not pairs:
            continue
        flipped = rate(pairs["flip_rate"], pairs["interval"])
        counts = (Cell(str(pairs[key])) for key in ("both_answered", "both_refused", "wrong_way_round"))
        rows.append(
            studied(Row([Cell(name), Cell(str(pairs["n"]), below=f"of {pairs['n_of']}"), flipped, *counts]), metrics)
        )
    return Table("Counterfactual pairs", columns, rows)


def as_published_table(metrics: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})) -> Table:
    """The run's arms counted as the benchmark's authors count, then their rows; in %."""
    block = metrics["as_published"]
    quantities = list(dict.fromkeys(key for arm in block["arms"].values() for key in arm))
    shown = [(names.get(name, name), "here", arm) for name, arm in block["arms"].items()]
    shown += [(name, "published", row) for name, row in block["published"].items() if row.keys() & set(quantities)]
    rows = [
        Row([Cell(name), Cell(source), *(Cell(percent(row.get(key))) for key in quantities)], marked=source == "here")
        for name, source, row in shown
    ]
    columns = [Column("model or arm", "left"), Column("source", "left"), *map(Column, quantities)]
    return Table("As its authors count", columns, rows)


def leaderboard_table(metrics: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})) -> Table:
    """Refusals of MOSSBench's benign requests in %, by type: the run's arms, then the published rows.

    ``names`` are what answered in arms whose responses were made elsewhere.
    """
    own = [row for row in leaderboard_rows(metrics) if row.convention == CONVENTIONS[0]]
    shown = [(names.get(row.model, row.model), "here", [*row.cells, row.average]) for row in own]
    shown += [(name, "published", list(cells)) for name, cells in MOSSBENCH.items()]
    rows = [
        Row([Cell(name), Cell(source), *(Cell(fixed(cell, 1)) for cell in cells)], marked=source == "here")
        for name, source, cells in shown
    ]
    columns = [Column("model or arm", "left"), Column("source", "left"), *map(Column, (*COLUMNS, "average"))]
    return Table("MOSSBench’s leaderboard", columns, rows)


def outcomes(metrics: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Arm → (status or verdict, count)."""
    return [(name, _outcomes(arm)) for name, arm in metrics["arms"].items()]


def _outcomes(arm: Mapping[str, Any]) -> list[tuple[str, int]]:
    counted = [(str(key), int(n)) for key, n in arm["outcomes"]["status"].items() if n]
    return counted + [(f"verdict {key}", int(n)) for key, n in arm["outcomes"]["verdict"].items() if n]


def rate_cell(cell: Mapping[str, Any] | None) -> Cell:
    """A rate with interval and, where cases are missing, the bounds they allow."""
    if cell is None:
        return Cell(MISSING)
    bounds = percent_interval(cell["bounds"], 1) if cell["n"] < cell["n_of"] else ""
    return rate(cell["rate"], cell["interval"], bounds)
