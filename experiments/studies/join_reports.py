"""``task=report``: build a run's report again, or join several runs of one benchmark into one comparison.

Loads no model. Joined runs become a run of their own, on the cases that all of them asked. If an arm differs between
runs, its name begins with what differs: the model, what was typed, or the digest of a method's file.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run, digest
from experiments.evaluation import finished_runs, scoring
from experiments.evaluation.validated_run import check_contrasts
from experiments.report import terminal
from experiments.report.build import build
from experiments.report.figures import COLUMN, FORMATS, check_format, drawings
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.sections import REPORT, mark_finished, missing_analyses
from experiments.report.tables import say
from experiments.runs import record_fields
from experiments.runs.record_fields import SHOWN, arm_title, model_title
from experiments.runs.results_table import FILE as TABLE
from experiments.runs.store import read_object
from interp.errors import UserError

BASELINE, SHIFT = "baseline", "calibrated_shift"
# Typed settings that change no answer, or that say which model it is.
NOT_TOLD = ("output_root=", "name=", "note=", "fresh=", "force=", "verbose=", "model")
CASE_FIELDS = ("subset", "scenario", "gold", "cluster", "pair", "text")  # what a case is, whatever answered it


@dataclass(frozen=True)
class BuildReport:
    """The task: build the report of ``run`` again, or join ``runs``; the first baseline is the reference.

    ``format`` (svg or pdf) also writes the figures in that form, as wide as a column of a paper.
    """

    run: str | None = None
    runs: list[str] | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None:
            check_format(self.format)

    def __call__(self, run: Run) -> None:
        """Write report.html, and print the results and where the files are."""
        note = ""
        if self.runs:
            page, note = joined_run(run, [read_run(Path(folder)) for folder in self.runs])
        elif self.run:
            page = build(Path(self.run))
        else:
            raise UserError("task=report: no run; give run=<dir>, or runs=[<dir>,<dir>] to compare several")
        saved = read_run(page.parent)
        named = saved.results.arms if self.runs else terminal.named_arms(saved.environment)
        say(
            terminal.render(saved.results, saved.metrics, saved.environment, verbose=run.verbose,
                           width=Console().width, named=named),
            *filter(None, [note]),
            *missing_analyses(page.parent, REPORT),
        )  # fmt: skip
        if self.runs:
            figure = page.parent / "figures" / f"{next(iter(drawings(saved)))}.svg"
            say(f"table: {page.with_name(TABLE)}", f"figure: {figure}")
        mark_finished(page.parent)
        if self.format is not None:
            for name, drawing in drawings(saved).items():
                path = page.parent / "figures" / f"{name}_column.{self.format}"
                path.write_bytes(FORMATS[self.format](drawing.draw(form=COLUMN)))
                say(f"figure: {path}")
        say(f"report: {page}")


def beside_each_other(run: Run, folders: Sequence[Path]) -> None:
    """End a sweep: join its runs, and print the paths of table, figure and report. ``run`` is its last run.

    If the runs cannot be joined, as if they have two benchmarks, say why.
    """
    if not all("study" in read_object(folder / "metrics.json") for folder in folders):
        return  # no studies of arms
    say("", f"the {len(folders)} runs of this sweep beside each other", "")
    try:
        BuildReport(runs=[str(folder) for folder in folders])(replace(run, contrasts=[]))  # theirs name arms of one run
    except UserError as error:
        say(f"no table of all: {error}")


def joined_run(run: Run, parts: Sequence[SavedRun]) -> tuple[Path, str]:
    """Write ``parts`` as one run with the settings of ``run``; return its report and a note on its cases.

    The reference is the baseline of the first run, and the last run has the arm under study. Further contrasts: an arm
    that differs between runs is compared with the first run's, and with the baseline of its own run. A refusal
    benchmark has no contrasts: there the reference is the first run's arm under study if all share a baseline.

    Raises:
        UserError: the runs have no case in common, ask for different answers, or a case differs between them.
    """
    kinds = {part.metrics["kind"] for part in parts}
    if len(kinds) > 1:
        raise UserError("these runs ask for different answers (Yes/No, and open ones); join runs of one benchmark")
    (kind,) = kinds
    names = run_names(parts)
    lines, titles, note = joined(parts, names)
    arms = list(dict.fromkeys(str(line["arm"]) for line in lines))
    bases = [title[BASELINE] for title in titles if BASELINE in title]
    reference = bases[0] if bases else arms[0]
    wanted = [str(part.environment.get("arm_under_study")) for part in parts]
    studied = [title.get(arm) for arm, title in zip(wanted, titles, strict=True)]
    study = next((arm for arm in [*reversed(studied), *arms] if arm not in (None, reference)), reference)
    contrasts = [] if kind == "refusal" else _contrasts(titles, reference)
    if kind == "refusal" and len({*bases}) == 1 and studied[0] not in (None, study):
        reference = studied[0]
    check_contrasts(run, arms, kind)
    evaluation = scoring.evaluate(
        replace(run, contrasts=[*contrasts, *(pair for pair in run.contrasts if pair not in contrasts)]),
        lines,
        study=study,
        kind=kind,
        baseline=reference,
        control=next((title[SHIFT] for title in titles if SHIFT in title), SHIFT),
        first=scoring.family(study, contrasts),
    )
    environment = _environment(parts, names, study, len({line["case"] for line in lines}))
    folders = [part.directory for part in parts]
    files = {"metrics.json": evaluation.design, "environment.json": environment}
    page = finished_runs.derived(
        run, "joined", [str(folder.resolve()) for folder in folders], lines,
        files, evaluation.results, pictures=folders,
    )  # fmt: skip
    return page, note


def _contrasts(titles: Sequence[Mapping[str, str]], reference: str) -> list[list[str]]:
    """Return pairs of arms: each with the first run's arm of that name, and with the baseline of its own run."""
    pairs: dict[tuple[str, str], None] = {}
    for title in titles:
        for arm, name in title.items():
            first = next(other[arm] for other in titles if arm in other)
            for other in (first, title.get(BASELINE, reference)):
                if name != other and reference not in (name, other):
                    pairs[name, other] = None
    return [list(pair) for pair in pairs]


