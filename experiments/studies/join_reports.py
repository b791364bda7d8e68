"""``task=report``: a run's report built again, or several runs of one benchmark joined into one comparison.

Loads no model. Joined runs become a run of their own, on the cases that all of them asked. Arms that differ are named
after what tells their runs apart: the model, what was typed otherwise, or the digest of a method's file.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from experiments.config import Run, digest
from experiments.evaluation import finished_runs, scoring
from experiments.evaluation.admission import check_contrasts
from experiments.report import next_commands, terminal
from experiments.report.arm_tables import arms_table
from experiments.report.build import at_column_width, build, drawings
from experiments.report.cases import FILE, attention_of_cases
from experiments.report.figures import FORMATS, check_format
from experiments.report.table import csv_text, say
from experiments.report.words import with_sentences
from experiments.runs import analyses, records
from experiments.runs.provenance import SHOWN, arm_title, model_title
from experiments.runs.resumption import read_object
from experiments.runs.saved_run import SavedRun, read_run
from experiments.types import Kind
from interp.errors import UserError

BASELINE = "baseline"
NOT_TOLD = ("output_root", "name", "note", "fresh", "force", "verbose")  # typed settings that change no answer
CASE_FIELDS = ("subset", "scenario", "gold", "cluster", "pair", "text")  # what one case is, whatever answered it


@dataclass(frozen=True)
class BuildReport:
    """The task: builds the report of ``run`` again, or joins ``runs``; the first baseline is the reference.

    With ``format`` svg or pdf the figures are written in it too, as wide as a column of a paper.
    """

    run: str | None = None
    runs: list[str] | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None:
            check_format(self.format)

    def __call__(self, run: Run) -> None:
        """Writes report.html, and prints the results and where it is."""
        console = Console()
        if self.runs:
            page = self._joined(run, [read_run(Path(folder)) for folder in self.runs], console)
        elif self.run:
            page = build(Path(self.run))
            saved = read_run(Path(self.run))
            named = next_commands.named_arms(saved.environment)
            shown = with_sentences(saved.metrics, saved.environment)
            console.print(terminal.shown(shown, verbose=run.verbose, width=console.width, named=named))
            for sentence in analyses.failures(Path(self.run), analyses.REPORT):
                console.print(sentence, highlight=False, soft_wrap=True, markup=False)
            analyses.settle(Path(self.run))
        else:
            raise UserError("task=report: no run; give run=<dir>, or runs=[<dir>,<dir>] to compare several")
        if self.format is not None:
            saved = read_run(page.parent)
            drawn = at_column_width(replace(saved, metrics=with_sentences(saved.metrics, saved.environment)))
            for name, figure in drawn.items():
                path = page.parent / "figures" / f"{name}_column.{self.format}"
                path.write_bytes(FORMATS[self.format](figure))
                say(f"figure: {path}")
        console.print(f"report: {page}", highlight=False, soft_wrap=True)

    def _joined(self, run: Run, parts: Sequence[SavedRun], console: Console) -> Path:
        page, shown, note = joined_run(run, parts)
        console.print(terminal.shown(shown, verbose=run.verbose, width=console.width, named=shown["arms"]))
        table, figure = (
            page.with_name("arms.csv"),
            page.parent / "figures" / f"{next(iter(drawings(read_run(page.parent))))}.svg",
        )
        table.write_text(csv_text(arms_table(shown)) + "\r\n", encoding="utf-8", errors="replace", newline="")
        say(*filter(None, [note]), f"table: {table}", f"figure: {figure}")
        return page


def beside_each_other(run: Run, folders: Sequence[Path]) -> None:
    """Ends a sweep: its runs in one table, figure and report, and where these are; ``run`` is its last.

    A sentence stands in their place where the runs cannot be joined, as those of two benchmarks.
    """
    if not all(read_object(folder / "metrics.json").get("arms") for folder in folders):
        return  # no studies of arms
    say("", f"the {len(folders)} runs of this sweep beside each other", "")
    try:
        BuildReport(runs=[str(folder) for folder in folders])(replace(run, contrasts=[]))  # theirs name arms of one run
    except UserError as error:
        say(f"no table of all: {error}")


def joined_run(run: Run, parts: Sequence[SavedRun]) -> tuple[Path, dict[str, Any], str]:
    """Writes the ``parts`` as one run, by the settings of ``run``: its report, metrics in words, a note on its cases.

    The reference is the baseline of the first run, the arm under study that of the last one. Arms of one name that
    differ are compared with that of the first run, too, and where baselines differ, with their own: contrasts, of the
    family that the joined run was begun for. A refusal benchmark has no contrasts: there, where the runs share a
    baseline, the reference is the first run's arm under study.

    Raises:
        UserError: the runs have no case in common, ask for different answers, or a case differs between them.
    """
    kind, names = _kind(parts), run_names(parts)
    lines, called, note = joined(parts, names)
    arms = list(dict.fromkeys(str(line["arm"]) for line in lines))
    bases = [of[BASELINE] for of in called if BASELINE in of]
    reference = bases[0] if bases else arms[0]
    asked = [of.get(str(part.environment.get("arm_under_study"))) for part, of in zip(parts, called, strict=True)]
    studied = next((arm for arm in reversed(asked) if arm not in (None, reference)), None)
    studied = studied or next((arm for arm in arms if arm != reference), reference)
    beside = [] if kind == "refusal" else _contrasts(called, reference)
    if kind == "refusal" and len({*bases}) == 1 and asked[0] not in (None, studied):
        reference = str(asked[0])
    check_contrasts(run, arms, kind)
    result = scoring.evaluate(
        replace(run, contrasts=[*beside, *(pair for pair in run.contrasts if pair not in beside)]),
        lines,
        study=studied,
        kind=kind,
        baseline=reference,
        control=next((of["calibrated_shift"] for of in called if "calibrated_shift" in of), "calibrated_shift"),
        first=scoring.family(studied, beside),
    )
    environment = _environment(parts, names, studied, len({line["case"] for line in lines}))
    looked, folders = joined_attention(parts, names, called), [part.directory for part in parts]
    page = finished_runs.derived(
        run,
        "joined",
        [str(folder.resolve()) for folder in folders],
        lines,
        {"metrics.json": result, "environment.json": environment} | ({FILE: looked} if looked else {}),
        pictures=folders,
    )
    return page, with_sentences(result, environment), note


def _contrasts(called: Sequence[Mapping[str, str]], reference: str) -> list[list[str]]:
    """Pairs of arms: each with that of its name in the first run that has it, and with its own baseline."""
    pairs: dict[tuple[str, str], None] = {}
    for of in called:
        for arm, title in of.items():
            first = next(other[arm] for other in called if arm in other)
            for other in (first, of.get(BASELINE, reference)):
                if title != other and reference not in (title, other):
                    pairs[title, other] = None
    return [list(pair) for pair in pairs]


def joined(parts: Sequence[SavedRun], names: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, str]], str]:
    """The records of the cases that every run asked; of each run, arm → how it is called; a note on other cases.

    Answers to the same cases under the same settings are kept once; an arm that all runs share keeps its name, others
    are ``<run>: <arm>``.

    Raises:
        UserError: no case is common to the runs, or a case of one is another case in a second.
    """
    everything = {str(record["case"]) for part in parts for record in part.predictions}
    common = everything.intersection(*({str(record["case"]) for record in part.predictions} for part in parts))
    if not common:
        raise UserError("these runs have no case in common; give runs of one benchmark")
    known: dict[str, dict[str, Any]] = {}
    versions: dict[str, dict[str, int]] = {}  # arm → digest of its settings, by case → the first run with it
    of_run: list[dict[str, int]] = []  # arm → the run whose answers stand for it
    for at, part in enumerate(parts):
        settings: dict[str, dict[str, str]] = {}
        for record in part.predictions:
            if (case := str(record["case"])) in common:
                _check_same(part, parts[0], record, known.setdefault(case, record))
                settings.setdefault(str(record["arm"]), {})[case] = str(record["settings"])
        of_run.append({arm: versions.setdefault(arm, {}).setdefault(digest(of), at) for arm, of in settings.items()})
    lines, called = [], []
    for at, (part, own) in enumerate(zip(parts, of_run, strict=True)):
        titles = {arm: arm_title(part.environment.get("model"), arm) for arm in own}
        shared = {arm for arm in own if len(versions[arm]) == 1 and all(arm in other for other in of_run)}
        titles = {arm: title if arm in shared else f"{names[own[arm]]}: {title}" for arm, title in titles.items()}
        kept = [one for one in part.predictions if str(one["case"]) in common and own[str(one["arm"])] == at]
        lines += [record | {"arm": titles[str(record["arm"])]} for record in kept]
        called.append(titles)
    left_out = len(everything) - len(common)
    note = f"note: {len(common):,} cases were asked by every run; {left_out:,} others are left out" if left_out else ""
    return lines, called, note


def _check_same(part: SavedRun, first: SavedRun, record: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises a UserError where the case of ``record`` is another one than in an earlier run."""
    case = str(record["case"])
    differing = [key for key in CASE_FIELDS if record.get(key) != known.get(key)]
    if not differing and record is not known and _manifest(part) != _manifest(first):
        pictures = [run.thumbnail(case) for run in (part, first)]
        differing = ["picture"] if None not in pictures and pictures[0] != pictures[1] else []
    if differing:
        raise UserError(
            f"case {case} of {part.directory} has another {differing[0]} than in an earlier run; "
            "runs are joined that asked the same cases; give runs of one benchmark"
        )


