"""The tables of a run's arms: which quantities each shows, as pivots of the results table."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.metrics.judge_error import CORRECTED
from experiments.metrics.outcomes import PARTIAL_ANSWERED, PUBLISHED
from experiments.metrics.results import ALL
from experiments.report.tables import Pick, by_arm, p_value, percent, pivot
from experiments.runs.results_table import Results, Row
from experiments.types import Status, Verdict

Columns = dict[str, dict[str, str]]
AT_POINT = "harmless_answered_at_operating_point"
RATES: dict[str, Columns] = {  # kind → the two rates that a study is about
    "yes_no": {
        "harmless requests answered": {"quantity": "harmless_answered"},
        "unsafe requests caught": {"quantity": "unsafe_caught"},
    },
    "refusal": {
        "harmless requests refused": {"quantity": "refusal_rate", "subset": "benign"},
        "harmful requests refused": {"quantity": "refusal_rate", "subset": "contrast"},
    },
}
LEVELS: dict[str, Columns] = {
    "yes_no": {
        "at the operating point": {"quantity": AT_POINT},
        **{name.replace(" requests", ""): key for name, key in RATES["yes_no"].items()},
        "typical": {"quantity": "unsafe_caught", "subset": "typical"},
        "attack": {"quantity": "unsafe_caught", "subset": "attack"},
        "accuracy": {"quantity": "accuracy"},
        "d′": {"quantity": "d_prime"},
        "criterion": {"quantity": "criterion"},
        "AUROC": {"quantity": "auroc"},
        "AUROC within sentences": {"quantity": "auroc_within"},
        "flip rate": {"quantity": "flip_rate"},
        "held out: unsafe caught": {"quantity": "unsafe_caught_held_out"},
        "held out: harmless answered": {"quantity": "harmless_answered_held_out"},
    },
    "refusal": {
        **{name.replace(" requests", ""): key for name, key in RATES["refusal"].items()},
        "gap": {"quantity": "refusal_gap"},
        "mean of types": {"quantity": "refusal_rate_type_mean"},
        "d′": {"quantity": "d_prime"},
        "criterion": {"quantity": "criterion"},
        "pairs told apart": {"quantity": "flip_rate"},
        "both answered": {"quantity": "pairs_both_answered"},
        "both refused": {"quantity": "pairs_both_refused"},
        "wrong way round": {"quantity": "pairs_wrong_way_round"},
        "answered at equal strictness": {"quantity": AT_POINT},
        "AUROC": {"quantity": "auroc"},
        "AUROC within sentences": {"quantity": "auroc_within"},
        "held out: harmful refused": {"quantity": "unsafe_caught_held_out"},
        "held out: harmless answered": {"quantity": "harmless_answered_held_out"},
        "rebutted: harmless": {"quantity": "rebuttal_rate", "subset": "benign"},
        "rebutted: harmful": {"quantity": "rebuttal_rate", "subset": "contrast"},
    },
}
SHORT = {  # columns of the short table after the headline quantity; in a terminal, headings break at their last space
    "yes_no": ("harmless answered", "unsafe caught", "AUROC"),
    "refusal": ("harmful refused", "AUROC", "rebutted: harmless", "rebutted: harmful"),
}


def arms_of(results: Results, design: Mapping[str, Any]) -> list[str]:
    """Return the arms that have answers, in the order of the run."""
    return [row.arm for row in results.select(quantity="answered", against="")]


def glance(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return what the question needs of each arm: the headline quantity with its difference, and the verdicts."""
    kind, base = design["kind"], design["baseline"]
    name, key = f"answered at|{percent(design.get('operating_point'), 0)}% caught", {"quantity": AT_POINT}
    if kind == "refusal":
        name, key = "harmless|refused", LEVELS[kind]["harmless refused"]
    columns = {name: key, "difference": {**key, "against": base}} if base else {name: key} if kind == "refusal" else {}
    columns |= {"|".join(heading.rsplit(" ", 1)): LEVELS[kind][heading] for heading in SHORT[kind]}
    return by_arm(results, columns, arms_of(results, design), title="The arms at a glance", marked=design["study"])


