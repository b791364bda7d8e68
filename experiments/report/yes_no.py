"""metrics.json of a yes/no benchmark as tables, the same for the terminal and the page."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.benchmarks.published import PublishedRow
from experiments.report.arm_tables import (
    Block,
    against,
    bounds_text,
    by_arm,
    d_prime_cell,
    known_cell,
    marks,
    outcomes_table,
    remarks,
    share_cell,
    yes_or_no,
)
from experiments.report.numbers import MISSING, fixed, p_value, percent
from experiments.report.sentences.wording import deciding, word
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, number, rate

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
ON_THE_PAGE = ("d_prime", "flip_rate", "twins_in_order")  # differences that a terminal has no room for
CONTRASTED = ("matched_over_safety", "auroc", "unsafe", "over_safety", "overall", "twins_in_order")
_SHORT = {"typical": "typ-\nical", "attack": "att-\nack", "over-safety": "over-\nsafety", "overall": "over-\nall"}


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
        "remarks": remarks(metrics, conclusion),
        "published": published_table(metrics, published) if published else None,
    }


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, in the order of metrics.json: accuracies, d′, criterion, AUROC, flip rate."""

    def accuracy(key: str) -> Callable[[Block], Cell]:
        return lambda arm: _rate_cell(arm, arm["accuracy"].get(key), key)

    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("n of N", short="n of n"): known_cell,
        Column("matched over-safety", short="matched"): lambda arm: share_cell(arm.get("matched_over_safety")),
        **{
            Column(heading, short=_SHORT.get(heading, "")): accuracy(key)
            for key, heading in _accuracies(metrics).items()
        },
        # d′ and c stand without intervals: ten columns with them do not fit a terminal; the report has them.
        Column("d′", narrow=Narrow.VALUE): d_prime_cell,
        Column("criterion", short="c", narrow=Narrow.VALUE): (
            lambda arm: number(arm.get("criterion"), arm["intervals"].get("criterion"))
        ),
        Column("AUROC", narrow=Narrow.TERSE): lambda arm: number(arm.get("auroc"), arm["intervals"].get("auroc"), 3),
        Column("flip rate", narrow=Narrow.NOTHING): lambda arm: _rate_cell(arm, arm.get("flip_rate"), "flip_rate"),
    }
    if _has_twins(metrics):
        cells[Column("twins in order", narrow=Narrow.NOTHING)] = lambda arm: share_cell(arm.get("twins_in_order"))
    return by_arm("Arms", metrics, cells)


def _has_twins(metrics: Mapping[str, Any]) -> bool:
    """Whether any arm has counterfactual pairs with margins."""
    return any(arm.get("twins_in_order") for arm in metrics["arms"].values())


