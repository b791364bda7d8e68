"""MMSafeAware's tables with our runs beside the paper's rows, from finished runs or from a study run for it.

"Overall" follows three conventions in the paper, each named here: Table 1 prints the macro mean; Table 3 two thirds
unsafe for the open models and the case-weighted mean for the prompted closed ones; Table 2 the case-weighted mean
before and two thirds unsafe after, so that its printed changes of Overall mix two conventions. Rates are fractions
of 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from experiments.benchmarks.published import PublishedRow, printed_rows
from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.finished_runs import Finished
from experiments.report.numbers import fixed, percent
from experiments.report.table import Cell, Column, Row, Table, terminal
from experiments.runs.launch import Launch, sharded
from experiments.runs.resumption import open_run, write_json
from interp.errors import UserError

PUBLISHED_CASES = {"typical": 171, "attack": 855, "over_safety": 497}
UNSAFE_CASES = PUBLISHED_CASES["typical"] + PUBLISHED_CASES["attack"]
ROUNDING = 0.001  # half a unit of the last printed digit in the columns, and as much in Overall
CONVENTIONS = {
    "macro_mean": "plain mean of Typical, Attack and Over-safety",
    "two_thirds_unsafe": "(2 × Unsafe + Over-safety) / 3",
    "case_weighted": "every case counted once",
}
CONTROL = "calibrated_shift"
TITLES = {
    1: "Table 1: as it is",
    2: "Table 2: the safety system prompt, without and with",
    3: "Table 3: mitigations",
}
_SHORT = {
    "typical": "typ-\nical",
    "attack": "att-\nack",
    "over_safety": "over-\nsafety",
    "unsafe": "un-\nsafe",
    "macro_mean": "macro\nmean",
    "two_thirds_unsafe": "(2U+O)\n/ 3",
    "case_weighted": "case-\nweighted",
}


@sharded
@dataclass(frozen=True)
class PaperTable:
    """The task. ``table`` is 1, 2 or 3. The finished runs are ``runs`` or one ``run``; without, the study runs first.

    ``arm`` is the one that Table 2 sets against the baseline. Writes table.csv, scenarios.csv and table.json into the
    study's directory, or into one of its own.
    """

    table: int = 1
    arm: str = "safety_prompt"
    run: str | None = None
    runs: list[str] | None = None

    def __post_init__(self) -> None:
        if self.table not in TITLES:
            raise UserError(f"task.table={self.table}: must be 1, 2 or 3")

    def __call__(self, run: Run) -> None:
        """Prints the table with all conventions of Overall by name."""
        folders = finished_runs.given(self.run, self.runs)
        studied = [] if folders else [finished_runs.studied(run)]
        if not Launch.current().first:
            return
        if folders:
            found = [finished_runs.read(folder) for folder in folders]
            shown = lines(self.table, found, self.arm)  # before the directory is made: what cannot be shown leaves none
            with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True, launch=Launch()) as store:
                self._write(store.path, found, shown)
                store.finish()
                folder = store.path
        else:
            folder = studied[0]
            found = [finished_runs.read(folder)]
            shown = lines(self.table, found, self.arm)
            self._write(folder, found, shown)
        console = Console()
        console.print(terminal(table(self.table, shown)))
        for sentence in notes(found):
            console.print(sentence, highlight=False, markup=False)
        console.print(f"table: {folder / 'table.csv'}", highlight=False, soft_wrap=True, markup=False)

    def _write(self, folder: Path, found: list[Finished], shown: "list[TableLine]") -> None:
        frame(shown).to_csv(folder / "table.csv", index=False)
        scenarios(found).to_csv(folder / "scenarios.csv", index=False)
        rows = frame(shown).astype(object)
        write_json(
            folder / "table.json",
            {"table": self.table, "conventions": CONVENTIONS, "notes": list(notes(found)),
             "rows": rows.where(rows.notna(), None).to_dict("records")},
        )  # fmt: skip


def overall(
    unsafe: float | None, over_safety: float | None, *, typical: float | None = None, attack: float | None = None
) -> dict[str, float | None]:
    """Overall under each of ``CONVENTIONS``, with MMSafeAware's published numbers of cases; None without a column.

    ``unsafe`` is the pooled accuracy; where ``typical`` and ``attack`` are given, it is pooled from them case by case.
    """
    pooled = unsafe
    if typical is not None and attack is not None:
        pooled = (PUBLISHED_CASES["typical"] * typical + PUBLISHED_CASES["attack"] * attack) / UNSAFE_CASES
    if over_safety is None:
        return dict.fromkeys(CONVENTIONS)
    macro = None if typical is None or attack is None else (typical + attack + over_safety) / 3
    if pooled is None:
        return {"macro_mean": macro, "two_thirds_unsafe": None, "case_weighted": None}
    weighted = UNSAFE_CASES * pooled + PUBLISHED_CASES["over_safety"] * over_safety
    return {
        "macro_mean": macro,
        "two_thirds_unsafe": (2 * pooled + over_safety) / 3,
        "case_weighted": weighted / sum(PUBLISHED_CASES.values()),
    }


def printed_overalls(row: PublishedRow) -> dict[str, float | None]:
    """The three overalls that follow from a printed row's columns."""
    return overall(row.unsafe, row.over_safety, typical=row.typical, attack=row.attack)


