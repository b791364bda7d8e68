"""A run's metrics.json and the paper's rows → one table. Pure: knows no files and no terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from experiments.report.published import PublishedRow
from experiments.tables.conventions import fits, of_row, published
from interp.errors import UserError

CONTROL = "calibrated_shift"


class Finished(NamedTuple):
    """What a table needs of one finished run."""

    model: str
    benchmark: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
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


def lines(table: int, runs: Sequence[Finished], arm: str) -> list[Line]:
    """The paper's lines of a table, then ours: of Table 1 the baselines, of Table 2 baseline and ``arm``, of Table 3
    every mitigation."""
    return [paper_line(row) for row in published(table)] + [line for run in runs for line in ours(table, run, arm)]


def paper_line(row: PublishedRow) -> Line:
    """A printed row; d′ and criterion follow from its rates."""
    return Line("paper", row.name, "", row.typical, row.attack, row.unsafe, row.over_safety, of_row(row), row.d_prime,
                row.criterion, printed=row.overall, convention=" ".join(fits(row)))  # fmt: skip


def ours(table: int, run: Finished, arm: str) -> Iterator[Line]:
    """The lines of one run. UserError where it lacks an arm, or is of another kind of benchmark."""
    arms = run.metrics["arms"]
    if run.metrics.get("kind") == "refusal":
        raise UserError(f"{run.model} on {run.benchmark}: is a refusal benchmark; these tables are of accuracies; "
                        "give runs on mmsafeaware or iconworld")  # fmt: skip
    wanted = {1: ["baseline"], 2: ["baseline", arm], 3: [name for name in arms if name not in ("baseline", CONTROL)]}
    for name in wanted[table]:
        if name not in arms:
            raise UserError(f"{run.model} on {run.benchmark}: has no arm {name!r}, which table {table} needs; known: "
                            f"{', '.join(arms)}; run the study with it")  # fmt: skip
        yield _line(run, name, arms[name])


def _line(run: Finished, name: str, arm: Mapping[str, Any]) -> Line:
    accuracy = arm["accuracy"]
    unsafe, over = accuracy["unsafe"], accuracy["over_safety"]
    complete = None not in (unsafe, over)
    return Line(
        "ours",
        f"{run.model} on {run.benchmark}" + ("" if name == "baseline" else f" + {name}"),
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


def frame(shown: Sequence[Line]) -> pd.DataFrame:
    """The lines with a column a convention, rates as fractions of 1."""
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
    """Accuracy by scenario: those of typical and over-safety cases, and attacks by their kind; a line an arm.

    On MMSafeAware these are the paper's 29 (14 typical, 3 attacks, 12 over-safety) and its cases 1048 to 1052, whose
    scenario nobody could tell ("unresolved").
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
