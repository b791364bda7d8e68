"""What localise.json holds as tables and figures: parts by layer, curves with random sets, and where heads look."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.findings import Answer
from experiments.report.colours import GREY
from experiments.report.figures import SCREEN, draw_line
from experiments.report.numbers import fixed, percent
from experiments.report.sections import SectionFigure
from experiments.report.table import Cell, Column, Narrow, Table, estimate
from experiments.studies.localise.cases import PICTURE, Half
from interp.errors import UserError
from interp.figures.glyphs import Figure

if TYPE_CHECKING:
    from interp.vlm import VLM

NAMES = {"picture": "picture", "words": "in words", "sentence": "sentence", "join": "what joins them"}
NARROW = {"least–most": Narrow.NOTHING, "direct": Narrow.NOTHING, "minus random": Narrow.NOTHING}
LOOKING = 3  # heads whose attention is drawn
PANEL = 3.1  # inches of 100 px
Result = Mapping[str, Any]


def tables(result: Result) -> list[Table]:
    """A row a candidate with its slope for each question; and a row a question and k of the curves."""
    questions = result["questions"]
    blocks = {one: {row["part"]: row for row in result["confirm"][one]["parts"]} for one in questions}
    truth = {one: {row["part"]: row for row in result["confirm"][one]["truth"]["parts"]} for one in questions}
    records: list[dict[str, str | Cell]] = []
    for part, row in blocks[questions[0]].items():
        record: dict[str, str | Cell] = {"part": part}
        for one in questions:
            own = blocks[one][part]
            mark = "*" if own["statement"] in (Answer.ROSE.value, Answer.FELL.value) else ""
            cell = estimate(own)
            record[NAMES[one]] = Cell(cell.value + mark, cell.interval)
        if PICTURE in questions:
            found = truth[PICTURE].get(part)
            record["truth"] = "refused" if found is None else estimate(found)
            if "without" in row:
                gone = row["without"]
                record |= {"lost (mean)": estimate(gone["mean"]), "lost (zero)": estimate(gone["zero"])}
                record["direct"] = "–" if row["direct"] is None else fixed(row["direct"], 2)
        record["held"] = f"{row['held']} of {row['of']}"
        record["power"] = fixed(row["power"], 2)
        records.append(record)
    halves = result["halves"]
    title = (
        f"Candidates of all questions, one by one, on the {halves['confirm']['pairs']} pairs of the confirm half "
        f"(*: held in at least {result['rule']['holds']} of {result['rule']['splits']} splits, all candidates of the "
        "question at once; lost: of the picture's difference, without the part; held, and power of a fifth of the "
        f"gap: {NAMES[questions[0]]})"
    )
    return [Table.of(title, records), *([_curves(result)] if result["faithfulness"] else [])]


def _curves(result: Result) -> Table:
    records: list[dict[str, str | Cell]] = []
    for one, rows in result["faithfulness"].items():
        for row, rest, random in zip(rows, result["completeness"][one], result["random"][one], strict=True):
            records.append({
                "question": NAMES[one],
                "k": str(row["k"]),
                "the k best": estimate(row),
                "minus random": estimate(row["above_random"], sign=True),
                "random": estimate(random),
                "least–most": f"{fixed(random['least'], 2)} to {fixed(random['most'], 2)}",
                "same layers": f"{percent(random['same_layers'], 0)}%",
                "direct": "–" if row["direct"] is None else estimate(row["direct"]),
                "all but these": estimate(rest),
                "flips": f"{percent(row['flips'], 0)} of {percent(row['flips_of_all'], 0)}%",
            })  # fmt: skip
    title = "Faithfulness, completeness and random sets by the number k of parts replaced together"
    columns = [
        Column(name, "right" if at else "left", narrow=NARROW.get(name, Narrow.VALUE))
        for at, name in enumerate(records[0])
    ]
    return Table.of(title, records, columns=columns)


def figures(result: Result, vlm: "VLM", half: Half) -> dict[str, SectionFigure]:
    """By name; what heads look at is left out where the model's attention cannot be recorded."""
    found = {
        "localise_parts": SectionFigure(
            parts_figure(result),
            "Heads and MLPs by layer, coloured by how much of the difference goes through each.",
            "Slope of each part on the discover half, by layer; a ring marks what held in eight of ten splits or more.",
        )
    }
    if result["faithfulness"]:
        found["localise_curves"] = SectionFigure(
            curves_figure(result),
            "Faithfulness and completeness by the number of parts, with random sets.",
            "Parts replaced together, on the confirm half. Bands: 95% intervals over units; grey: all random sets.",
        )
    for at, figure in enumerate(_looks(result, vlm, half)):
        found[f"localise_looks_{at}"] = SectionFigure(
            figure, "The picture, and where single heads look in it.", "What the best heads look at, at the verdict."
        )
    return found


