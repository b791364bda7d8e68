"""mechanism.json as tables: for the report and the terminal (text), and as frames to be kept as CSV. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from experiments.report.numbers import MISSING, fixed, percent
from experiments.report.table import Table
from experiments.studies.mechanism.findings import NAMES, number, share, signed

Result = Mapping[str, Any]
INTERVAL = re.compile(r" \[[^]]*\]")


def rows_of(result: Result) -> list[Table]:
    """Every table that has rows, in the order of the sentences."""
    found = [probes(result), knockout(result), *patching(result), lens(result), directions(result), cosines(result),
             undo(result)]  # fmt: skip
    return [table for table in found if table.rows]


def probes(result: Result) -> Table:
    """Quantity and place by point."""
    named: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in result["probes"]:
        if row["value"] is not None:
            named.setdefault((row["quantity"], row["place"]), {})[row["point"]] = row
    rows = []
    for (quantity, place), points in named.items():
        some = next(iter(points.values()))
        control = max(row["control"] for row in points.values() if row["control"] is not None)
        rows.append({"read": f"{quantity}, at {place.replace('_', ' ')}", "n": str(some["n"])}
                    | {f"point {point}": number(row) for point, row in points.items()}
                    | {"shuffled labels": f"≤ {fixed(control, 2)}"})  # fmt: skip
    return Table.of(
        "Held-out linear probes by point. Concept: what the picture shows (balanced accuracy); truth and verdict (the "
        "model’s own): AUROC. Last column: balanced accuracy with shuffled labels, the highest of all points.",
        rows,
    )


def knockout(result: Result) -> Table:
    """Edge and layers cut: what becomes of failures, successes and AUROC."""
    return Table.of(
        "Attention edges cut, by layer: change of the margin towards the truth (logits), and of the AUROC.",
        [
            {
                "edge cut": row["edge"],
                "layers": row["layers"],
                "failures": signed(row["failures"]),
                "matched successes": signed(row["successes"]),
                "difference": signed(row["difference"]),
                "failures on the right side": share(row["right"]),
                "AUROC": signed(row["change"]),
                "n": str(row["auroc"]["n"]),
            }
            for row in result["knockout"]
        ],
    )


def patching(result: Result) -> list[Table]:
    """Place by point, a table for another picture and one for another sentence."""
    found = []
    for other, words in (("picture", "the twin’s picture under the same sentence"),
                         ("sentence", "another sentence with the same picture")):  # fmt: skip
        places: dict[str, dict[str, str]] = {}
        for row in result["patching"]:
            if row["other"] == other:
                cells = places.setdefault(row["place"], {"place": row["place"]})
                cells[f"point {row['point']}"] = share(row["effect"])
        if places:
            some = next(row["effect"] for row in result["patching"] if row["other"] == other)
            gap = number(result["gaps"][other])
            found.append(Table.of(
                f"Failures run with the states of {words}, one place and point at a time: share of the way to that "
                f"prompt’s margin, {gap} logits away on average (n = {some['n']}).",
                list(places.values()),
            ))  # fmt: skip
    return found


def lens(result: Result) -> Table:
    """The margin by point of each subset's failures and successes, and where they part."""
    points, rows = result["points"], []
    for curve in result["lens"]["curves"]:
        name = f"{NAMES[curve['subset']]}, {'failures' if curve['failed'] else 'successes'}"
        cells = {f"point {point}": number(entry) for point, entry in zip(points, curve["margin"], strict=True)}
        rows.append({"margin, logits": name, "n": str(curve["margin"][0]["n"]), **cells})
    for key, words in (("pooled", "failures − successes"), ("within", "the same under one sentence")):
        part = result["lens"][key]
        if part and part["gaps"]:
            n = f"{part['gaps'][0]['failures']}, {part['gaps'][0]['successes']}"
            cells = {f"point {row['point']}": number(row) for row in part["gaps"]}
            rows.append({"margin, logits": words, "n": n, **cells})
    return Table.of("Yes/No margin that each point would give (logit lens at the last column of the prompt).", rows)


def directions(result: Result) -> Table:
    """Name and kind by point, with how far failures lie along it."""
    named: dict[tuple[str, str], dict[str, str]] = {}
    for row in result["directions"]:
        name = f"{row['name']}, {row['kind'].replace('_', ' ')}"
        new = {"direction": name, "n (groups)": f"{row['n']} ({row['groups']})"}
        cells = named.setdefault((row["name"], row["kind"]), new)
        gap = "" if row["gap"] is None or row["gap"]["value"] is None else f"; {signed(row['gap'])}"
        cells[f"point {row['point']}"] = f"{fixed(row['auroc'], 2)}{gap}"
    points = [f"point {point}" for point in sorted({row["point"] for row in result["directions"]})]
    rows = [{key: cells.get(key, MISSING) for key in ("direction", "n (groups)", *points)} for cells in named.values()]
    return Table.of(
        "Directions at the last column: AUROC on cases held out; then how far failures lie along it beyond successes, "
        "in distances of its two classes.",
        rows,
    )


def cosines(result: Result) -> Table:
    """Pairs of mean differences by point."""
    named: dict[str, dict[str, str]] = {}
    for row in result["cosines"]:
        name = f"{row['one']} · {row['other']}"
        named.setdefault(name, {"cosine of": name})[f"point {row['point']}"] = fixed(row["cosine"], 2)
    return Table.of("Cosines between the mean differences.", list(named.values()))


def undo(result: Result) -> Table:
    """Arm by arm, each beside a constant that says Yes as often."""
    return Table.of(
        f"What comes back. Directions are ablated at the last column at point {result['ablated_at']}: every case gets "
        "the mean along them. The last column: what a mere constant does that says Yes as often.",
        [
            {
                "what is changed": row["arm"],
                "AUROC": number(row["auroc"]),
                "change": "" if row["change"] is None else signed(row["change"]),
                "says Yes": f"{percent(row['yes'], 0)}%",
                "mended": f"{row['fixed']} of {row['wrong']}",
                "broken": f"{row['broken']} of {row['right']}",
                "constant: mended, broken": f"{row['shift']['fixed']}, {row['shift']['broken']}",
            }
            for row in result["undo"]
        ],
    )


def printed(table: Table) -> RichTable:
    """The same for a terminal of 80 columns, which has no room for the intervals."""
    drawn = RichTable(
        title=Text(table.title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in table.columns:
        drawn.add_column(Text(column.heading), justify=column.align, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(INTERVAL.sub("", str(cell))) for cell in row.cells))
    return drawn


def frames(result: Result) -> dict[str, pd.DataFrame]:
    """Name → a tidy frame, entries spread over columns."""
    lens_rows = [
        {"subset": curve["subset"], "failed": curve["failed"], "point": point, **entry}
        for curve in result["lens"]["curves"]
        for point, entry in zip(result["points"], curve["margin"], strict=True)
    ]
    named: dict[str, Sequence[Mapping[str, Any]]] = {
        name: result[name] for name in ("probes", "knockout", "patching", "directions", "cosines", "undo")
    }
    return {name: pd.json_normalize(list(rows)) for name, rows in {**named, "lens": lens_rows}.items()}