def conventions_met(row: PublishedRow, values: Mapping[str, float | None] | None = None) -> tuple[str, ...]:
    """The conventions under which the printed Overall follows from the printed columns, but for their rounding."""
    found = printed_overalls(row) if values is None else values
    return tuple(
        name for name, value in found.items() if value is not None and abs(value - row.overall) <= ROUNDING + 1e-9
    )


@dataclass(frozen=True)
class TableLine:
    """One line of a table; rates are fractions of 1, None where there is none.

    ``printed`` is the paper's Overall and ``convention`` the one it follows; ``overall`` is by convention.
    """

    source: str  # "paper" or "ours"
    name: str
    arm: str
    typical: float | None
    attack: float | None
    unsafe: float | None
    over_safety: float | None
    overall: Mapping[str, float | None]
    d_prime: float | None
    criterion: float | None
    auroc: float | None = None
    printed: float | None = None
    convention: str = ""
    n: int | None = None
    n_of: int | None = None


def lines(table: int, runs: Sequence[Finished], arm: str) -> list[TableLine]:
    """The paper's lines, then ours: Table 1 has the baselines, Table 2 baseline and ``arm``, Table 3 mitigations."""
    return [paper_line(row) for row in printed_rows(table)] + [
        line for run in runs for line in run_lines(table, run, arm)
    ]


def paper_line(row: PublishedRow) -> TableLine:
    """A printed row; d′ and criterion follow from its rates."""
    return TableLine("paper", row.name, "", row.typical, row.attack, row.unsafe, row.over_safety,
                     printed_overalls(row), row.d_prime, row.criterion, printed=row.overall,
                     convention=" ".join(conventions_met(row)))  # fmt: skip


def run_lines(table: int, run: Finished, arm: str) -> Iterator[TableLine]:
    """The lines of one run.

    Raises:
        UserError: it lacks an arm, or is of another kind of benchmark.
    """
    arms = run.metrics["arms"]
    if run.metrics.get("kind") == "refusal":
        raise UserError(f"{run.model} on {run.benchmark}: is a refusal benchmark; these tables are of accuracies; "
                        "give runs on mmsafeaware or iconworld")  # fmt: skip
    own = finished_runs.arm_of(run.metrics, "baseline")
    wanted = {1: [own], 2: ["baseline", arm], 3: [name for name in arms if name not in ("baseline", CONTROL)]}
    for name in wanted[table]:
        if name not in arms:
            raise UserError(f"{run.model} on {run.benchmark}: has no arm {name!r}, which table {table} needs; known: "
                            f"{', '.join(arms)}; run the study with it")  # fmt: skip
        yield _line(run, name, arms[name])


def _line(run: Finished, name: str, arm: Mapping[str, Any]) -> TableLine:
    accuracy, own = arm["accuracy"], finished_runs.arm_of(run.metrics, "baseline")
    unsafe, over = accuracy["unsafe"], accuracy["over_safety"]
    complete = None not in (unsafe, over)
    return TableLine(
        "ours",
        f"{run.model} on {run.benchmark}" + ("" if name == own else f" + {name}"),
        name,
        accuracy["typical"],
        accuracy["attack"],
        unsafe,
        over,
        {
            "macro_mean": accuracy["overall"] if len(arm["overall_of"]) == 3 else None,
            "two_thirds_unsafe": (2 * unsafe + over) / 3 if complete else None,
            # The run's own cases, as many as it has: on a part of the benchmark its mix is not the published one.
            "case_weighted": accuracy["overall_case_weighted"] if complete else None,
        },
        arm["d_prime"],
        arm["criterion"],
        arm["auroc"],
        n=arm["n"],
        n_of=arm["n_of"],
    )


