"""metrics.json of a yes/no benchmark as tables, the same for the terminal and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from experiments.benchmarks.published import PublishedRow
from experiments.report.numbers import (
    MISSING,
    Interval,
    complete,
    fixed,
    p_value,
    percent,
    percent_interval,
)
from experiments.report.sentences.wording import deciding, word
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, number, rate
from experiments.types import Status, Verdict

ACCURACIES = {"typical": "typical", "attack": "attack", "over_safety": "over-safety", "overall": "overall"}
DELTAS = {
    "matched_over_safety": "matched",
    "overall": "overall",
    "unsafe": "unsafe",
    "over_safety": "over-safety",
    "auroc": "AUROC",
    "d_prime": "d′",
    "flip_rate": "flip rate",
    "twins_in_order": "twins in order",
}
CEILING_MARK = "*"
NAME_WIDTH = 16  # "calibrated_shift", and all that 80 columns leave; longer names go on in the next line
ARM = Column("arm", "left", fold=NAME_WIDTH)
_SHORT = {"typical": "typ-\nical", "attack": "att-\nack", "over-safety": "over-\nsafety", "overall": "over-\nall"}


class Remark(NamedTuple):
    """What stands below the paired comparisons about one of them."""

    name: str
    conclusion: str
    cases_needed: int | None
    wins: str
    reasons: tuple[str, ...]


def context(metrics: Mapping[str, Any], published: Sequence[PublishedRow]) -> dict[str, Any]:
    """What ``templates/report.html.j2`` prints of the metrics; ``published`` are rows to stand beside the arms."""
    arms = arms_table(metrics)
    return {
        "refusal": False,
        "arms": arms,
        "own_subsets": own_subsets_table(metrics),
        "notes": [(name, arm["auroc_note"]) for name, arm in metrics["arms"].items() if arm.get("auroc_note")],
        **marks(metrics, arms),
        "outcomes": outcomes_table(metrics),
        "conventions": conventions_table(metrics),
        "against": against(metrics),
        "comparisons": comparisons_table(metrics) if metrics.get("comparisons") else None,
        "contrasts": contrasts_table(metrics),
        "remarks": remarks(metrics),
        "published": published_table(metrics, published) if published else None,
    }


def marks(metrics: Mapping[str, Any], *tables: Table) -> dict[str, Any]:
    """Whether any cell has bounds, whether any d′ is marked as near its ceiling, and the mark."""
    cells = (cell for table in tables for row in table.rows for cell in row.cells)
    near = (arm.get("near_ceiling") and arm.get("d_prime") is not None for arm in metrics["arms"].values())
    return {"any_bounds": any(cell.bounds for cell in cells), "any_ceiling": any(near), "ceiling_mark": CEILING_MARK}


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, in the order of metrics.json: accuracies, d′, criterion, AUROC, flip rate."""
    columns = [
        ARM,
        Column("n of N", short="n of n"),
        Column("matched over-safety", short="matched"),
        *(Column(heading, short=_SHORT.get(heading, heading)) for heading in _accuracies(metrics).values()),
        # d′ and c stand without intervals: ten columns with them do not fit a terminal; the report has them.
        Column("d′", narrow=Narrow.VALUE),
        Column("criterion", short="c", narrow=Narrow.VALUE),
        Column("AUROC", narrow=Narrow.TERSE),
        Column("flip rate", short="flips", narrow=Narrow.NOTHING),
        *([Column("twins in order", narrow=Narrow.NOTHING)] if _has_twins(metrics) else []),
    ]
    return Table("Arms", columns, [_arm_row(metrics, name, arm) for name, arm in metrics["arms"].items()])


def _arm_row(metrics: Mapping[str, Any], name: str, arm: Mapping[str, Any]) -> Row:
    intervals = arm["intervals"]
    cells = [
        Cell(name),
        Cell(str(arm["n"]), below=f"of {arm['n_of']}"),
        _matched_cell(arm.get("matched_over_safety")),
        *(_rate_cell(arm, arm["accuracy"].get(key), key) for key in _accuracies(metrics)),
        d_prime_cell(arm),
        number(arm.get("criterion"), intervals.get("criterion")),
        number(arm.get("auroc"), intervals.get("auroc"), 3),
        _rate_cell(arm, arm.get("flip_rate"), "flip_rate"),
        *([_matched_cell(arm.get("twins_in_order"))] if _has_twins(metrics) else []),
    ]
    return studied(Row(cells), metrics)


def _has_twins(metrics: Mapping[str, Any]) -> bool:
    """Whether any arm has counterfactual pairs with margins."""
    return any(arm.get("twins_in_order") for arm in metrics["arms"].values())