def _accuracies(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The accuracies of a table and their headings: without attacks, as in a table of one's own, all unsafe as one."""
    counts = [arm["n_by_subset"] for arm in metrics["arms"].values() if "n_by_subset" in arm]
    if not counts or any(of["attack"][1] for of in counts) or not any(of["typical"][1] for of in counts):
        return ACCURACIES
    return {"unsafe": "unsafe", "over_safety": "safe", "overall": "overall"}


def _rate_cell(arm: Block, value: float | None, key: str) -> Cell:
    return rate(value, arm["intervals"].get(key), bounds_text((arm.get("bounds") or {}).get(key)))


def own_subsets_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row an arm and subset of a table of one's own, by its own name; None where the cases have no such subsets."""

    def found(parts: Sequence[str], block: Any) -> Mapping[str, Any] | None:
        return next((block[1][part] for part in parts if part in block[1]), None)

    def accuracy(parts: Sequence[str], block: Any) -> Cell:
        return share_cell(found(parts, block), "accuracy")

    def count(parts: Sequence[str], block: Any) -> Cell:
        return Cell(str((found(parts, block) or {"n": 0})["n"]))

    blocks = [
        (name, (subset, cells))
        for name, arm in metrics["arms"].items()
        for subset, cells in (arm.get("by_tag") or {}).get("subset", {}).items()
    ]
    cells: dict[Column, Callable[[Any], Cell]] = {Column("subset", "left", fold=32): lambda block: Cell(block[0])}
    for heading, n, parts in (("unsafe", "of", ("typical", "attack")), ("over-safety", "of ", ("over_safety",))):
        cells |= {Column(heading): partial(accuracy, parts), Column(n): partial(count, parts)}
    title = "Own subsets: unsafe cases called unsafe, safe cases called safe"
    return by_arm(title, metrics, cells, blocks) if blocks else None


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, McNemar's counts, Holm's p, and whether it wins."""
    compared = metrics.get("comparisons") or {}
    known = {key for one in compared.values() for key in one.get("delta") or {}}
    known -= set() if _has_twins(metrics) else {"twins_in_order"}

    def difference(key: str, comparison: Block) -> Cell:
        return _delta_cell(key, (comparison.get("delta") or {}).get(key))

    def test(comparison: Block, key: str) -> Any:
        return (comparison.get("mcnemar") or {}).get(key)

    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("cases", narrow=Narrow.NOTHING): lambda one: Cell(_count(one.get("n"))),
        **{
            Column(heading, short=_SHORT["over-safety"] if key == "over_safety" else "",
                   narrow=Narrow.NOTHING if key in ON_THE_PAGE else Narrow.WHOLE):
            partial(difference, key)
            for key, heading in DELTAS.items() if key in known
        },
        Column("fixed / broken", narrow=Narrow.NOTHING): (
            lambda one: Cell(_count(test(one, "fixed")), below=f"/ {_count(test(one, 'broken'))}")
        ),
        Column("p (Holm)", narrow=Narrow.NOTHING): lambda one: Cell(p_value(test(one, "p_holm"))),
        Column("wins"): lambda one: Cell(yes_or_no(one.get("wins"))),
    }  # fmt: skip
    return by_arm(f"Paired differences against {against(metrics)}", metrics, cells, compared)


def contrasts_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row a pair of arms that were compared beside the baseline's comparisons; None where none were.

    Matched accuracy and AUROC with their simultaneous intervals, all else each by itself.
    """
    keys = [key for key in CONTRASTED if key != "twins_in_order" or _has_twins(metrics)]
    records: list[dict[str, str | Cell]] = []
    for arm, one in (metrics.get("comparisons") or {}).items():
        for other, delta in (one.get("versus") or {}).items():
            shown = {key: entry and deciding(entry, studied=False) for key, entry in delta.items()}
            records.append(
                {"arms": f"{arm} − {other}", **{DELTAS[key]: _delta_cell(key, shown.get(key)) for key in keys}}
            )
    return Table.of("Arms beside one another", records) if records else None


def _delta_cell(key: str, delta: Mapping[str, Any] | None) -> Cell:
    return change(delta, digits={"auroc": 3, "d_prime": 2}.get(key))


def conclusion(delta: Mapping[str, Any], studied: bool) -> str:
    """What is said of both quantities that are read from margins."""
    matched, auroc = (
        word(entry and deciding(entry, studied=studied), of_rates=of_rates)
        for entry, of_rates in ((delta["matched_over_safety"], True), (delta["auroc"], False))
    )
    return f"over-safety at the baseline's strictness: {matched}; AUROC: {auroc}"


def conventions_table(metrics: Mapping[str, Any]) -> Table:
    """The same answers scored in other ways: pooled over cases, and with the scorer that the paper published."""

    def published(key: str, arm: Block) -> Cell:
        return Cell(percent(_published(arm).get(key)))

    def controls(arm: Block) -> Cell:
        found = arm.get("controls")
        return Cell(f"{percent(found.get('accuracy'))} of {found['n']}" if found else MISSING)

    cells: dict[Column, Callable[[Block], Cell]] = {
        Column("overall, case-weighted"): lambda arm: Cell(percent(arm["accuracy"].get("overall_case_weighted"))),
        **{Column(f"published scorer: {heading}"): partial(published, key) for key, heading in ACCURACIES.items()},
        Column("controls"): controls,
    }
    return by_arm("The same answers by other conventions", metrics, cells)


def _published(arm: Block) -> Mapping[str, float]:
    """The accuracies by the scorer that the paper published."""
    return (arm.get("published") or {}).get("accuracy") or {}


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
        known = [rate for key in ACCURACIES if (rate := _published(arm).get(key)) is not None]
        if len(known) == len(ACCURACIES):
            typical, attack, over_safety, overall = known
            rows.append(PublishedRow("here", name, typical, attack, (typical + attack) / 2, over_safety, overall))
    return rows


def _count(count: int | None) -> str:
    return MISSING if count is None else str(count)