def levels(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return every level of each arm with its 95% interval."""
    names = arms_of(results, design)
    frame = by_arm(results, LEVELS[design["kind"]], names, title="All levels", marked=design["study"])
    counts = [results.get(arm, "answered") for arm in names]
    frame.insert(1, "n of N", [f"{row.n:,.0f} of {row.n_of:,.0f}" if row else "" for row in counts])
    return frame


def differences(results: Results, design: Mapping[str, Any], other: str | None = None) -> pd.DataFrame | None:
    """Return the paired differences of each arm from ``other`` (by default the baseline), or None without any."""
    other = other or design["baseline"]
    names = [row.arm for row in results.select(quantity="compared", against=other)] if other else []
    if not names:
        return None
    columns = {"cases": {"quantity": "compared"}, **LEVELS[design["kind"]]}
    columns |= {way: {"quantity": f"cases_{way}"} for way in ("fixed", "broken")}
    columns = {heading: {**key, "against": str(other)} for heading, key in columns.items()}
    frame = by_arm(results, columns, names, title=f"Paired differences from {other}", marked=design["study"])
    if results.select(quantity="wins", against=other):
        frame["p (Holm)"] = [p_value(row.p if isinstance(row, Row) else None) for row in frame["fixed"]]
        wins = {row.arm: row.value for row in results.select(quantity="wins", against=other)}
        frame["wins"] = ["not judged" if (win := wins.get(arm)) is None else "yes" if win else "no" for arm in names]
    first, later = ((design.get(key) or {}).get("contrasts", ()) for key in ("family", "exploratory"))
    frame["arm"] = [
        f"{arm} (exploratory)"
        if [arm, other] not in first and ([arm, other] in later or [ALL, other] in later) else arm for arm in names
    ]  # fmt: skip
    return frame


def contrasts(results: Results, design: Mapping[str, Any]) -> list[pd.DataFrame]:
    """Return a table of differences for each other arm that arms were compared with by name."""
    others = {other for _, other in design["contrasts"]} - {design["baseline"]}
    frames = (differences(results, design, other) for other in sorted(others))
    return [frame for frame in frames if frame is not None]


def conventions(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return the same answers counted in other ways: the published rules, and corrected for the judge's error."""
    levels, rules, names = LEVELS[design["kind"]], {"published": PUBLISHED}, ["harmless refused", "harmful refused"]
    columns: Columns = {}
    if design["kind"] == "yes_no":
        names = ["typical", "attack", "harmless answered", "accuracy"]
        columns = {"accuracy, pooled": {"quantity": "accuracy_pooled"},
                   "controls": {"quantity": "accuracy", "subset": "control"}}  # fmt: skip
    else:
        rules = {"partial as answered": PARTIAL_ANSWERED, **rules, "corrected": CORRECTED}
    columns |= {f"{rule}: {name}": {**levels[name], "rule": key} for rule, key in rules.items() for name in names}
    return by_arm(results, columns, arms_of(results, design), title="The same answers by other conventions",
                  marked=design["study"])  # fmt: skip


def groups(results: Results, column: str) -> pd.DataFrame:
    """Return the rates of each arm by the values of ``column``: scenario, type or "tag:NAME"."""
    names = {"typical": "typical caught", "attack": "attack caught", "over_safety": "harmless answered",
             "benign": "harmless refused", "contrast": "harmful refused", "": "gap"}  # fmt: skip
    rows = [row for row in results if row.group.startswith(f"{column}=") and not row.against and not row.rule
            and row.quantity in (*GROUPED, "refusal_gap")]  # fmt: skip
    name = column.removeprefix("tag:")
    index: dict[str, Pick] = {"arm": "arm", name: lambda row: row.group.partition("=")[2]}
    frame = pivot(rows, index, lambda row: names[row.subset], title=f"By {name}")
    rates = frame.drop(columns="gap", errors="ignore").itertuples(index=False, name=None)
    frame["n"] = [" + ".join(f"{cell.n:,.0f}" for cell in line if isinstance(cell, Row) and cell.n) for line in rates]
    return frame


GROUPED = ("unsafe_caught", "harmless_answered", "refusal_rate")  # given by scenario and tag


def outcomes(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return what became of the cases: how many requests had which status, and how many answers which verdict."""
    values = [("status", status.value) for status in Status] + [("verdict", verdict.value) for verdict in Verdict]
    columns = {f"{kind}: {value.replace('_', ' ')}": {"quantity": kind, "group": f"{kind}={value}"}
               for kind, value in values}  # fmt: skip
    return by_arm(results, columns, arms_of(results, design), title="What became of the cases", absent="0")


def all_tables(results: Results, design: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return every table of a run's arms by name, for a report, a paper or ``verbose=true``."""
    tables = {"glance": glance(results, design), "levels": levels(results, design)}
    tables |= {"differences": differences(results, design)}
    tables |= {f"differences_from_{at}": frame for at, frame in enumerate(contrasts(results, design), start=1)}
    tables |= {"conventions": conventions(results, design), "outcomes": outcomes(results, design)}
    grouped = [row.group.partition("=")[0] for row in results if row.group and not row.against
               and row.quantity in GROUPED]  # fmt: skip
    tables |= {f"by_{column.removeprefix('tag:')}": groups(results, column) for column in dict.fromkeys(grouped)}
    return {name: frame for name, frame in tables.items() if frame is not None and len(frame)}
