"""words_and_picture.json as tables and figures: the conditions, and what was seen inside."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.figures import COLOURS, GREY, SCREEN, draw_dot, draw_line
from experiments.report.numbers import fixed
from experiments.report.sections import SectionFigure
from experiments.report.sentences import caption_ablation, transplant
from experiments.report.sentences.wording import compared
from experiments.report.table import Cell, Column, Narrow, Table, by_layer, change, grouped, number, rate
from experiments.studies.words_and_picture.conditions import CONDITIONS, PICTURE, POINTING

DIFFERENCE = f"{PICTURE} − {POINTING}"
STATES = {"noun": "the noun's state in words", "other": "the pair's other thing", "mean": "the mean noun"}
PLACES = {"this": "at “this”", "verdict": "at the verdict"}
READ = {
    "thing": "thing",
    "named": "lens names it",
    "near": "nearest, same sentence: same thing",
    "far": "nearest, other sentence: same thing",
    "truth": "safe or not",
}
RUNS = {"picture": "", "words": ", in words", "crossed": ", fitted in words"}
PROBED = [  # (run, quantity, place), a row each
    *((run, "thing", place) for run in RUNS for place in PLACES),
    *((run, quantity, "this") for quantity in ("named", "near", "far") for run in ("picture", "words")),
    *((run, "truth", place) for place in PLACES for run in ("picture", "words")),
    ("crossed", "truth", "verdict"),
]
DRAWN = {"picture": ("-", ", with the picture"), "words": ("--", RUNS["words"])}  # dash, label
CROSSED = {"thing": "this", "truth": "verdict"}  # where, of the probes fitted in words
ARM_COLOURS = {**dict.fromkeys(caption_ablation.INSTEAD, 2), **dict.fromkeys(caption_ablation.CUTS, 3),
               "other_caption": 4, "alone": 1, "worded": 1}  # fmt: skip
Result = Mapping[str, Any]
Record = dict[str, "str | Cell"]


def cells(arm: Mapping[str, Any]) -> dict[str, Cell]:
    """One arm's AUROC and rates with their intervals, by heading."""
    accuracy, intervals = arm["accuracy"], arm["intervals"]
    return {
        "AUROC": number(arm["auroc"], intervals["auroc"], 3),
        "unsafe right": rate(accuracy["unsafe"], intervals["unsafe"]),
        "over-safety right": rate(accuracy["over_safety"], intervals["over_safety"]),
    }


def _level(entry: Mapping[str, Any]) -> Cell:
    return number(entry["value"], None if entry["low"] is None else (entry["low"], entry["high"]))


def _counted(arm: Mapping[str, Any]) -> str:
    return f"({arm['n']['unsafe']} unsafe, {arm['n']['over_safety']} safe cases)"


def conditions_table(result: Mapping[str, Any]) -> Table:
    """A row a condition, over all cases."""
    block, records = result["parts"]["all"], []
    for name, words in result["conditions"].items():
        arm = block["arms"][name]
        delta = (block["comparisons"].get(name) or {}).get("delta") or {}
        found = cells(arm)
        minus = {"minus pointing": change(delta.get("auroc"), digits=3)}
        records.append({"asked": words, "AUROC": found.pop("AUROC"), **minus, **found})
    return Table.of(f"One case in four ways {_counted(block['arms'][PICTURE])}", records)


def parts_table(result: Mapping[str, Any]) -> Table:
    """A row a part: AUROC of every condition, the paired difference, captions, and what the rule says."""
    answers = {one["about"]: one["answer"] for one in result["findings"]}
    records = []
    for name, block in result["parts"].items():
        seen = block["captions"]
        n = block["arms"][PICTURE]["n"]
        records.append({
            "part": name,
            "cases": f"{n['unsafe']} + {n['over_safety']}",
            "captions right": rate(seen["rate"], seen["interval"]),
            **{condition: cells(block["arms"][condition])["AUROC"] for condition in result["conditions"]},
            DIFFERENCE: change(block["comparisons"][PICTURE]["delta"]["auroc"], digits=3),
            "blind": answers[name],
        })  # fmt: skip
    columns = [
        Column("part", "left", fold=9),
        Column("cases", narrow=Narrow.NOTHING),
        Column("captions right", short="captions\nright", narrow=Narrow.VALUE),
        *(Column(one, narrow=Narrow.TERSE if one in (PICTURE, POINTING) else Narrow.VALUE) for one in CONDITIONS),
        Column(DIFFERENCE, short="picture −\npointing", narrow=Narrow.TERSE),
        Column("blind", "left"),
    ]
    return Table.of("AUROC by what the training has seen of a case (unsafe + safe cases)", records, columns=columns)


def transplant_tables(result: Result) -> list[Table]:
    """A row a state and layer, the picture as it is above them; a row a reading, by layer; and a row a cut."""
    picture = result["picture"]
    rows: list[Record] = [{"at “this”": "as it is, with the picture", "after layer": "", **cells(picture)}]
    for row in result["transplants"]:
        where = {"at “this”": STATES[row["state"]], "after layer": str(row["layer"])}
        rows.append({**where, **cells(row), **compared("minus the picture", row["change"], digits=3)})
    return [Table.of(f"Another state at “this” {_counted(picture)}", rows), _readings(result), _cuts(result)]


