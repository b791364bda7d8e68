"""What a terminal shows of a study: the headline, a short table of its arms, and what limits it. All fit 80 columns.

The commands to type after a run are made from the one that was typed.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from experiments.report import arms
from experiments.report.tables import SIGNS, in_terminal, summary
from experiments.runs.results_table import Results, Row
from interp.checkpoints.config import ORGANISM

NOTES = 2  # that are shown; the report has all
LINES = 20  # of a terminal's 25; the others are the report and what to type next
BLANK = 7  # of these lines: two empty ones, the table's head, and what its signs mean
FEWEST_ROWS = 3  # of the table, however long the headline is


def render(
    results: Results, design: Mapping[str, Any], environment: Mapping[str, Any], *, verbose: bool, width: int,
    named: Collection[str] = (), complete: bool = True,
) -> Group:  # fmt: skip
    """Return what is printed of a run: its answer, with ``verbose`` all tables and notes, or only the first line.

    Args:
        results: its results table.
        design: its metrics.json.
        environment: its environment.json.
        verbose: show everything.
        width: columns of the terminal.
        named: arms that the command names; they are shown before others.
        complete: False if the arms are not what the run was begun for.
    """
    words = summary(results, design, environment)
    # Text, not str: a line that quotes "[red]" must not be read as markup.
    top = [Text(line, style="" if place else "bold") for place, line in enumerate(words.headline)]
    notes = [Text(f"note: {note}") for note in words.notes]
    if verbose:
        tables = [in_terminal(frame) for frame in arms.all_tables(results, design).values()]
        return Group(*(part for each in tables for part in (each, "")), *top, "", *notes)
    if not complete:
        return Group(top[0], "")
    if more := len(notes[NOTES:]):
        notes = notes[:NOTES]
        notes[-1].append(f" ({more} more note{'s' * (more > 1)} in the report)")
    parts: list[RenderableType] = [*top, ""]
    table = arms.glance(results, design)
    if len(table) > 1 or results.select(quantity="rebuttal_rate"):
        used = sum(len(text.wrap(Console(width=width), width)) for text in (*top, *notes))
        wanted = {*named, design["study"], design["baseline"]} & {*table["arm"]}
        ranked = sorted(table["arm"], key=lambda arm: (arm not in wanted, arm != design["control"]))
        room = LINES - used - BLANK
        most = max(FEWEST_ROWS, room - (room < len(table)), len(wanted))  # a line says how many are left out
        rows = table[table["arm"].isin(ranked[:most])]
        rows.attrs = {"marked": list(rows["arm"] == design["study"]), "note": _legend(rows)}
        parts.append(in_terminal(rows, bare=[name for name in rows.columns if name != "difference"], stacked=False))
        if left := len(table) - len(rows):
            parts.append(Text(f"({left} more arm{'s' * (left > 1)} in the report)", style="dim"))
        parts.append("")
    return Group(*parts, *notes, *([""] if notes else []))


def _legend(rows: pd.DataFrame) -> str:
    """Return what the table's signs, units and last columns mean, in two lines."""
    compared = [cell for cell in rows.get("difference", ()) if isinstance(cell, Row) and cell.claim]
    signs = [f"{SIGNS[claim]} {claim}" for claim in dict.fromkeys(cell.claim for cell in compared) if SIGNS[claim]]
    first = f"{', '.join(signs)} (percent; points [interval])" if signs else "rates in percent"
    return f"{first}\nlast columns: by each arm's own verdicts"


PROGRAM = ("python", "-m", "experiments.run")  # what a recorded command begins with
MOST = 3
OWN_MODEL = "model.path=FOLDER_OR_HUB_ID"
PREVIEW = "task=preview benchmark=table benchmark.path=cases.csv"
OF_MODEL = ("model", "model.path", "model.name", "model.revision", "model.force")  # keys that name one model
OF_RUN = ("run", "runs", "fresh", "force")  # keys that name one run, or how it goes on
FLAG = ("-cd", "--config-dir")  # where options of the user's own are found
BUNDLED = {  # what chooses each
    f"{ORGANISM}llava": [],
    **{f"{ORGANISM}{name}": [f"model={name}_organism"] for name in ("smol", "thinking")},
}
ARM = re.compile(r"\+{0,2}(?:method@arms|arms)\.([^.=]+)")


