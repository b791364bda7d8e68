"""mechanism.json as tables, for the report and the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.report.numbers import MISSING, fixed, percent
from experiments.report.table import Cell, Column, Narrow, Table, by_layer, estimate, grouped, percentage
from experiments.studies.mechanism.interventions import PLACES

Result = Mapping[str, Any]
Record = dict[str, "str | Cell"]
LABEL, LAYER, OTHER = 16, 6, 10  # characters of a column in the terminal: the first, one of a layer, any other


def tables(result: Result) -> list[Table]:
    """Every table that has rows, in the order of the sentences."""
    found = [probes(result), controls(result), knockout(result), *patching(result), lens(result), directions(result),
             cosines(result), reversal(result)]  # fmt: skip
    return [table for table in found if table.rows]


def _table(title: str, records: Iterable[Record]) -> Table:
    """In the terminal, which has no room for them, without intervals."""
    listed = list(records)
    first, *others = dict.fromkeys(heading for record in listed for heading in record) or [""]
    columns = [Column(first, "left", fold=LABEL, narrow=Narrow.VALUE)]
    for name in others:
        short, fold = name.replace(" ", "\n"), LAYER if name.startswith("layer") else OTHER
        columns.append(Column(name, short=short, fold=fold, narrow=Narrow.VALUE))
    return Table.of(title, listed, columns=columns)


def probes(result: Result) -> Table:
    """Quantity and position by layer."""
    records: list[Record] = []
    read = [row for row in result["probes"] if row["value"] is not None]
    for (quantity, position), rows in grouped(read, "quantity", "place").items():
        control = max(row["control"] for row in rows if row["control"] is not None)
        name = f"{quantity}, at {position.replace('_', ' ')}"
        shuffled = f"≤ {fixed(control, 2)}"
        records.append({"read": name, "n": str(rows[0]["n"]), **by_layer(rows, estimate), "shuffled labels": shuffled})
    return _table(
        "Held-out linear probes by layer. Concept: what the picture shows (balanced accuracy); truth and verdict (the "
        "model’s own): AUROC. Last column: balanced accuracy with shuffled labels, the highest of all layers.",
        records,
    )


def controls(result: Result) -> Table:
    """What each claim rests on: quantity, place and what is held out, by layer."""
    records: list[Record] = []
    read = [row for row in result["controls"] if row["value"] is not None]
    layers = [f"layer {layer}" for layer in result["layers"]]
    for (quantity, place, out), rows in grouped(read, "quantity", "place", "held_out").items():
        unseen = {"kind": "other kinds", "sentence": "other sentences"}[out]
        random = [one["value"] for row in rows for one in row["untrained"]]
        records.append({
            "read": f"{quantity}, at {place}, on {unseen}",
            "n": str(rows[0]["n"]),
            **dict.fromkeys(layers, MISSING),
            **by_layer(rows, estimate),
            "shuffled labels": f"≤ {fixed(max(row['shuffled'] for row in rows), 2)}",
            "random weights": f"≤ {fixed(max(random), 2)}" if random else MISSING,
        })  # fmt: skip
        if rows[0]["within"]:
            within = {
                name: by_layer([row["within"][name] | {"layer": row["layer"]} for row in rows], estimate)
                for name in _ORDER
            }
            records += [
                {"read": words, "n": f"{rows[0]['within']['probe']['pairs']} pairs", **within[name],
                 "shuffled labels": "", "random weights": ""}
                for name, words in _ORDER.items()
            ]  # fmt: skip
    return _table(
        "What claims rest on: probes fitted without a kind of picture, or without a sentence (AUROC; of the concept "
        "balanced accuracy), the highest of all layers with shuffled labels and with random weights; and how often, of "
        "two cases of one sentence, the safe one comes first.",
        records,
    )


_ORDER = {"probe": "truth, within a sentence", "margin": "the margin, within a sentence"}


def knockout(result: Result) -> Table:
    """Edge and layers cut: what becomes of failures, successes and AUROC."""
    return _table(
        "Attention edges cut, by layer: change of the margin towards the truth (logits), and of the AUROC.",
        (
            {
                "edge cut": row["edge"],
                "layers": row["layers"],
                "failures": estimate(row["failures"], sign=True),
                "matched successes": estimate(row["successes"], sign=True),
                "difference": estimate(row["difference"], sign=True),
                "failures on the right side": percentage(row["right"]),
                "AUROC": estimate(row["change"], sign=True),
                "n": str(row["auroc"]["n"]),
            }
            for row in result["knockout"]
        ),
    )


def patching(result: Result) -> list[Table]:
    """Position by layer, a table for another picture and one for another sentence."""
    found = []
    for other, words in (("picture", "the twin’s picture under the same sentence"),
                         ("sentence", "another sentence with the same picture")):  # fmt: skip
        rows = [row for row in result["patching"] if row["other"] == other]
        records = [
            {"place": PLACES[place], **by_layer(some, lambda row: percentage(row["effect"]))}
            for (place,), some in grouped(rows, "place").items()
        ]
        if rows:
            found.append(_table(
                f"Failures run with the states of {words}, one place and layer at a time: share of the way to that "
                f"prompt’s margin, {estimate(result['gaps'][other])} logits away on average (n = "
                f"{rows[0]['effect']['n']}).",
                records,
            ))  # fmt: skip
    return found


def lens(result: Result) -> Table:
    """The margin by layer of each subset's failures and successes."""
    records: list[Record] = []
    for curve in result["lens"]["curves"]:
        name = f"{curve['subset'].replace('_', '-')}, {'failures' if curve['failed'] else 'successes'}"
        cells = {f"layer {layer}": estimate(one) for layer, one in zip(result["layers"], curve["margin"], strict=True)}
        records.append({"margin, logits": name, "n": str(curve["margin"][0]["n"]), **cells})
    return _table("Yes/No margin that each layer would give (logit lens at the last column of the prompt).", records)