def _readings(result: Result) -> Table:
    records: list[Record] = []
    known = grouped(result["probes"], "run", "quantity", "place")
    for run, quantity, place in PROBED:
        rows = known.get((run, quantity, place))
        if rows:
            controls = [row["control"] for row in rows if row["control"] is not None]
            chance = f"≤ {fixed(max(controls), 2)}" if controls else ""
            name = f"{READ[quantity]} {PLACES[place]}{RUNS[run]}"
            records.append({"read": name, **by_layer(rows, _level), "by chance": chance})
    return Table.of(
        "What is read after each layer (thing: balanced accuracy; safe or not: AUROC; nearest: share of cases whose "
        "nearest state of another case is one of the same thing): with the picture, in words (pointing), and by probes "
        "fitted in words and tested with the picture. By chance: shuffled labels, or a case at random",
        records,
    )


def _cuts(result: Result) -> Table:
    records: list[Record] = []
    for row in result["cuts"]:
        named = transplant.CUTS.get(row["cut"], row["cut"])
        records.append({
            "run": "with the picture" if row["run"] == "picture" else "in words, pointing",
            "cut": named.format(source=transplant.SOURCES[row["run"]]),
            **cells(row),
            **compared("minus nothing cut", row["change"], digits=3),
            **{f"thing at {place}": _level(row["thing"][place]) for place in PLACES},
        })  # fmt: skip
    return Table.of(
        f"Edges of attention cut in all layers, and how the thing is then read after layer {result['layers'][-1]}",
        records,
    )


def transplant_figure(result: Result) -> SectionFigure:
    """AUROC by layer for each state put in; beside it the probes of the thing, and of the truth."""
    figure = Figure(figsize=(10.8, 4.8), dpi=100, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for style, (state, words) in enumerate(STATES.items(), start=1):
        rows = [row for row in result["transplants"] if row["state"] == state]
        draw_line(left, [row["layer"] for row in rows], list(map(_auroc, rows)), style, words)
    if result["picture"]["auroc"] is not None:
        left.axhline(result["picture"]["auroc"], color=COLOURS[0], linestyle="--", linewidth=1.4,
                     label="as it is, with the picture")  # fmt: skip
    known = grouped(result["probes"], "run", "quantity", "place")

    def probe(axes: Axes, key: tuple[str, str, str], style: int, label: str, dash: str = "-") -> None:
        rows = known.get(key, [])
        draw_line(axes, [row["layer"] for row in rows], rows, style, label, dash)

    for axes, quantity in ((middle, "thing"), (right, "truth")):
        for run, (dash, words) in DRAWN.items():
            for style, place in enumerate(PLACES, start=1):
                probe(axes, (run, quantity, place), style, PLACES[place] + words, dash)
        place = CROSSED[quantity]
        probe(axes, ("crossed", quantity, place), 3, f"{PLACES[place]}: fitted in words, tested with the picture")
    rows = [row for row in known.get(("picture", "thing", "this"), []) if row["control"] is not None]
    if rows:
        middle.plot([row["layer"] for row in rows], [row["control"] for row in rows], color=GREY, linestyle=":",
                    linewidth=1, label="shuffled labels")  # fmt: skip
    for axes, title, measure in ((left, "Another state put onto “this”", "AUROC of the verdict"),
                                 (middle, "Which thing? A linear probe", "held-out accuracy"),
                                 (right, "Safe or not? A linear probe", "held-out AUROC")):  # fmt: skip
        if axes is not middle:
            axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
        axes.set_title(title, fontsize=SCREEN.text, loc="left", fontweight="bold")
        axes.set(ylim=(-0.02, 1.03), xticks=result["layers"])
        axes.tick_params(labelsize=SCREEN.label)
        axes.set_xlabel("after decoder layer", fontsize=SCREEN.text)
        axes.set_ylabel(measure, fontsize=SCREEN.text)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=SCREEN.label - 1, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16))
    return SectionFigure(
        figure,
        "Three panels by decoder layer: the AUROC with another state at “this” beside that with the picture as it is; "
        "and what linear probes read of the thing, and of the truth, with the picture and in words.",
        "Another state at “this”; what linear probes read with the picture and in words. Bands: 95% intervals.",
    )


def caption_ablation_tables(result: Result) -> list[Table]:
    """A row an arm."""
    records: list[Record] = []
    for row in result["arms"]:
        found = cells(row)
        minus = compared("minus picture and caption", row["minus_beside"], digits=3)
        minus |= compared("minus caption alone", row["minus_alone"], digits=3)
        records.append({"asked": caption_ablation.ARMS[row["arm"]], "AUROC": found.pop("AUROC"), **minus, **found})
    return [Table.of(f"The right caption beside the picture {_counted(result['arms'][0])}", records)]


def caption_ablation_figure(result: Result) -> SectionFigure:
    """A dot an arm, from the caption alone down to the other thing's caption."""
    figure = Figure(figsize=(7.2, 4.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    rows = [row for row in result["arms"] if row["auroc"] is not None]
    for place, row in enumerate(rows):
        draw_dot(axes, place, _auroc(row), ARM_COLOURS.get(row["arm"], 0), SCREEN.label - 1)
    axes.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [caption_ablation.ARMS[row["arm"]] for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.8), xlim=(0, 1.02))
    axes.tick_params(labelsize=SCREEN.label)
    axes.set_xlabel("AUROC (0.5: chance)", fontsize=SCREEN.text)
    return SectionFigure(
        figure,
        "AUROC with the right caption alone, beside the picture, and with one thing at a time changed, with intervals.",
        "The right caption alone, beside the picture, and with one thing at a time changed. Bars: 95% intervals.",
    )


def _auroc(arm: Mapping[str, Any]) -> dict[str, Any]:
    low, high = arm["intervals"]["auroc"] or (None, None)
    return {"value": arm["auroc"], "low": low, "high": high}
