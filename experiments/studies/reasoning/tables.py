"""reasoning.json as tables, for the report and the terminal."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import fixed, percent
from experiments.report.sentences.reasoning import DIFFERS
from experiments.report.table import Cell, Column, Table, change, estimate, percentage

Result = Mapping[str, Any]


def tables(result: Result, metrics: Result) -> list[Table]:
    """Every table that has rows; ``metrics`` are the run's, of its arms."""
    found = [
        arms(metrics),
        curve(result),
        *(mediation(result, differs) for differs in result["mediation"]),
        said(result),
        looks(result),
    ]
    return [table for table in found if table.rows]


def arms(metrics: Result) -> Table:
    """How long each arm thinks, and what its verdicts are worth."""
    thoughts = metrics.get("thoughts") or {}

    def cells(arm: str, one: Result) -> dict[str, str | Cell]:
        matched, within = one.get("matched_over_safety") or {}, one.get("auroc_within") or {}
        told = thoughts.get(arm) or {}
        return {
            "arm": arm,
            "cases": str(one["n"]),
            "with a thought": str(told.get("thought", 0)),
            "tokens": "–" if told.get("tokens") is None else fixed(told["tokens"], 1),
            "cut off": str(told.get("cut_off", 0)),
            "AUROC": "–" if one.get("auroc") is None else fixed(one["auroc"], 2),
            "within sentences": "–" if within.get("value") is None else fixed(within["value"], 2),
            "answered at equal strictness": "–" if matched.get("value") is None else f"{percent(matched['value'])}%",
        }

    return Table.of(
        "How long arms think (mean tokens of a thought, its marks included), and what their verdicts are worth.",
        (cells(arm, one) for arm, one in metrics["arms"].items()),
        layout=[Column("arm", "left", fold=16)],
    )


def curve(result: Result) -> Table:
    """The order within sentences by place and label."""
    return Table.of(
        "When it was decided: of two cases of one sentence, how often the margin, with the thought broken off and "
        "closed there, puts the one first that is in the end called safe (its own verdict) or is (the truth).",
        (
            {
                "by": row["label"],
                "thought left": f"{percent(row['place'], 0)}%",
                "pairs": str(row["order"]["pairs"]),
                "right order": percentage(row["order"]) if row["order"]["value"] is not None else "–",
                "more than with none": change(row["change"]) if row["place"] else "",
                "exchanged cases": percentage(row["permuted"]) if row["permuted"]["value"] is not None else "–",
                "sign agrees": percentage(row["agrees"]),
            }
            for row in result["curve"]
        ),
        layout=[Column("by", "left", fold=16)],
    )


def mediation(result: Result, differs: str) -> Table:
    """Total, through and direct, by what stands for the thought."""
    block = result["mediation"][differs]

    def cells(row: Result) -> dict[str, str | Cell]:
        orders = " / ".join(estimate(one, sign=True).value for one in row["orders"])
        return {
            "thought": row["mediator"],
            "part": row["part"],
            "n": str(row["effect"]["n"]),
            "logits": estimate(row["effect"], sign=True),
            "its two orders": orders or "–",
            "of the total": percentage(row["share"]) if row["share"] else "–",
        }

    return Table.of(
        f"What the thought carries: {DIFFERS[block['shares']].rstrip(',')}, {block['pairs']} pairs; margins with own "
        "and exchanged thoughts.",
        map(cells, block["rows"]),
        layout=[Column("thought", "left", fold=16), Column("part", "left", fold=18)],
    )


def said(result: Result) -> Table:
    """What thoughts name, what they call the request, and the answer."""
    return Table.of(
        "What thoughts say and answers do (cases): the thing named, the request called, the verdict.",
        (
            {
                "cases": row["subset"].replace("_", " "),
                "names": row["names"] or "not known",
                "calls it": row["calls"],
                "answers": row["answers"],
                "n": str(row["n"]),
            }
            for row in result["said"]
        ),
        layout=[Column(name, "left") for name in ("cases", "names", "calls it", "answers")],
    )


def looks(result: Result) -> Table:
    """The picture's share of attention along the thought."""
    return Table.of(
        "Where it looks: the picture's share of attention (without the sink, mean of layers and heads), in %.",
        (
            {
                "while it writes": row["place"] if row["place"] == "verdict" else f"{row['place']} of the thought",
                "n": str(row["all"]["n"]),
                "all": percentage(row["all"]),
                "failures": percentage(row["failures"]) if row["failures"]["value"] is not None else "–",
                "successes": percentage(row["successes"]) if row["successes"]["value"] is not None else "–",
                "failures − successes": change(row["gap"]),
            }
            for row in result["looks"]["rows"]
        ),
        layout=[Column("while it writes", "left", fold=20)],
    )
