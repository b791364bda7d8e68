"""``task=paper``: a finished run's tables, figures, methods and references, and a script that repeats the run.

``<run>/paper/`` has ``tables/`` (LaTeX and CSV), ``tables.tex`` (with all tables), ``figures/``,
``methods.md`` and ``references.bib``. ``settings.json`` has the settings, ``results.csv`` every number, and
``reproduce.sh`` repeats the run. ``manifest.sha256`` has the hashes of all files. No model is loaded, and nothing in
the run's folder is executed.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.finished_runs import sha256
from experiments.metrics.estimates import SMALL
from experiments.report.arms import LEVELS
from experiments.report.build import context
from experiments.report.figures import COLUMN, drawings, pdf_bytes
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.sections import missing_analyses, read_sections
from experiments.report.tables import csv_text, latex, latex_text, page, say, texts
from experiments.report.terminal import PROGRAM, typed, without
from experiments.runs.record_fields import HUB_ID, without_paths
from experiments.runs.results_table import COLUMNS, FILE, KEY, Results, Row, read_results
from experiments.runs.store import read_object
from interp.checkpoints.config import ORGANISM
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
    """The task. ``against``: a folder that this task wrote, to compare with."""

    run: str | None = None
    against: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the folder and say what is in it; with ``against`` compare the numbers, and write nothing.

        Raises:
            UserError: no finished run of a study that can be repeated by one command; or numbers that differ.
        """
        folder = finished_runs.needed(self.run, "paper")
        if self.against:
            say(*compare(folder, Path(self.against)))
            return
        saved = read_run(folder)
        check(saved)
        target = folder / PAPER
        contents = contents_of(saved)
        finished_runs.fill(target, contents)
        digests = "".join(f"{finished_runs.sha256(target / name)}  {name}\n" for name in sorted(contents))
        (target / MANIFEST).write_text(digests, encoding="utf-8")
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
    printed = context(saved)
    sections = [section for section in read_sections(saved.directory) if NAME.fullmatch(section["name"])]
    tables: dict[str, pd.DataFrame] = dict(printed["tables"])
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
    contents["methods.md"] = methods(saved, printed)
    contents["references.bib"] = bibliography(saved)
    decided = json.dumps(settings(saved), indent=2, sort_keys=True, ensure_ascii=False)
    contents[SETTINGS] = decided + "\n"
    contents[FILE] = (saved.directory / FILE).read_bytes()
    contents["reproduce.sh"] = script(saved)
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


OF_THE_RUN = ("seed", "limit", "protocol", "max_new_tokens", "draws", "unsafe_margin", "operating_point", "contrasts",
              "count_empty_as_refusal", "strict", "batch_size", "batch_tokens")  # fmt: skip
LEFT_OUT = ("command", "started, finished", "benchmark", "judge")  # paths and times of a machine; or said elsewhere
OF_THE_MODEL = ("model", "responses made elsewhere", "counted as", "adapter of", "arm ")  # how these facts begin


def methods(saved: SavedRun, printed: Mapping[str, Any]) -> str:
    """Return the page in Markdown; ``printed`` is what the report prints (``report.build.context``)."""
    environment, config = saved.environment, saved.environment["config"]
    facts = [(str(name), str(value)) for name, value in printed["facts"]]
    about_model = [fact for fact in facts if fact[0].startswith(OF_THE_MODEL)]
    rest = [fact for fact in facts if fact not in about_model and not fact[0].startswith(LEFT_OUT)]
    arms = {name: node for name, node in config["arms"].items() if name in saved.results.arms}
    software = [*(environment.get("versions") or {}).items(), *rest, ("commit", environment.get("commit"))]
    return page(
        "methods.md.j2", **{name: printed[name] for name in ("question", "headline", "notes")}, results=saved.results,
        design=saved.metrics, environment=environment, facts=dict(facts), about_model=about_model, software=software,
        config=without_paths(config), arms=without_paths(arms), small=SMALL, missing=missing_analyses(saved.directory),
        settings=without_paths({key: config[key] for key in OF_THE_RUN if key in config}),
    )  # fmt: skip