def joined_attention(
    parts: Sequence[SavedRun], names: Sequence[str], called: Sequence[Mapping[str, str]]
) -> dict[str, Any] | None:
    """Attention of single cases under the joined run's arms, ``called`` so; None where no run logged any."""
    cases: dict[str, dict[str, Any]] = {}
    notes: dict[str, None] = {}
    for part, name, titles in zip(parts, names, called, strict=True):
        found = attention_of_cases(part.directory) or {"note": "", "cases": {}}
        for case, of_arm in found["cases"].items():
            if kept := {titles[arm]: block for arm, block in of_arm.items() if arm in titles}:
                cases[case] = {**(before := cases.get(case, {})), **kept, **before}
                notes[f"{name}: {found['note']}"] = None
    return {"note": " ".join(notes), "cases": cases} if cases else None


def _manifest(part: SavedRun) -> str:
    return str((part.environment.get("benchmark") or {}).get("manifest"))


def _kind(parts: Sequence[SavedRun]) -> Kind:
    kinds = {"refusal" if part.metrics.get("kind") == "refusal" else "yes_no" for part in parts}
    if len(kinds) > 1:
        raise UserError("these runs ask for different answers (Yes/No, and open ones); join runs of one benchmark")
    return "refusal" if kinds == {"refusal"} else "yes_no"


