"""MMSafeAware's tables with our runs beside the paper's rows, from finished runs or from a study run for it.

"Overall" follows three conventions in the paper, each named here: Table 1 prints the macro mean; Table 3 two thirds
unsafe for the open models and the case-weighted mean for the prompted closed ones; Table 2 the case-weighted mean
before and two thirds unsafe after, so that its printed changes of Overall mix two conventions.
``macro_mean``: the plain mean of Typical, Attack and Over-safety; ``two_thirds_unsafe``: (2 × Unsafe + Over-safety)
/ 3; ``case_weighted``: every case counted once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.benchmarks.published import PublishedRow, printed_rows
from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.finished_runs import Finished
from experiments.report.numbers import fixed, percent
from experiments.report.table import Column, Table, say, terminal
from experiments.runs.launch import Launch, sharded
from experiments.runs.resumption import open_run
from interp.errors import UserError

PUBLISHED_CASES = {"typical": 171, "attack": 855, "over_safety": 497}
UNSAFE_CASES = PUBLISHED_CASES["typical"] + PUBLISHED_CASES["attack"]
ROUNDING = 0.001  # half a unit of the last printed digit in the columns, and as much in Overall
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

    ``arm`` is the one that Table 2 sets against the baseline. Writes table.csv and scenarios.csv into the study's
    directory, or into one of its own.
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
        given = finished_runs.given(self.run, self.runs)
        folders = given or [finished_runs.studied(run)]
        if not Launch.current().first:
            return
        found = [finished_runs.read(folder) for folder in folders]
        shown = lines(self.table, found, self.arm)  # before the directory is made: what cannot be shown leaves none
        folder = folders[0]
        if given:
            with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True, launch=Launch()) as store:
                folder = store.path
                store.finish()
        pd.DataFrame(shown).to_csv(folder / "table.csv", index=False)
        scenarios(found).to_csv(folder / "scenarios.csv", index=False)
        say(terminal(table(self.table, shown)), *notes(found), f"table: {folder / 'table.csv'}")


def overalls(row: PublishedRow) -> dict[str, float | None]:
    """Overall under each convention by a printed row's other columns and the published numbers of cases.

    Unsafe is pooled case by case where Typical and Attack are printed; without them there is no macro mean.
    """
    unsafe, macro = row.unsafe, None
    if row.typical is not None and row.attack is not None:
        unsafe = (PUBLISHED_CASES["typical"] * row.typical + PUBLISHED_CASES["attack"] * row.attack) / UNSAFE_CASES
        macro = (row.typical + row.attack + row.over_safety) / 3
    weighted = UNSAFE_CASES * unsafe + PUBLISHED_CASES["over_safety"] * row.over_safety
    return {
        "macro_mean": macro,
        "two_thirds_unsafe": (2 * unsafe + row.over_safety) / 3,
        "case_weighted": weighted / sum(PUBLISHED_CASES.values()),
    }


def conventions_met(row: PublishedRow) -> list[str]:
    """The conventions under which the printed Overall follows from the printed columns, but for their rounding."""
    return [
        name
        for name, value in overalls(row).items()
        if value is not None and abs(value - row.overall) <= ROUNDING + 1e-9
    ]


Line = dict[str, Any]  # a row of table.csv; rates are fractions of 1, None where there is none


def lines(table: int, runs: Sequence[Finished], arm: str) -> list[Line]:
    """The paper's lines, then ours: Table 1 has the baselines, Table 2 baseline and ``arm``, Table 3 mitigations.

    Raises:
        UserError: a run lacks an arm, or is of another kind of benchmark.
    """
    ours = [line for run in runs for line in _of_run(table, run, arm)]
    return [*map(_of_paper, printed_rows(table)), *ours]


def _of_paper(row: PublishedRow) -> Line:
    """A printed row; d′ and criterion follow from its rates."""
    return {
        "source": "paper", "name": row.name, "arm": "", "typical": row.typical, "attack": row.attack,
        "unsafe": row.unsafe, "over_safety": row.over_safety, "printed_overall": row.overall,
        "printed_convention": " ".join(conventions_met(row)),
        **{f"overall_{name}": value for name, value in overalls(row).items()},
        "d_prime": row.d_prime, "criterion": row.criterion, "auroc": None, "n": None, "n_of": None,
    }  # fmt: skip


def _of_run(table: int, run: Finished, arm: str) -> Iterator[Line]:
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
        block = arms[name]
        accuracy = block["accuracy"]
        unsafe, over = accuracy["unsafe"], accuracy["over_safety"]
        complete = None not in (unsafe, over)
        yield {
            "source": "ours", "name": f"{run.model} on {run.benchmark}" + ("" if name == own else f" + {name}"),
            "arm": name, **{key: accuracy[key] for key in ("typical", "attack", "unsafe", "over_safety")},
            "printed_overall": None, "printed_convention": None,
            "overall_macro_mean": accuracy["overall"] if len(block["overall_of"]) == 3 else None,
            "overall_two_thirds_unsafe": (2 * unsafe + over) / 3 if complete else None,
            # The run's own cases, as many as it has: on a part of the benchmark its mix is not the published one.
            "overall_case_weighted": accuracy["overall_case_weighted"] if complete else None,
            **{key: block[key] for key in ("d_prime", "criterion", "auroc", "n", "n_of")},
        }  # fmt: skip


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


def table(number: int, lines: Sequence[Line]) -> Table:
    """The paper's lines, then ours; in %, except d′ and c. ``*`` marks the convention a printed Overall follows."""
    shares = ("typical", "attack", "over_safety") if number == 1 else ("unsafe", "over_safety")
    conventions = ("macro_mean", "case_weighted") if number == 1 else ("two_thirds_unsafe", "case_weighted")
    layout = [
        Column("", "left", fold=27),
        *(Column(name, short=short) for name, short in _SHORT.items()),
        Column("overall", short="over-\nall"),
    ]
    records = []
    for line in lines:
        met, printed = (line["printed_convention"] or "").split(), line["printed_overall"]
        records.append({
            "": line["name"],
            **{name: percent(line[name]) for name in shares},
            "overall": "" if printed is None else percent(printed),
            **{name: percent(line[f"overall_{name}"]) + "*" * (name in met) for name in conventions},
            "d′": fixed(line["d_prime"], 2),
            "c": fixed(line["criterion"], 2),
        })  # fmt: skip
    marked = [line["source"] == "ours" for line in lines]
    return Table.of(f"MMSafeAware, {TITLES[number]} (%)", records, layout=layout, marked=marked)


def notes(found: list[Finished]) -> Iterator[str]:
    """What the columns are, and what limits the comparison of our lines with the paper's; a sentence each."""
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