def parts_figure(result: Result) -> Figure:
    """A panel a question: layers by heads, the MLP in a column of its own at the right."""
    questions = result["questions"]
    layers = result["layers"]
    heads = 1 + max((head for _, _, head, _ in result["map"][questions[0]] if head is not None), default=0)
    height = max(2.2, 0.16 * len(layers) + 1.3)
    figure = Figure(figsize=(max(6.0, 2.2 * len(questions) + 1), height), dpi=100, layout="constrained")
    every = figure.subplots(1, len(questions), sharey=True, squeeze=False)[0]
    top = max(abs(value) for one in questions for *_, value in result["map"][one]) or 1.0
    colours = ScalarMappable(Normalize(-top, top), "PuOr_r")
    for axes, one in zip(every, questions, strict=True):
        grid = np.full((len(layers), heads + 2), np.nan)
        for kind, layer, head, value in result["map"][one]:
            grid[layers.index(layer), heads + 1 if kind == "mlp" else head] = value
        axes.imshow(grid, cmap=colours.cmap, norm=colours.norm, aspect="auto", interpolation="nearest")
        for row in result["confirm"][one]["parts"]:
            if row["found"] and row["statement"] in (Answer.ROSE.value, Answer.FELL.value):
                column = heads + 1 if row["kind"] == "mlp" else row["head"]
                axes.plot(column, layers.index(row["layer"]), "o", markersize=9, markerfacecolor="none",
                          markeredgecolor="black", markeredgewidth=1.4)  # fmt: skip
        axes.set_title(NAMES[one], fontsize=SCREEN.text)
        step = max(1, heads // 5)
        shown = list(range(0, heads, step))
        axes.set_xticks([*shown, heads + 1], [*map(str, shown), "MLP"], fontsize=SCREEN.label)
        rows = list(range(0, len(layers), max(1, len(layers) // 10)))
        axes.set_yticks(rows, [str(layers[at]) for at in rows], fontsize=SCREEN.label)
        axes.set_xlabel("head", fontsize=SCREEN.label)
    every[0].set_ylabel("decoder layer", fontsize=SCREEN.label)
    bar = figure.colorbar(colours, ax=list(every), shrink=0.9)
    bar.ax.tick_params(labelsize=SCREEN.label)
    bar.set_label("slope", fontsize=SCREEN.label)
    return figure


def curves_figure(result: Result) -> Figure:
    """A panel a question: the k best, the k best by direct attribution, random sets, and all but the k best."""
    questions = list(result["faithfulness"])
    figure = Figure(figsize=(max(6.0, PANEL * len(questions)), 3.9), dpi=100, layout="constrained")
    every = figure.subplots(1, len(questions), sharey=True, squeeze=False)[0]
    for axes, one in zip(every, questions, strict=True):
        rows, random = result["faithfulness"][one], result["random"][one]
        counts = [row["k"] for row in rows]
        axes.fill_between(counts, [row["least"] for row in random], [row["most"] for row in random], color=GREY,
                          alpha=0.25, linewidth=0, label="random sets, least to most")  # fmt: skip
        axes.plot(counts, [row["value"] for row in random], color=GREY, linestyle=":", label="random sets, mean")
        draw_line(axes, counts, rows, 1, "the k best together")
        if all(row["direct"] is not None for row in rows):
            draw_line(axes, counts, [row["direct"] for row in rows], 2, "k best by direct attribution", "--")
        draw_line(axes, counts, result["completeness"][one], 3, "all parts but the k best", "-.")
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.tick_params(labelsize=SCREEN.label)
        axes.set_title(NAMES[one], fontsize=SCREEN.text)
        axes.set_xlabel("k, parts", fontsize=SCREEN.label)
    every[0].set_ylabel("share of the gap (slope)", fontsize=SCREEN.label)
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=SCREEN.label, frameon=False)
    return figure


def _looks(result: Result, vlm: "VLM", half: Half) -> list[Figure]:
    """The best candidate heads of the first question, in the unsafe and the safe member of a pair; none that alarms."""
    from interp.tools.head_patterns import head_patterns

    first = result["questions"][0]
    rows = [row for row in result["confirm"][first]["parts"] if row["kind"] == "head" and row["found"]]
    best = sorted(rows, key=lambda row: -row["value"])[:LOOKING]
    pairs = [pair for pair in zip(half.unsafe, half.safe, strict=True) if not any(one.alarming for one in pair)]
    if not best or not pairs:
        return []
    heads = [(row["layer"], row["head"]) for row in best]
    try:
        return [
            head_patterns(vlm, prompt, heads).plot(f"{word}: “{sample.text}”")
            for sample, prompt, word in zip(pairs[0], prompts_of(pairs[0]), ("unsafe", "safe"), strict=True)
        ]
    except UserError:
        return []
