"""``task=paper``: a finished run's tables, figures, methods and references, and a script that repeats the run.

``<run>/paper/`` (or ``task.to``) has ``tables/`` (LaTeX and CSV), ``tables.tex`` (with all tables), ``figures/``,
``methods.md`` and ``references.bib``. ``settings.json`` has the settings, ``results.csv`` every number, and
``reproduce.sh`` repeats the run. ``manifest.sha256`` has the hashes of all files. No model is loaded, and nothing in
the run's folder is executed.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.report import page
from experiments.report.arms import LEVELS
from experiments.report.figures import COLUMN, drawings, pdf_bytes
from experiments.report.next_commands import typed
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.sections import read_sections
from experiments.report.tables import csv_text, latex, latex_text, say, texts
from experiments.runs.results_table import FILE
from experiments.studies.paper import references, reproduction
from experiments.studies.paper.methods import methods
from interp.errors import UserError

PAPER = "paper"
NAME = re.compile(r"[A-Za-z0-9_]+")  # of a section and its figures
MADE_OF_OTHERS = {"joined": "joined from several runs", "judged_run": "another run judged again"}
FLOAT = r"""\begin{table*}[t]
\centering
\caption{%s}
\label{tab:%s}
%s
\end{table*}
"""
FITTED = r"""\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%%
%s}"""
WIDE = 120  # characters of a table's columns; a wider table becomes several, below each other, and stays legible
WITHIN = r"width=\columnwidth,height=.9\textheight,keepaspectratio"
DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{booktabs,graphicx}
\begin{document}
%s
\end{document}
"""


@dataclass(frozen=True)
class Paper:
    """The task. ``to``: an absent or empty folder; ``against``: a folder that this task wrote, to compare with."""

    run: str | None = None
    to: str | None = None
    against: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the folder and say what is in it; with ``against`` compare the numbers, and write nothing.

        Raises:
            UserError: no finished run of a study that can be repeated by one command; or numbers that differ.
        """
        folder = finished_runs.needed(self.run, "paper")
        if self.against:
            say(*reproduction.compare(folder, Path(self.against)))
            return
        saved = read_run(folder)
        check(saved)
        target = finished_runs.target(self.to, folder / PAPER)
        contents = contents_of(saved)
        finished_runs.fill(target, contents)
        digests = "".join(f"{finished_runs.sha256(target / name)}  {name}\n" for name in sorted(contents))
        (target / reproduction.MANIFEST).write_text(digests, encoding="utf-8")
        tables, figures = (sum(name.startswith(part) for name in contents) for part in ("tables/", "figures/"))
        say(f"{target}: {tables // 2} tables, {figures} figures; methods.md says what was done, bash reproduce.sh "
            "does it again")  # fmt: skip


def check(saved: SavedRun) -> None:
    """Raise UserError if the run is not finished, or if one command does not make its numbers again."""
    run, environment = f"run={saved.directory}", saved.environment
    if not environment.get("finished"):
        raise UserError(f"{run} is not finished; run its command again, and task=paper after it")
    for key, made in MADE_OF_OTHERS.items():
        if environment.get(key):
            raise UserError(f"{run} is {made}, which no single command makes again; give the run that asked the model")
    if (kind := saved.metrics["kind"]) not in LEVELS:
        raise UserError(f"{run} is a study of the kind {kind!r}; known kinds: {', '.join(LEVELS)}; give such a run")
    if typed(environment) is None or not (environment.get("config") or {}).get("arms"):
        raise UserError(
            f"{run} has no record of its command and its arms' settings; run the study again, and give that"
        )


def contents_of(saved: SavedRun) -> dict[str, str | bytes | Path]:
    """Return the files of the folder by name, without the manifest."""
    context = page.context(saved)
    sections = [section for section in read_sections(saved.directory) if NAME.fullmatch(section["name"])]
    tables: dict[str, pd.DataFrame] = dict(context["tables"])
    for section in sections:
        tables |= {
            f"{section['name']}_{at}": frame for at, frame in enumerate(section["tables"], start=1) if len(frame)
        }
    contents: dict[str, str | bytes | Path] = {}
    tables = {re.sub(r"[^A-Za-z0-9_]", "_", name): frame for name, frame in tables.items()}
    for name, frame in tables.items():
        title, note = frame.attrs.get("title") or name, frame.attrs.get("note") or ""
        parts = "\n\n\\medskip\n".join(FITTED % latex(part) for part in split(frame))
        contents[f"tables/{name}.tex"] = FLOAT % (latex_text(f"{title}. {note}".strip()), name, parts)
        contents[f"tables/{name}.csv"] = csv_text(frame) + "\r\n"
    contents |= {
        f"figures/{name}.pdf": pdf_bytes(drawing.draw(form=COLUMN)) for name, drawing in drawings(saved).items()
    }
    included = [
        rf"\begin{{figure}}[t]\centering\includegraphics[{WITHIN}]{{{name}}}\end{{figure}}"
        for name in contents
        if name.endswith(".pdf")
    ]
    contents |= dict(_drawn(saved, sections))
    contents["tables.tex"] = DOCUMENT % "\n".join([*(rf"\input{{tables/{name}}}" for name in tables), *included])
    contents["methods.md"] = methods(saved, context)
    contents["references.bib"] = references.bibliography(saved)
    settings = json.dumps(reproduction.settings(saved), indent=2, sort_keys=True, ensure_ascii=False)
    contents[reproduction.SETTINGS] = settings + "\n"
    contents[FILE] = (saved.directory / FILE).read_bytes()
    contents["reproduce.sh"] = reproduction.script(saved)
    return contents


def split(frame: pd.DataFrame, wide: int = WIDE) -> list[pd.DataFrame]:
    """Return the columns of a table in parts of at most ``wide`` characters, each with the first column."""
    plain = texts(frame)
    widths = [max(len(str(name)), *plain[name].map(len)) + 1 for name in plain.columns]
    ends = [max(0, end - 1) // max(wide - widths[0], 1) for end in accumulate(widths[1:])]
    parts = [[at + 1 for at, part in enumerate(ends) if part == number] for number in dict.fromkeys(ends)]
    return [frame.iloc[:, [0, *part]] for part in parts] or [frame]


def _drawn(run: SavedRun, sections: list[dict[str, Any]]) -> Iterator[tuple[str, Path]]:
    """Yield the figures of the sections as SVG, as the report has them."""
    for figure in (figure for section in sections for figure in section["figures"]):
        path = run.directory / "figures" / f"{figure['name']}.svg"
        if NAME.fullmatch(path.stem) and path.resolve().is_relative_to(run.directory.resolve()):
            yield f"figures/{path.name}", path