def run_names(parts: Sequence[SavedRun]) -> list[str]:
    """What tells the runs apart: the model (its name, the beginning of its weights' hash), else what was typed
    otherwise ("seed=1"), else the digest of a method's file; a number beside it where that is not enough."""
    models = [model_title(part.environment.get("model") or {"name": "run"}) for part in parts]
    typed = _typed_otherwise(parts)
    files = [part.environment.get("code") or {} for part in parts]
    code = [
        ", ".join(f"{arm} {one[:SHOWN]}" for arm, one in of.items() if any(other.get(arm) != one for other in files))
        for of in files
    ]
    several = len({*models}) > 1
    names = models if several else [""] * len(parts)
    for more in (typed, code):
        if len({*names}) < len(parts) and len({*more}) > 1:
            names = [", ".join(filter(None, pair)) for pair in zip(names, more, strict=True)]
    names = [name or model for name, model in zip(names, models, strict=True)]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} {at}" for at, name in enumerate(names, start=1)]


def _typed_otherwise(parts: Sequence[SavedRun]) -> list[str]:
    """Of each run the settings that were typed in some command and differ between the runs, as ``key=value``.

    Of a key its last part, where that tells it from the others: ``alpha=0.5`` of ``method.alpha=0.5``.
    """
    words = [next_commands.typed(part.environment) or [] for part in parts]
    keys = [key for of in words for word in of if "=" in word for key in [word.partition("=")[0].lstrip("+")]]
    found: list[list[tuple[str, object]]] = [[] for _ in parts]
    for key in dict.fromkeys(key for key in keys if key not in NOT_TOLD and not key.startswith("model")):
        values = []
        for part, of in zip(parts, words, strict=True):
            given = [word.partition("=")[2] for word in of if word.partition("=")[0].lstrip("+") == key]
            value = OmegaConf.select(OmegaConf.create(dict(part.environment.get("config") or {})), key)
            values.append(given[-1] if given else "default" if value is None or OmegaConf.is_config(value) else value)
        if len({*map(str, values)}) > 1:
            for own, value in zip(found, values, strict=True):
                own.append((key, value))
    ends = Counter(key.rpartition(".")[2] for key, _ in found[0])

    def short(key: str) -> str:
        end = key.rpartition(".")[2]
        return end if ends[end] == 1 else key

    return [", ".join(f"{short(key)}={value}" for key, value in own) for own in found]


def _environment(parts: Sequence[SavedRun], names: Sequence[str], studied: str, cases: int) -> Mapping[str, Any]:
    first = parts[0].environment
    kept = {key: first.get(key) for key in ("commit", "dirty", "versions", "benchmark", "judge", "seed")}
    models = dict.fromkeys(model_title(part.environment.get("model") or {"name": "run"}) for part in parts)
    listed = " and ".join(dict.fromkeys(names))
    one = len(models) == 1 and not any(name.startswith(tuple(models)) for name in names)
    return {
        **kept,
        "benchmark": {**(first.get("benchmark") or {}), "n": cases},
        "model": {"name": f"{next(iter(models))} with {listed}" if one else listed},
        "arm_under_study": studied,
        "joined": {name: str(part.directory) for name, part in zip(names, parts, strict=True)},
        "finished": records.now(),
    }
