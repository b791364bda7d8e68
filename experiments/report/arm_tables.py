"""What the tables of yes/no and refusal benchmarks share: a row an arm, from metrics.json."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.report.numbers import MISSING, Interval, complete, percent, percent_interval
from experiments.report.table import Cell, Column, Row, Table, number, rate
from experiments.types import Status, Verdict

CEILING_MARK = "*"
NAME_WIDTH = 16  # "calibrated_shift", and all that 80 columns leave; longer names go on in the next line
ARM = Column("arm", "left", fold=NAME_WIDTH)
Block = Mapping[str, Any]  # what metrics.json has of an arm


def by_arm(
    title: str,
    metrics: Mapping[str, Any],
    cells: Mapping[Column, Callable[[Any], Cell]],
    blocks: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
) -> Table:
    """A row an arm with its name and ``cells``, the arm under study marked; then a row an arm that cannot enter.

    Args:
        title: the table's.
        metrics: the contents of metrics.json.
        cells: for each column what it holds of an arm's block.
        blocks: the blocks by arm, ``metrics["arms"]`` by default; pairs where an arm has several rows.
    """
    study = metrics.get("study")
    apart = {} if blocks is not None else metrics.get("not_applicable") or {}
    blocks = metrics["arms"] if blocks is None else blocks
    rows = [
        Row([Cell(name), *(cell(block) for cell in cells.values())], marked=name == study)
        for name, block in (blocks.items() if isinstance(blocks, Mapping) else blocks)
    ]
    rows += [Row([Cell(name)], reason=str(why)) for name, why in apart.items()]
    return Table(title, [ARM, *cells], rows)


def known_cell(block: Block) -> Cell:
    """The number of cases of which something is known, of all."""
    return Cell(str(block["n"]), below=f"of {block['n_of']}")


def share_cell(found: Mapping[str, Any] | None, key: str = "value") -> Cell:
    """A rate with its interval, which not every arm has; where cases are missing, with the bounds they allow."""
    if found is None:
        return Cell(MISSING)
    bounds = percent_interval(found["bounds"], 1) if "bounds" in found and found["n"] < found["n_of"] else ""
    return rate(found[key], found["interval"], bounds)


def bounds_text(bounds: Interval) -> str:
    """The lowest and highest value that missing cases allow; empty where both are the same, for nothing is missing."""
    ends = complete(bounds)
    return percent_interval(ends, 1) if ends and percent(ends[0]) != percent(ends[1]) else ""


def d_prime_cell(block: Block) -> Cell:
    """d′ with its interval, and a mark where a rate is close to 0 or 1."""
    value = block.get("d_prime")
    mark = CEILING_MARK if block.get("near_ceiling") and value is not None else ""
    return number(value, block["intervals"].get("d_prime"), mark=mark)


def marks(metrics: Mapping[str, Any], *tables: Table) -> dict[str, Any]:
    """Whether any cell has bounds, whether any d′ is marked as near its ceiling, and the mark."""
    cells = (cell for table in tables for row in table.rows for cell in row.cells)
    near = (arm.get("near_ceiling") and arm.get("d_prime") is not None for arm in metrics["arms"].values())
    return {"any_bounds": any(cell.bounds for cell in cells), "any_ceiling": any(near), "ceiling_mark": CEILING_MARK}


def against(metrics: Mapping[str, Any]) -> str:
    """The arms that others are compared with."""
    return ", ".join(dict.fromkeys(one["against"] for one in (metrics.get("comparisons") or {}).values()))


def remarks(metrics: Mapping[str, Any], conclusion: Callable[[Mapping[str, Any], bool], str]) -> list[dict[str, Any]]:
    """What stands below the paired comparisons about each, in the order of metrics.json.

    ``conclusion`` says what follows of a comparison's differences, and is told whether its arm is under study.
    """
    return [
        {
            "name": name,
            "conclusion": conclusion(one["delta"], name == metrics.get("study")),
            "cases_needed": one.get("cases_needed_for_5_points"),
            "wins": yes_or_no(one.get("wins")),
            "reasons": one.get("wins_reasons") or (),
        }
        for name, one in (metrics.get("comparisons") or {}).items()
    ]


def yes_or_no(value: bool | None) -> str:
    """``value`` in a word."""
    return MISSING if value is None else "yes" if value else "no"


def outcomes_table(metrics: Mapping[str, Any]) -> Table:
    """Counts of what became of the cases, a row an arm, over the outcomes that occur in any arm."""

    def count(kind: str, key: str, of_arm: Block) -> Cell:
        return Cell(str((of_arm.get(kind) or {}).get(key, 0)))

    outcomes = [arm.get("outcomes") or {} for arm in metrics["arms"].values()]
    cells: dict[Column, Callable[[Any], Cell]] = {}
    for kind, known in (("status", list(Status)), ("verdict", list(Verdict))):
        counted = {key for of_arm in outcomes for key, n in (of_arm.get(kind) or {}).items() if n}
        for key in (*(one for one in known if one in counted), *sorted(counted - set(known))):
            words = key.replace("_", " ")
            heading = words if kind == "status" or key == Verdict.NO_VERDICT else f"verdict {words}"
            cells[Column(heading)] = partial(count, kind, key)
    by_name = dict(zip(metrics["arms"], outcomes, strict=True))
    return by_arm("What became of the cases", metrics, cells, by_name)