def typed(environment: Mapping[str, Any]) -> list[str] | None:
    """Return the arguments of the run's command; None if no readable command is recorded."""
    try:
        words = shlex.split(str(environment.get("command") or ""))
    except ValueError:
        return None
    return words[len(PROGRAM) :] if tuple(words[: len(PROGRAM)]) == PROGRAM else None


def named_arms(environment: Mapping[str, Any]) -> set[str]:
    """Return the arms that the run's command names, by adding or setting them."""
    return {match[1] for word in typed(environment) or () if (match := ARM.match(word))}


def program() -> str:
    """Return how this program was started: ``forestlens``, with its folder where that is not on the path."""
    started = Path(sys.argv[0])
    if started.stem != "forestlens":
        return "python -m experiments.run"
    if shutil.which("forestlens"):
        return "forestlens"
    try:
        return str(started.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(started)


def next_commands(environment: Mapping[str, Any], folder: str, *, program: str = "forestlens") -> dict[str, str]:
    """Return command → what it is for: at most three for the run in ``folder``; none if no weights were loaded.

    Args:
        environment: of the run's environment.json.
        folder: the run's, as it is typed.
        program: how this one is started.
    """
    model, config = environment.get("model") or {}, environment.get("config") or {}
    words, path = typed(environment), str(model.get("path") or "")
    if not path or words is None or environment.get("joined"):
        return {}
    task, bundled = str((config.get("task") or {}).get("_target_")), path.startswith(ORGANISM)
    model, cases, method = _same_model(words, path), about(words, "benchmark"), about(words, "method")
    chosen = method if any(word.startswith("method=") for word in method) else []  # else an experiment's own
    same = without(words, "task", *OF_RUN)
    told = task.startswith("experiments.studies.mechanism.") or path == f"{ORGANISM}thinking"  # has a thought before
    of_study = task == "experiments.evaluation.study.run" and not config.get("attention")
    listed = [
        (of_study, [*same, "task=attention", f"run={folder}"], "where the attention of its failures went"),
        (bundled, [*model, *cases, *chosen, "+exp=heatmap_llava"], "one case, its answers, and where the model looked"),
        (not told and (cases or not bundled), [*model, *cases, "+exp=mechanism"], "why it fails"),
        (bundled, [*without(words, *OF_MODEL, *OF_RUN), OWN_MODEL], "the same with your own model"),
        (bundled and not about(words, "benchmark"), shlex.split(PREVIEW), "your own cases"),
    ]
    chosen_commands = [(command, why) for wanted, command, why in listed if wanted]
    return {f"{program} {shlex.join(command)}": why for command, why in chosen_commands[:MOST]}


def without(words: Sequence[str], *keys: str) -> list[str]:
    """Return the arguments that set none of ``keys``; with ``task`` its options ``task.…`` go, too."""
    names = [word.lstrip("+~").partition("=")[0] for word in words]
    options = ("task.",) if "task" in keys else ()
    return [word for word, name in zip(words, names, strict=True) if name not in keys and not name.startswith(options)]


def about(words: Sequence[str], group: str) -> list[str]:
    """Return the arguments that choose the option of ``group``, or set one of its keys."""
    return [word for word in words if re.match(rf"\+{{0,2}}{group}[.=]", word)]


def _same_model(words: Sequence[str], path: str) -> list[str]:
    """Return what loads the run's model: the arguments about it, and the folder of the user's options."""
    flags = [word for at, word in enumerate(words) if word.partition("=")[0] in FLAG or (at and words[at - 1] in FLAG)]
    chosen_here = about(words, "model")
    named = any(re.match(r"model(\.path)?=", word) for word in chosen_here)
    chosen = BUNDLED.get(path, [f"model.path={path}"])
    return [*flags, *chosen_here, *([] if named else chosen)]
