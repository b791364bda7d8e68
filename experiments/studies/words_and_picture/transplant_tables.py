"""What transplants, readings and cuts found, as tables and as one figure of three panels."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.figures import COLOURS, GREY, MARKERS, SCREEN
from experiments.report.numbers import fixed
from experiments.report.sentences.transplant import CUTS, SOURCES
from experiments.report.sentences.wording import compared
from experiments.report.table import Cell, Table, number
from experiments.studies.words_and_picture.arms import cells

WIDTH, HEIGHT = 10.8, 4.8  # inches of 100 px
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
ALT = ("Three panels by decoder layer: the AUROC with another state at “this” beside that with the picture as it is; "
       "and what linear probes read of the thing, and of the truth, with the picture and in words.")  # fmt: skip
CAPTION = "Another state at “this”; what linear probes read with the picture and in words. Bands: 95% intervals."
Result = Mapping[str, Any]


def tables(result: Result) -> list[Table]:
    """A row a state and layer, the picture as it is above them; a row a reading, by layer; and a row a cut."""
    picture = result["picture"]
    as_it_is: dict[str, str | Cell] = {"at “this”": "as it is, with the picture", "after layer": "", **cells(picture)}
    rows: list[dict[str, str | Cell]] = [as_it_is]
    for row in result["transplants"]:
        where = {"at “this”": STATES[row["state"]], "after layer": str(row["layer"])}
        rows.append({**where, **cells(row), **compared("minus the picture", row["change"], digits=3)})
    n = picture["n"]
    title = f"Another state at “this” ({n['unsafe']} unsafe, {n['over_safety']} safe cases)"
    return [Table.of(title, rows), _probes(result), _cuts(result)]


def _probes(result: Result) -> Table:
    records = []
    for key in PROBED:
        run, quantity, place = key
        rows = [row for row in result["probes"] if _key(row) == key]
        record: dict[str, str | Cell] = {"read": f"{READ[quantity]} {PLACES[place]}{RUNS[run]}"}
        for row in rows:
            record[f"layer {row['layer']}"] = number(row["value"], _ends(row))
        controls = [row["control"] for row in rows if row["control"] is not None]
        if rows:
            records.append(record | {"by chance": f"≤ {fixed(max(controls), 2)}" if controls else ""})
    return Table.of(
        "What is read after each layer (thing: balanced accuracy; safe or not: AUROC; nearest: share of cases whose "
        "nearest state of another case is one of the same thing): with the picture, in words (pointing), and by probes "
        "fitted in words and tested with the picture. By chance: shuffled labels, or a case at random",
        records,
    )


def _cuts(result: Result) -> Table:
    records: list[dict[str, str | Cell]] = []
    for row in result["cuts"]:
        things = {place: row["thing"][place] for place in ("this", "verdict")}
        source = SOURCES[row["run"]]
        records.append({
            "run": "with the picture" if row["run"] == "picture" else "in words, pointing",
            "cut": CUTS[row["cut"]].format(source=source) if row["cut"] in CUTS else row["cut"],
            **cells(row),
            **compared("minus nothing cut", row["change"], digits=3),
            **{f"thing at {place}": number(one["value"], _ends(one))
               for place, one in things.items()},
        })  # fmt: skip
    return Table.of(
        f"Edges of attention cut in all layers, and how the thing is then read after layer {result['layers'][-1]}",
        records,
    )


def draw(result: Result) -> Figure:
    """AUROC by layer for each state put in; beside it the probes of the thing, and of the truth."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for style, (state, words) in enumerate(STATES.items(), start=1):
        rows = [row for row in result["transplants"] if row["state"] == state]
        _line(left, [r["layer"] for r in rows], [(r["auroc"], r["intervals"]["auroc"]) for r in rows], style, words)
    if result["picture"]["auroc"] is not None:
        left.axhline(result["picture"]["auroc"], color=COLOURS[0], linestyle="--", linewidth=1.4,
                     label="as it is, with the picture")  # fmt: skip
    for axes, quantity in ((middle, "thing"), (right, "truth")):
        for run, (dash, words) in DRAWN.items():
            for style, place in enumerate(PLACES, start=1):
                _probe_line(axes, result, (run, quantity, place), style, PLACES[place] + words, dash)
        place = CROSSED[quantity]
        words = f"{PLACES[place]}: fitted in words, tested with the picture"
        _probe_line(axes, result, ("crossed", quantity, place), 3, words, "-")
    shuffled = [(row["layer"], row["control"]) for row in result["probes"]
                if _key(row) == ("picture", "thing", "this") and row["control"] is not None]  # fmt: skip
    if shuffled:
        middle.plot(*zip(*shuffled, strict=True), color=GREY, linestyle=":", linewidth=1, label="shuffled labels")
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
    return figure


def _probe_line(axes: Axes, result: Result, key: tuple[str, str, str], style: int, label: str, dash: str) -> None:
    rows = [row for row in result["probes"] if _key(row) == key]
    values = [(row["value"], (row["low"], row["high"])) for row in rows]
    _line(axes, [row["layer"] for row in rows], values, style, label, dash)


def _line(
    axes: Axes, layers: Sequence[int], values: Sequence[tuple[float | None, Any]], style: int, label: str,
    dash: str = "-",
) -> None:  # fmt: skip
    """With a band where there are intervals; what has no value is left out."""
    known = [(layer, value, ends) for layer, (value, ends) in zip(layers, values, strict=True) if value is not None]
    if not known:
        return
    banded = [(layer, *ends) for layer, _, ends in known if ends is not None and None not in ends]
    if banded:
        xs, low, high = zip(*banded, strict=True)
        axes.fill_between(xs, low, high, color=COLOURS[style], alpha=0.12, linewidth=0)
    axes.plot([layer for layer, *_ in known], [value for _, value, _ in known], color=COLOURS[style],
              marker=MARKERS[style], markersize=5, linewidth=1.6, label=label, linestyle=dash)  # fmt: skip


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["run"], row["quantity"], row["place"]


def _ends(row: Mapping[str, Any]) -> tuple[float, float] | None:
    return None if row["low"] is None else (row["low"], row["high"])