ENTRIES = Path(__file__).with_name("references.bib")
USED_BY = "% used by: "


def bibliography(saved: SavedRun) -> str:
    """Return the entries of what the run used, by ``used``."""
    names, model = used(saved), saved.environment.get("model") or {}
    entries = [_entry("forestlens", title="forestlens", author="{The forestlens contributors}",
                    note=f"commit {saved.environment.get('commit') or 'not recorded'}")]  # fmt: skip
    if model.get("name") and not str(model.get("path") or "").startswith(ORGANISM):
        path, revision = str(model.get("path") or model["name"]), model.get("revision")
        link = rf"\url{{https://huggingface.co/{path}}}" if HUB_ID.fullmatch(path) else ""
        note = f"revision {revision}" if revision else ""
        entries.append(
            _entry("model", title=Path(path).name if path.startswith(("/", "~")) else path, note=note, link=link)
        )
    for paragraph in ENTRIES.read_text(encoding="utf-8").split("\n\n"):
        users, _, entry = paragraph.partition("\n")
        if names & set(users.removeprefix(USED_BY).split(", ")):
            entries.append(entry.strip())
    return "\n\n".join(entries) + "\n"


def used(saved: SavedRun) -> set[str]:
    """Return what entries may name: classes of arms, benchmark and task (also with each setting), judge, software."""
    environment, metrics = saved.environment, saved.metrics
    config, model = environment["config"], environment.get("model") or {}
    nodes = [*config["arms"].values(), *(config.get(key) for key in ("benchmark", "task"))]
    names = {name for node in nodes for name in _classes(node)} | {str(environment.get("judge"))}
    names |= {"transformers", "torch"} if model.get("path") else set()
    names |= {"McNemar"} if saved.results.select(quantity="cases_fixed") else set()
    return names | ({"corrected"} if metrics.get("corrected") else set())


def _classes(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if target := node.get("_target_"):
            yield str(target)
            yield from (f"{target} {key}={value}" for key, value in node.items())
        for value in node.values():
            yield from _classes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _classes(value)


def _entry(key: str, *, title: str, author: str = "", note: str = "", link: str = "") -> str:
    values = {"title": f"{{{latex_text(title)}}}", "author": author, "note": latex_text(note), "howpublished": link}
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in values.items() if value)
    return f"@misc{{{key},\n{lines}\n}}"


MANIFEST, SETTINGS = "manifest.sha256", "settings.json"
TOLERANCE = 1e-6
MOST = 5  # differences in an error
COMMIT = re.compile(r"[0-9a-f]{7,64}")
IDENTITY = ("commit", "model", "benchmark", "judge", "versions", "device")  # what may explain other numbers
SCRIPT = """#!/usr/bin/env bash
# Runs the paper's study again, and compares its results with results.csv beside this file, to 1e-6.
# Code: forestlens, commit {commit}. Type this where it is installed:
#     bash reproduce.sh
# If the command below names files, type it in the folder that has them. PYTHON names another python.
set -euo pipefail
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
out=$(mktemp -d)
"${{PYTHON:-python}}" {command} output_root="'$out'" || echo "The study ended with errors. What it has is compared."
"${{PYTHON:-python}}" {compare} run="'$out'" task.against="'$here'"
"""


