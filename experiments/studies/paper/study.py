"""``task=paper``: a finished run's tables, figures, methods and references, and what a reviewer repeats it with.

``<run>/paper/`` (or ``task.to``) holds ``tables/`` (LaTeX and CSV), ``tables.tex`` (all of them, to look at),
``figures/``, ``methods.md``, ``references.bib``, ``settings.json``, ``metrics.json``, ``reproduce.sh``, and
``manifest.sha256`` over all of these. Numbers come from metrics.json through the report's tables; no model is loaded,
and nothing in the run's folder is executed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.judges.refusal_rules import shipped_card
from experiments.report import judge_card, page
from experiments.report.arm_tables import ARMS
from experiments.report.build import at_column_width
from experiments.report.figures import pdf_bytes
from experiments.report.next_commands import typed
from experiments.report.sections import read_sections
from experiments.report.table import Table, csv_text, latex, latex_text, say
from experiments.report.words import with_sentences
from experiments.runs.saved_run import SavedRun, read_run
from experiments.studies.paper import references, reproduction
from experiments.studies.paper.methods import methods
from interp.errors import UserError

PAPER = "paper"
NAME = re.compile(r"[A-Za-z0-9_]+")  # of a section and its figures
MANIFEST, METRICS, SETTINGS = reproduction.MANIFEST, reproduction.METRICS, reproduction.SETTINGS
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
WIDE = 120  # characters of a table's columns; one that is wider becomes several, below each other, and stays legible
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
        """Writes the folder and says what is in it; with ``against`` compares the numbers, and writes nothing.

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
        (target / MANIFEST).write_text(digests, encoding="utf-8")
        tables, figures = (sum(name.startswith(part) for name in contents) for part in ("tables/", "figures/"))
        say(f"{target}: {tables // 2} tables, {figures} figures; what was done stands in methods.md, bash reproduce.sh "
            "does it again")  # fmt: skip


def check(saved: SavedRun) -> None:
    """Raises UserError where the run is not finished, or one command does not make its numbers again."""
    run, environment = f"run={saved.directory}", saved.environment
    if not environment.get("finished"):
        raise UserError(f"{run} is not finished; type its command again, and make its paper then")
    for key, made in MADE_OF_OTHERS.items():
        if environment.get(key):
            raise UserError(f"{run} is {made}, which no single command makes again; give the run that asked the model")
    if (kind := saved.metrics.get("kind", "yes_no")) not in ARMS:
        raise UserError(
            f"{run} is a study of the kind {kind!r}; tables are known of {', '.join(ARMS)}; give such a run"
        )
    if typed(environment) is None or not (environment.get("config") or {}).get("arms"):
        raise UserError(
            f"{run} has no record of its command and its arms' settings; run the study again, and give that"
        )


def contents_of(saved: SavedRun) -> dict[str, str | bytes | Path]:
    """The files of the folder by name, without the manifest."""
    worded = replace(saved, metrics=with_sentences(saved.metrics, saved.environment))
    words = page.context(worded)
    card = _card(saved)
    tables = _tables(saved, words) | {f"judge_card_{at}": one for at, one in enumerate(card, start=1)}
    found: dict[str, str | bytes | Path] = {}
    for name, table in tables.items():
        caption = latex_text(" ".join(filter(None, (f"{table.title}." if table.title else name, table.legend))))
        parts = "\n\n\\medskip\n".join(FITTED % latex(part) for part in table.split(WIDE))
        found[f"tables/{name}.tex"] = FLOAT % (caption, name, parts)
        found[f"tables/{name}.csv"] = csv_text(table) + "\r\n"
    figures = _figures(worded)
    shown = [
        rf"\begin{{figure}}[t]\centering\includegraphics[{WITHIN}]{{{name}}}\end{{figure}}"
        for name in figures
        if name.endswith(".pdf")
    ]
    inputs = [rf"\input{{tables/{name}}}" for name in tables]
    found |= figures
    found["tables.tex"] = DOCUMENT % "\n".join([*inputs, *shown])
    found["methods.md"] = methods(saved, words, card)
    found["references.bib"] = references.bibliography(saved)
    found[SETTINGS] = json.dumps(reproduction.settings(saved), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    found[METRICS] = (saved.directory / METRICS).read_bytes()
    found["reproduce.sh"] = reproduction.script(saved)
    return found


def _tables(saved: SavedRun, words: Mapping[str, Any]) -> dict[str, Table]:
    """The report's tables by name, those of its sections by section and number; without a row none."""
    found = {name: one for name, one in words.items() if isinstance(one, Table)}
    for section in _sections(saved):
        found |= {f"{section['name']}_{at}": one for at, one in enumerate(section["tables"], start=1)}
    return {name: one for name, one in found.items() if len(one.frame)}


def _sections(saved: SavedRun) -> list[dict[str, Any]]:
    """The report's sections of the run; what is called as no study calls one, is none."""
    return [one for one in read_sections(saved.directory) if NAME.fullmatch(one["name"])]


def _card(saved: SavedRun) -> list[Table]:
    """The shipped card's tables about the run's judge; none where it has none there or was given another card."""
    card, judge = json.loads(shipped_card().read_text(encoding="utf-8")), saved.environment.get("judge")
    if saved.environment["config"].get("judge_card") or judge not in card["judges"]:
        return []
    tables = judge_card.tables({**card, "judges": {judge: card["judges"][judge]}})
    return [Table.of(f"{judge_card.TITLE}: {title}", rows) for title, rows in tables.items()]


def _figures(run: SavedRun) -> dict[str, str | bytes | Path]:
    """The figures of metrics and attention as PDF at a column's width; a section's, as the report has them, as SVG."""
    drawn = at_column_width(run)
    found: dict[str, str | bytes | Path] = {f"figures/{name}.pdf": pdf_bytes(one) for name, one in drawn.items()}
    for section in _sections(run):
        for figure in section["figures"]:
            path = run.directory / "figures" / f"{figure['name']}.svg"
            if NAME.fullmatch(path.stem) and path.resolve().is_relative_to(run.directory.resolve()):
                found[f"figures/{path.name}"] = path
    return found