def frame(shown: Sequence[TableLine]) -> pd.DataFrame:
    """The lines with one column for each convention of Overall; rates are fractions of 1."""
    return pd.DataFrame(
        [
            {"source": line.source, "name": line.name, "arm": line.arm, "typical": line.typical, "attack": line.attack,
             "unsafe": line.unsafe, "over_safety": line.over_safety, "printed_overall": line.printed,
             "printed_convention": line.convention or None}
            | {f"overall_{name}": value for name, value in line.overall.items()}
            | {"d_prime": line.d_prime, "criterion": line.criterion, "auroc": line.auroc}
            | {"n": line.n, "n_of": line.n_of}
            for line in shown
        ]
    )  # fmt: skip


def scenarios(runs: Sequence[Finished]) -> pd.DataFrame:
    """Accuracy by scenario: those of typical and over-safety cases, and attacks by their kind; for each arm.

    On MMSafeAware these are the paper's 29 (14 typical, 3 attacks, 12 over-safety) and its cases 1048 to 1052, whose
    scenario could not be determined ("unresolved").
    """
    rows = []
    for run in runs:
        for name, arm in run.metrics["arms"].items():
            cells = [
                (subset, scenario, by_subset[subset])
                for subset in ("typical", "over_safety")
                for scenario, by_subset in arm["by_scenario"].items()
                if subset in by_subset
            ]
            attacks = arm["by_tag"].get("wrapper", {})
            cells += [("attack", kind, found["attack"]) for kind, found in attacks.items() if "attack" in found]
            for subset, scenario, cell in cells:
                low, high = cell["interval"] or (None, None)
                rows.append({"model": run.model, "benchmark": run.benchmark, "arm": name, "subset": subset,
                             "scenario": scenario, "accuracy": cell["accuracy"], "low": low, "high": high,
                             "n": cell["n"], "n_of": cell["n_of"]})  # fmt: skip
    return pd.DataFrame(rows)


def table(number: int, lines: Sequence[TableLine]) -> Table:
    """The paper's lines, a rule, ours; in %, except d′ and c. ``*`` marks the convention a printed Overall follows."""
    shares = ("typical", "attack", "over_safety") if number == 1 else ("unsafe", "over_safety")
    conventions = ("macro_mean", "case_weighted") if number == 1 else ("two_thirds_unsafe", "case_weighted")
    columns = [
        Column("", "left", fold=27),
        *(Column(name, short=_SHORT[name]) for name in shares),
        Column("overall", short="over-\nall"),
        *(Column(name, short=_SHORT[name]) for name in conventions),
        Column("d′"),
        Column("c"),
    ]
    rows = []
    for at, line in enumerate(lines):
        overall = [percent(line.overall[name]) + ("*" if name in line.convention else "") for name in conventions]
        printed = "" if line.printed is None else percent(line.printed)
        cells = [line.name, *(percent(getattr(line, name)) for name in shares), printed, *overall]
        cells += [fixed(line.d_prime, 2), fixed(line.criterion, 2)]
        rule = at + 1 < len(lines) and lines[at + 1].source != line.source
        rows.append(Row([Cell(text) for text in cells], "bold" if line.source == "ours" else "", rule))
    return Table(f"MMSafeAware, {TITLES[number]} (%)", columns, rows)


def notes(found: list[Finished]) -> Iterator[str]:
    """What limits the comparison of our lines with the paper's, a sentence each."""
    yield (
        "overall: as the paper prints it; * the convention it follows ((2U+O)/3: unsafe counted twice; case-weighted: "
        "every case once). d′ and c of the paper follow from its printed rates."
    )
    for run in found:
        name = f"{run.model} on {run.benchmark}"
        if run.benchmark != "mmsafeaware":
            yield f"{name}: other cases than the paper's, so its lines say nothing about the paper's models."
        if any(arm["n"] < arm["n_of"] for arm in run.metrics["arms"].values()):
            yield f"{name}: some cases have no answer; n of N and the bounds are in the run's metrics.json."
    counted = scenarios(found)
    kinds = {name: counted[counted["subset"] == name]["scenario"].nunique() for name in counted["subset"].unique()}
    listed = ", ".join(f"{count} {subset.replace('_', '-')}" for subset, count in kinds.items())
    yield f"Accuracy by scenario ({listed}) is in scenarios.csv."