def script(saved: SavedRun) -> str:
    """Return reproduce.sh. Every word of the run's command is quoted; a model of the hub gets the run's revision."""
    model, commit = saved.environment.get("model") or {}, str(saved.environment.get("commit"))
    words = without(typed(saved.environment) or (), "output_root", "fresh")
    revision = str(model.get("revision"))
    if HUB_ID.fullmatch(str(model.get("path"))) and COMMIT.fullmatch(revision):
        words = [*without(words, "model.revision"), f"model.revision={revision}"]
    return SCRIPT.format(
        commit=(commit if COMMIT.fullmatch(commit) else "not recorded")
        + (", with changes that no commit has" if saved.environment.get("dirty") else ""),
        command=shlex.join([*PROGRAM[1:], *words]),
        compare=shlex.join([*PROGRAM[1:], "task=paper"]),
    )


def settings(saved: SavedRun) -> dict[str, Any]:
    """Return what decides the run's numbers, without a path of this machine."""
    names = ("commit", "dirty", "model", "benchmark", "judge", "versions", "device", "threads", "processes", "config",
             "config_hash", "family")  # fmt: skip
    return dict(without_paths({key: saved.environment.get(key) for key in names}))


def compare(made: Path, folder: Path) -> list[str]:
    """Return sentences on the run in or below ``made``, compared with the numbers in a paper's ``folder``.

    Raises:
        UserError: ``folder`` is not a paper's folder, or was changed. There is no run in ``made``. A row differs or is
            missing; the sentence also says which analysis of the run failed.
    """
    _check_unchanged(folder)
    expected, other = read_results(folder), read_object(folder / SETTINGS)
    run = _run_in(made, other.get("config_hash"))
    results, environment = read_results(run), read_object(run / "environment.json")
    ours = settings(SavedRun(run, results, {}, environment, []))
    unlike = [key for key in IDENTITY if ours[key] != other.get(key)]
    notes = [f"another {', '.join(unlike)} than the paper's ({SETTINGS})"] if unlike else []
    notes += missing_analyses(run)
    there = {row[KEY] for row in results}
    absent = [_name(row) for row in expected if row[KEY] not in there]
    differing = [*differences(expected, results), *(f"{name} is missing" for name in absent)]
    if differing:
        more = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
        raise UserError(
            f"{run}: {len(differing)} rows differ from {folder / FILE}: "
            f"{'; '.join([*differing[:MOST], *notes])}{more}; repeat it with the same code, model and cases"
        )
    return [f"{run / FILE}: all {len(expected)} rows are those of {folder}, to {TOLERANCE:g}", *notes]


def _check_unchanged(folder: Path) -> None:
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        for digest, name in (line.split("  ", 1) for line in lines):
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()) or sha256(path) != digest:
                raise UserError(f"{path} has another hash than in {MANIFEST}; give the unchanged folder")
    except (OSError, ValueError) as error:
        raise UserError(f"task.against={folder} is no folder that task=paper wrote ({error}); give one") from None


def _run_in(folder: Path, config_hash: Any) -> Path:
    """Return the one run in or below ``folder``; of several the one with this configuration."""
    runs = sorted(path.parent for path in folder.rglob(FILE) if read_object(path.parent / "environment.json"))
    same = [run for run in runs if read_object(run / "environment.json").get("config_hash") == config_hash]
    chosen = same if len(same) == 1 else runs
    if len(chosen) != 1:
        raise UserError(f"run={folder} has {len(chosen)} finished runs to compare with; give the folder of one run")
    return chosen[0]


def _name(row: Row) -> str:
    parts = (row.arm, row.against, row.quantity, row.subset, row.group, row.rule)
    return " ".join(filter(None, parts))


def differences(expected: Results, results: Results) -> Iterator[str]:
    """Yield how rows of both differ, as ``vcd auroc: value 0.6 and 0.7``; numbers to 1e-6."""
    rows = {row[KEY]: row for row in results}
    for row in expected:
        other = rows.get(row[KEY], row)
        parts = [f"{column} {first} and {second}" for column, first, second in zip(COLUMNS, row, other, strict=True)
                 if column != "run" and not _equal(first, second)]  # fmt: skip
        if parts:
            yield f"{_name(row)}: {', '.join(parts)}"


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(first == second)
