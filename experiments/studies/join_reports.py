"""``task=report``: a run's report built again, or several runs of one benchmark joined into one comparison.

Loads no model. Joined runs become a run of their own, whose arms are named after the runs they come from.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import finished_runs, scoring
from experiments.evaluation.admission import check_contrasts
from experiments.report import next_commands, terminal
from experiments.report.build import build
from experiments.report.cases import FILE, attention_of_cases
from experiments.report.words import with_sentences
from experiments.runs import analyses, records
from experiments.runs.provenance import arm_title, model_title
from experiments.runs.saved_run import SavedRun, read_run
from experiments.types import Kind
from interp.errors import UserError

BASELINE = "baseline"
CASE_FIELDS = ("subset", "scenario", "gold", "cluster", "pair", "text")  # what one case is, whatever answered it


@dataclass(frozen=True)
class BuildReport:
    """The task: builds the report of ``run`` again, or joins ``runs``; the first baseline is the reference."""

    run: str | None = None
    runs: list[str] | None = None

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
        console.print(f"report: {page}", highlight=False, soft_wrap=True)

    def _joined(self, run: Run, parts: Sequence[SavedRun], console: Console) -> Path:
        kind = _kind(parts)
        names = _names(parts)
        lines = joined(parts, names)
        reference = f"{names[0]}: {BASELINE}"
        if reference not in {line["arm"] for line in lines}:
            reference = str(lines[0]["arm"])
        studied = next((str(line["arm"]) for line in lines if line["arm"] != reference), reference)
        check_contrasts(run, list(dict.fromkeys(str(line["arm"]) for line in lines)), kind)
        result = scoring.evaluate(
            run,
            lines,
            study=studied,
            kind=kind,
            baseline=reference,
            control=f"{names[0]}: calibrated_shift",
            first=scoring.family(studied, []),  # the results of what is joined were seen
        )
        environment = _environment(parts, names, studied)
        looked = joined_attention(parts, names, {line["arm"] for line in lines})
        folders = [part.directory for part in parts]
        page = finished_runs.derived(
            run,
            "joined",
            [str(folder.resolve()) for folder in folders],
            lines,
            {"metrics.json": result, "environment.json": environment} | ({FILE: looked} if looked else {}),
            pictures=folders,
        )
        shown = with_sentences(result, environment)
        console.print(terminal.shown(shown, verbose=run.verbose, width=console.width))
        return page


def joined(parts: Sequence[SavedRun], names: Sequence[str]) -> list[dict[str, Any]]:
    """The records of all runs, each arm named ``<run>: <arm>``; an arm that a second run merely repeats is left out.

    Raises:
        UserError: a case of one run is another case in a second.
    """
    lines: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    seen: dict[tuple[str, str], str] = {}
    for part, name in zip(parts, names, strict=True):
        model = part.environment.get("model")
        for record in part.predictions:
            case, arm = str(record["case"]), str(record["arm"])
            is_same = known.setdefault(case, {key: record.get(key) for key in CASE_FIELDS})
            differing = [key for key in CASE_FIELDS if record.get(key) != is_same[key]]
            if differing:
                raise UserError(
                    f"case {case} of {part.directory} has another {differing[0]} than in an earlier run; "
                    "runs are joined that asked the same cases; give runs of one benchmark"
                )
            repeated = seen.setdefault((arm, str(record["settings"])), name)
            if repeated == name:
                lines.append(record | {"arm": f"{name}: {arm_title(model, arm)}"})
    return lines


def joined_attention(parts: Sequence[SavedRun], names: Sequence[str], arms: Set[str]) -> dict[str, Any] | None:
    """Attention of single cases under the joined run's ``arms``; None where no run logged any."""
    cases: dict[str, dict[str, Any]] = {}
    notes: dict[str, None] = {}
    for part, name in zip(parts, names, strict=True):
        found = attention_of_cases(part.directory) or {"note": "", "cases": {}}
        for case, of_arm in found["cases"].items():
            named = {f"{name}: {arm_title(part.environment.get('model'), arm)}": one for arm, one in of_arm.items()}
            kept = {arm: block for arm, block in named.items() if arm in arms}
            if kept:
                cases.setdefault(case, {}).update(kept)
                notes[f"{name}: {found['note']}"] = None
    return {"note": " ".join(notes), "cases": cases} if cases else None


def _kind(parts: Sequence[SavedRun]) -> Kind:
    sets = {str((part.environment.get("benchmark") or {}).get("manifest")) for part in parts}
    if len(sets) > 1:
        raise UserError(
            f"these runs are of {len(sets)} different sets of cases (by manifest); join runs of one benchmark"
        )
    kinds = {"refusal" if part.metrics.get("kind") == "refusal" else "yes_no" for part in parts}
    if len(kinds) > 1:
        raise UserError("these runs ask for different answers (Yes/No, and open ones); join runs of one benchmark")
    return "refusal" if kinds == {"refusal"} else "yes_no"


def _names(parts: Sequence[SavedRun]) -> list[str]:
    """The model's name and the beginning of its weights' hash, and the run's place where two runs are of one model."""
    models = [model_title(part.environment.get("model") or {"name": "run"}) for part in parts]
    counts = Counter(models)
    return [model if counts[model] == 1 else f"{model} {at}" for at, model in enumerate(models, start=1)]


def _environment(parts: Sequence[SavedRun], names: Sequence[str], studied: str) -> Mapping[str, Any]:
    first = parts[0].environment
    kept = {key: first.get(key) for key in ("commit", "dirty", "versions", "benchmark", "judge", "seed")}
    return {
        **kept,
        "model": {"name": " and ".join(dict.fromkeys(names))},
        "arm_under_study": studied,
        "joined": {name: str(part.directory) for name, part in zip(names, parts, strict=True)},
        "finished": records.now(),
    }