def directions(result: Result) -> Table:
    """Name and kind by layer, with how far failures lie along it."""

    def along(row: Mapping[str, Any]) -> Cell:
        auroc, gap = fixed(row["auroc"], 2), row["gap"]
        if gap is None or gap["value"] is None:
            return Cell(auroc)
        shown = estimate(gap, sign=True)
        return Cell(f"{auroc}; {shown.value}", shown.interval)

    missing = dict.fromkeys(
        (f"layer {layer}" for layer in sorted({row["layer"] for row in result["directions"]})), MISSING
    )
    return _table(
        "Directions at the last column: AUROC on cases held out; then how far failures lie along it beyond successes, "
        "in distances of its two classes.",
        (
            {
                "direction": f"{name}, {kind.replace('_', ' ')}",
                "n (groups)": f"{rows[0]['n']} ({rows[0]['groups']})",
                **missing,
                **by_layer(rows, along),
            }
            for (name, kind), rows in grouped(result["directions"], "name", "kind").items()
        ),
    )


def cosines(result: Result) -> Table:
    """Pairs of mean differences by layer."""
    return _table("Cosines between the mean differences.", (
        {"cosine of": f"{one} · {other}", **by_layer(rows, lambda row: fixed(row["cosine"], 2))}
        for (one, other), rows in grouped(result["cosines"], "one", "other").items()
    ))  # fmt: skip


def reversal(result: Result) -> Table:
    """Arm by arm, each beside a constant that says Yes as often."""
    return _table(
        f"What comes back. Directions are ablated at the last column at layer {result['ablated_at']}: every case gets "
        "the mean along them. The last column: what a mere constant does that says Yes as often.",
        (
            {
                "what is changed": row["arm"],
                "AUROC": estimate(row["auroc"]),
                "change": "" if row["change"] is None else estimate(row["change"], sign=True),
                "says Yes": f"{percent(row['yes'], 0)}%",
                "mended": f"{row['fixed']} of {row['wrong']}",
                "broken": f"{row['broken']} of {row['right']}",
                "constant: mended, broken": f"{row['shift']['fixed']}, {row['shift']['broken']}",
            }
            for row in result["undo"]
        ),
    )