def joined(parts: Sequence[SavedRun], names: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, str]], str]:
    """Return the records of the common cases, the title of each arm by run, and a note on other cases.

    Answers to the same cases under the same settings are in the records once. If all runs share an arm it keeps its
    name; other arms are ``<run>: <arm>``.

    Raises:
        UserError: no case is common to the runs, or a case differs between them.
    """
    cases = [{str(record["case"]) for record in part.predictions} for part in parts]
    every, common = set.union(*cases), set.intersection(*cases)
    if not common:
        raise UserError("these runs have no case in common; give runs of one benchmark")
    earlier: dict[str, dict[str, Any]] = {}
    versions: dict[str, dict[str, int]] = {}  # arm → digest of its settings by case → the first run with it
    sources: list[dict[str, int]] = []  # by run: arm → the run whose answers are used
    for number, part in enumerate(parts):
        settings: dict[str, dict[str, str]] = {}
        for record in part.predictions:
            if (case := str(record["case"])) in common:
                _check_same(part, parts[0], record, earlier.setdefault(case, record))
                settings.setdefault(str(record["arm"]), {})[case] = str(record["settings"])
        sources.append(
            {arm: versions.setdefault(arm, {}).setdefault(digest(each), number) for arm, each in settings.items()}
        )
    lines, titles = [], []
    for number, (part, source) in enumerate(zip(parts, sources, strict=True)):
        title = {}
        for arm, first in source.items():
            shared = len(versions[arm]) == 1 and all(arm in other for other in sources)
            name = arm_title(part.environment.get("model"), arm)
            title[arm] = name if shared else f"{names[first]}: {name}"
        titles.append(title)
        lines += [
            record | {"arm": title[str(record["arm"])]}
            for record in part.predictions
            if str(record["case"]) in common and source[str(record["arm"])] == number
        ]
    rest = len(every) - len(common)
    note = f"note: every run asked {len(common):,} cases; {rest:,} others do not count" if rest else ""
    return lines, titles, note


def _check_same(part: SavedRun, first: SavedRun, record: Mapping[str, Any], earlier: Mapping[str, Any]) -> None:
    """Raise a UserError if the case of ``record`` differs from an earlier run's."""
    case = str(record["case"])
    differing = [key for key in CASE_FIELDS if record.get(key) != earlier.get(key)]
    manifests = {str((run.environment.get("benchmark") or {}).get("manifest")) for run in (part, first)}
    if not differing and record is not earlier and len(manifests) > 1:
        pictures = [run.thumbnail(case) for run in (part, first)]
        differing = ["picture"] if None not in pictures and pictures[0] != pictures[1] else []
    if differing:
        raise UserError(
            f"case {case} of {part.directory} has another {differing[0]} than in an earlier run; give runs of one "
            "benchmark, which asked the same cases"
        )


def run_names(parts: Sequence[SavedRun]) -> list[str]:
    """Return what distinguishes the runs.

    That is the model (its name and the beginning of its weights' hash), else what was typed ("seed=1"), else the digest
    of a method's file. If that is not enough, a number follows.
    """
    models = [model_title(part.environment.get("model") or {"name": "run"}) for part in parts]
    files = [part.environment.get("code") or {} for part in parts]
    code = [
        ", ".join(f"{arm} {sha[:SHOWN]}" for arm, sha in each.items() if any(other.get(arm) != sha for other in files))
        for each in files
    ]
    names = models if len({*models}) > 1 else [""] * len(parts)
    for more in (_typed_otherwise(parts), code):
        if len({*names}) < len(parts) and len({*more}) > 1:
            names = [", ".join(filter(None, pair)) for pair in zip(names, more, strict=True)]
    names = [name or model for name, model in zip(names, models, strict=True)]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]


def _typed_otherwise(parts: Sequence[SavedRun]) -> list[str]:
    """Return for each run the typed settings that not all runs share: ``alpha=0.5`` of ``method.alpha=0.5``.

    Only settings count that may change answers of a model.
    """
    words = [[word.lstrip("+") for word in terminal.typed(part.environment) or ()] for part in parts]
    settings = [
        [word.partition("=") for word in line if "=" in word and not word.startswith(NOT_TOLD)] for line in words
    ]
    return [
        ", ".join(f"{key.rpartition('.')[2]}={value}" for key, sign, value in line
                  if sign and not all((key, "=", value) in others for others in settings))
        for line in settings
    ]  # fmt: skip


def _environment(parts: Sequence[SavedRun], names: Sequence[str], study: str, cases: int) -> dict[str, Any]:
    first = parts[0].environment
    models = list(dict.fromkeys(model_title(part.environment.get("model") or {"name": "run"}) for part in parts))
    listed = " and ".join(dict.fromkeys(names))
    alike = len(models) == 1 and not any(name.startswith(models[0]) for name in names)
    return {
        **{key: first.get(key) for key in ("commit", "dirty", "versions", "judge", "seed")},
        "benchmark": {**(first.get("benchmark") or {}), "n": cases},
        "model": {"name": f"{models[0]} with {listed}" if alike else listed},
        "arm_under_study": study,
        "joined": {name: str(part.directory) for name, part in zip(names, parts, strict=True)},
        "finished": record_fields.timestamp(),
    }
