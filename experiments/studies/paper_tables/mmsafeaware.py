"""MMSafeAware's tables with our runs next to the paper's rows, from finished runs or from a study run for it.

"Overall" follows three conventions in the paper, each named here. Table 1 prints the macro mean. Table 3 prints two
thirds unsafe for the open models, and the case-weighted mean for the prompted closed ones. Table 2 prints the
case-weighted mean before and two thirds unsafe after. So its printed changes of Overall mix two conventions.
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
from experiments.report import text
from experiments.report.numbers import fixed, percent
from experiments.report.tables import in_terminal, say, table
from experiments.runs.launch import Launch, sharded
from experiments.runs.store import open_run
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
RATES = {  # column → key in results.csv
    "typical": {"quantity": "unsafe_caught", "subset": "typical"},
    "attack": {"quantity": "unsafe_caught", "subset": "attack"},
    "unsafe": {"quantity": "unsafe_caught"},
    "over_safety": {"quantity": "harmless_answered"},
    "d_prime": {"quantity": "d_prime"},
    "criterion": {"quantity": "criterion"},
    "auroc": {"quantity": "auroc"},
}
HEADINGS = {"typical": "typ-|ical", "attack": "att-|ack", "unsafe": "un-|safe", "over_safety": "over-|safety",
            "macro_mean": "macro|mean", "two_thirds_unsafe": "(2U+O)|/ 3",
            "case_weighted": "case-|weighted"}  # fmt: skip


@sharded
@dataclass(frozen=True)
class PaperTable:
    """The task. ``table`` is 1, 2 or 3. Without finished runs (``runs``, or one ``run``) the study runs first.

    ``arm`` is the arm that Table 2 compares with the baseline. Writes table.csv into the study's directory, or
    into a new one.
    """

    table: int = 1
    arm: str = "safety_prompt"
    run: str | None = None
    runs: list[str] | None = None

    def __post_init__(self) -> None:
        if self.table not in TITLES:
            raise UserError(f"task.table={self.table}: must be 1, 2 or 3")

    def __call__(self, run: Run) -> None:
        """Print the table with all conventions of Overall by name."""
        given = finished_runs.given(self.run, self.runs)
        folders = given or [finished_runs.studied(run)]
        if not Launch.current().first:
            return
        finished = [finished_runs.read(folder) for folder in folders]
        frame = pd.DataFrame(lines(self.table, finished, self.arm))  # first: what cannot be shown makes no directory
        folder = folders[0]
        if given:
            with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True, launch=Launch()) as store:
                folder = store.path
                store.finish()
        frame.to_csv(folder / "table.csv", index=False)
        notes = text.lines("mmsafeaware", runs=finished)
        say(in_terminal(beside(self.table, frame)), *notes, f"table: {folder / 'table.csv'}")


def overalls(row: PublishedRow) -> dict[str, float | None]:
    """Return Overall under each convention, from a printed row's other columns and the published numbers of cases.

    Unsafe is pooled case by case if Typical and Attack are printed; without them there is no macro mean.
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
    """Return the conventions under which Overall follows from the other printed columns, but for rounding."""
    return [
        name
        for name, value in overalls(row).items()
        if value is not None and abs(value - row.overall) <= ROUNDING + 1e-9
    ]


Line = dict[str, Any]  # a row of table.csv; rates are fractions of 1, None if there is none


def lines(number: int, runs: Sequence[Finished], arm: str) -> list[Line]:
    """Return the paper's lines, then ours: Table 1 has baselines, Table 2 baseline and ``arm``, Table 3 mitigations.

    Raises:
        UserError: a run lacks an arm, or is of another kind of benchmark.
    """
    ours = [line for run in runs for line in _of_run(number, run, arm)]
    return [*map(_of_paper, printed_rows(number)), *ours]


def _of_paper(row: PublishedRow) -> Line:
    """Return a printed row; d′ and criterion follow from its rates."""
    return {
        "source": "paper", "name": row.name, "arm": "", **{name: getattr(row, name, None) for name in RATES},
        "printed_overall": row.overall, "printed_convention": " ".join(conventions_met(row)),
        **{f"overall_{name}": value for name, value in overalls(row).items()}, "n": None, "n_of": None,
    }  # fmt: skip


def _of_run(number: int, run: Finished, arm: str) -> Iterator[Line]:
    results, title = run.results, f"{run.model} on {run.benchmark}"
    if run.design["kind"] == "refusal":
        raise UserError(f"{title}: is a refusal benchmark; these tables are of accuracies; give runs on mmsafeaware or "
                        "iconworld")  # fmt: skip
    base = finished_runs.arm_of(results, run.design, "baseline")
    mitigations = [name for name in results.arms if name not in ("baseline", CONTROL)]
    for name in {1: [base], 2: ["baseline", arm], 3: mitigations}[number]:
        if name not in results.arms:
            raise UserError(f"{title}: has no arm {name!r}, which table {number} needs; known: "
                            f"{', '.join(results.arms)}; run the study with it")  # fmt: skip
        rows = {column: results.get(name, **key) for column, key in RATES.items()}
        values = {column: row and row.value for column, row in rows.items()}
        unsafe, harmless, answered = values["unsafe"], values["over_safety"], results.get(name, "answered")
        complete, every = (None not in [values[name] for name in names] for names in (
            ("unsafe", "over_safety"), ("typical", "attack", "over_safety")))  # fmt: skip
        accuracy, pooled = results.get(name, "accuracy"), results.get(name, "accuracy_pooled")
        yield {
            "source": "ours", "name": title + ("" if name == base else f" + {name}"), "arm": name, **values,
            "printed_overall": None, "printed_convention": None,
            "overall_macro_mean": accuracy and accuracy.value if every else None,
            "overall_two_thirds_unsafe": (2 * unsafe + harmless) / 3 if complete else None,  # type: ignore[operator]
            # The run's own cases, as many as it has: on a part of the benchmark its mix is not the published one.
            "overall_case_weighted": pooled and pooled.value if complete else None,
            "n": answered and answered.n, "n_of": answered and answered.n_of,
        }  # fmt: skip


def beside(number: int, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's lines, then ours, in %, except d′ and c. ``*`` marks the convention of a printed Overall."""
    shares = ("typical", "attack", "over_safety") if number == 1 else ("unsafe", "over_safety")
    conventions = ("macro_mean", "case_weighted") if number == 1 else ("two_thirds_unsafe", "case_weighted")
    records = []
    for line in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        met, printed = (line["printed_convention"] or "").split(), line["printed_overall"]
        records.append({
            "": line["name"],
            **{HEADINGS[name]: percent(line[name]) for name in shares},
            "over-|all": "" if printed is None else percent(printed),
            **{HEADINGS[name]: percent(line[f"overall_{name}"]) + "*" * (name in met) for name in conventions},
            "d′": fixed(line["d_prime"], 2),
            "c": fixed(line["criterion"], 2),
        })  # fmt: skip
    ours = list(frame["source"] == "ours")
    return table(records, title=f"MMSafeAware, {TITLES[number]} (%)", marked=ours)