def _accuracies(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The accuracies of a table and their headings: without attacks, as in a table of one's own, all unsafe as one."""
    counts = [arm["n_by_subset"] for arm in metrics["arms"].values() if "n_by_subset" in arm]
    if not counts or any(of["attack"][1] for of in counts) or not any(of["typical"][1] for of in counts):
        return ACCURACIES
    return {"unsafe": "unsafe", "over_safety": "safe", "overall": "overall"}


def own_subsets_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row an arm and subset of a table of one's own, by its own name; None where the cases have no such subsets."""
    columns = [ARM, Column("subset", "left", fold=32), *map(Column, ("unsafe", "of", "over-safety", "of "))]
    rows = []
    for name, arm in metrics["arms"].items():
        for subset, cells in (arm.get("by_tag") or {}).get("subset", {}).items():
            row = [Cell(name), Cell(subset)]
            for parts in (("typical", "attack"), ("over_safety",)):
                found = next((cells[part] for part in parts if part in cells), None)
                row += [rate(found["accuracy"], found["interval"]) if found else Cell(MISSING),
                        Cell(str(found["n"] if found else 0))]  # fmt: skip
            rows.append(studied(Row(row), metrics))
    return Table("Own subsets: unsafe cases called unsafe, safe cases called safe", columns, rows) if rows else None


def studied(row: Row, metrics: Mapping[str, Any]) -> Row:
    """The row, marked where it is the studied arm's."""
    return replace(row, marked=row.cells[0].value == metrics.get("study"))


def _matched_cell(found: Mapping[str, Any] | None) -> Cell:
    """A share with its interval, such as matched over-safety, which not every arm has."""
    return Cell(MISSING) if found is None else rate(found["value"], found["interval"])


def d_prime_cell(arm: Mapping[str, Any]) -> Cell:
    """d′ with its interval, and a mark where a rate is close to 0 or 1."""
    value = arm.get("d_prime")
    mark = CEILING_MARK if arm.get("near_ceiling") and value is not None else ""
    return number(value, arm["intervals"].get("d_prime"), mark=mark)


def _rate_cell(arm: Mapping[str, Any], value: float | None, key: str) -> Cell:
    bounds: Interval = (arm.get("bounds") or {}).get(key)
    ends = complete(bounds)
    wide = ends is not None and percent(ends[0]) != percent(ends[1])  # equal ends: nothing was missing
    return rate(value, arm["intervals"].get(key), percent_interval(bounds, 1) if wide else "")


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, McNemar's counts, Holm's p, and whether it wins."""
    compared = metrics.get("comparisons") or {}
    wide = ("d_prime", "flip_rate", "twins_in_order")
    deltas = {k: v for k, v in DELTAS.items() if any(k in (one.get("delta") or {}) for one in compared.values())
              and (k != "twins_in_order" or _has_twins(metrics))}  # fmt: skip
    columns = [
        ARM,
        Column("cases", narrow=Narrow.NOTHING),
        *(Column(heading, short="over-\nsafety" if key == "over_safety" else heading,
                 narrow=Narrow.NOTHING if key in wide else Narrow.WHOLE) for key, heading in deltas.items()),
        Column("fixed / broken", narrow=Narrow.NOTHING),
        Column("p (Holm)", short="p", narrow=Narrow.TERSE),
        Column("wins", narrow=Narrow.BELOW),
    ]  # fmt: skip
    rows = [_comparison_row(metrics, name, one, list(deltas)) for name, one in compared.items()]
    return Table(f"Paired differences against {against(metrics)}", columns, rows)


CONTRASTED = {key: DELTAS[key] for key in ("matched_over_safety", "auroc", "unsafe", "over_safety", "overall")}


def contrasts_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row a pair of arms that were compared beside the baseline's comparisons; None where none were.

    Matched accuracy and AUROC with their simultaneous intervals, all else each by itself.
    """
    compared = metrics.get("comparisons") or {}
    pairs = {
        f"{arm} − {other}": delta for arm, one in compared.items() for other, delta in (one.get("versus") or {}).items()
    }
    keys = CONTRASTED | ({"twins_in_order": DELTAS["twins_in_order"]} if _has_twins(metrics) else {})
    columns = [Column("arms", "left"), *(Column(heading) for heading in keys.values())]
    rows = []
    for name, delta in pairs.items():
        shown = {key: entry and deciding(entry, studied=False) for key, entry in delta.items()}
        rows.append(Row([Cell(name), *(_delta_cell(key, shown.get(key)) for key in keys)]))
    return Table("Arms beside one another", columns, rows) if rows else None


def against(metrics: Mapping[str, Any]) -> str:
    """The arms that others are compared with."""
    return ", ".join(dict.fromkeys(one["against"] for one in (metrics.get("comparisons") or {}).values()))


def _comparison_row(metrics: Mapping[str, Any], name: str, comparison: Mapping[str, Any], deltas: Sequence[str]) -> Row:
    test, wins = comparison.get("mcnemar") or {}, comparison.get("wins")
    known = comparison.get("delta") or {}
    cells = [
        Cell(name),
        Cell(_count(comparison.get("n"))),
        *(_delta_cell(key, known.get(key)) for key in deltas),
        Cell(_count(test.get("fixed")), below=f"/ {_count(test.get('broken'))}"),
        Cell(p_value(test.get("p_holm"))),
        Cell(_yes_no(wins)),
    ]
    return studied(Row(cells), metrics)


def _delta_cell(key: str, delta: Mapping[str, Any] | None) -> Cell:
    return change(delta, digits={"auroc": 3, "d_prime": 2}.get(key))


def remarks(metrics: Mapping[str, Any]) -> list[Remark]:
    """What the comparisons conclude, in the order of metrics.json."""
    return [
        Remark(name, _conclusion(one, studied=name == metrics.get("study")),
               one.get("cases_needed_for_5_points"), _yes_no(one.get("wins")), tuple(one.get("wins_reasons") or ()))
        for name, one in (metrics.get("comparisons") or {}).items()
    ]  # fmt: skip


def _conclusion(comparison: Mapping[str, Any], *, studied: bool) -> str:
    """What is said of both quantities that are read from margins."""
    delta = comparison["delta"]
    matched, auroc = (
        word(entry and deciding(entry, studied=studied), of_rates=of_rates)
        for entry, of_rates in ((delta["matched_over_safety"], True), (delta["auroc"], False))
    )
    return f"over-safety at the baseline's strictness: {matched}; AUROC: {auroc}"


def outcomes_table(metrics: Mapping[str, Any]) -> Table:
    """Counts of what became of the cases, a row an arm, over the outcomes that occur in any arm."""
    arms = metrics["arms"]
    kinds: list[tuple[str, str]] = []
    for kind, known in (("status", list(Status)), ("verdict", list(Verdict))):
        counted = {key for arm in arms.values() for key, n in _counts(arm, kind).items() if n}
        kinds += [(kind, key) for key in (*(k for k in known if k in counted), *sorted(counted - set(known)))]
    rows = [
        Row([Cell(name), *(Cell(str(_counts(arm, kind).get(key, 0))) for kind, key in kinds)])
        for name, arm in arms.items()
    ]
    headings = [_outcome(kind, key) for kind, key in kinds]
    return Table("What became of the cases", [ARM, *map(Column, headings)], rows)


def conventions_table(metrics: Mapping[str, Any]) -> Table:
    """The same answers scored in other ways: pooled over cases, and with the scorer that the paper published."""
    published_scorer = (f"published scorer: {heading}" for heading in ACCURACIES.values())
    columns = [ARM, *map(Column, ("overall, case-weighted", *published_scorer, "controls"))]
    rows = []
    for name, arm in metrics["arms"].items():
        published = (arm.get("published") or {}).get("accuracy") or {}
        controls = arm.get("controls") or {}
        rows.append(Row([
            Cell(name),
            Cell(percent(arm["accuracy"].get("overall_case_weighted"))),
            *(Cell(percent(published.get(key))) for key in ACCURACIES),
            Cell(f"{percent(controls.get('accuracy'))} of {controls['n']}" if controls else MISSING),
        ]))  # fmt: skip
    return Table("The same answers by other conventions", columns, rows)


def published_table(metrics: Mapping[str, Any], published: Sequence[PublishedRow]) -> Table:
    """The run's own rows, by the published scorer, then the published ones by number."""
    headings = ("typical", "attack", "unsafe", "over-safety", "overall", "d′", "criterion")
    columns = [Column("no. and model", "left"), Column("table", "left"), *map(Column, headings)]
    own = [_published_row(row, row.name, marked=True) for row in own_rows(metrics)]
    theirs = [_published_row(row, f"{number}. {row.name}") for number, row in enumerate(published, start=1)]
    return Table("Published rows of this benchmark", columns, [*own, *theirs])


def _published_row(row: PublishedRow, name: str, *, marked: bool = False) -> Row:
    parts = ("–" if rate is None else percent(rate) for rate in (row.typical, row.attack))
    rates = (percent(rate) for rate in (row.unsafe, row.over_safety, row.overall))
    cells = (name, row.table, *parts, *rates, fixed(row.d_prime, 2), fixed(row.criterion, 2))
    return Row([Cell(text) for text in cells], marked=marked)


def own_rows(metrics: Mapping[str, Any]) -> list[PublishedRow]:
    """The run's arms as rows to stand beside the published ones: by the published scorer, as those are."""
    rows = []
    for name, arm in metrics["arms"].items():
        found = (arm.get("published") or {}).get("accuracy") or {}
        known = [float(found[key]) for key in ACCURACIES if found.get(key) is not None]
        if len(known) == len(ACCURACIES):
            typical, attack, over_safety, overall = known
            rows.append(PublishedRow("here", name, typical, attack, (typical + attack) / 2, over_safety, overall))
    return rows


def _counts(arm: Mapping[str, Any], kind: str) -> Mapping[str, int]:
    return (arm.get("outcomes") or {}).get(kind) or {}


def _outcome(kind: str, key: str) -> str:
    words = key.replace("_", " ")
    return words if kind == "status" or key == Verdict.NO_VERDICT else f"verdict {words}"


def _count(count: int | None) -> str:
    return MISSING if count is None else str(count)


def _yes_no(wins: bool | None) -> str:
    return MISSING if wins is None else ("yes" if wins else "no")
