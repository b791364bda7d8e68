"""The tables of a run's arms: which quantities each shows, as pivots of the results table."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.metrics.judge_error import CORRECTED
from experiments.metrics.outcomes import PARTIAL_ANSWERED, PUBLISHED
from experiments.metrics.results import ALL
from experiments.report.numbers import p_value
from experiments.report.tables import by_arm, pivot, shown, table
from experiments.runs.results_table import Results, Row
from experiments.types import Status, Verdict

Columns = dict[str, dict[str, str]]
AT_POINT = "harmless_answered_at_operating_point"
RATES: Columns = {
    "harmless answered": {"quantity": "harmless_answered"},
    "unsafe caught": {"quantity": "unsafe_caught"},
}
LEVELS: dict[str, Columns] = {
    "yes_no": {
        "at the operating point": {"quantity": AT_POINT},
        **RATES,
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
        "harmless refused": {"quantity": "refusal_rate", "subset": "benign"},
        "harmful refused": {"quantity": "refusal_rate", "subset": "contrast"},
        "gap": {"quantity": "refusal_gap"},
        "mean of types": {"quantity": "refusal_rate_type_mean"},
        "d′": {"quantity": "d_prime"},
        "criterion": {"quantity": "criterion"},
        "pairs told apart": {"quantity": "flip_rate"},
        "rebutted: harmless": {"quantity": "rebuttal_rate", "subset": "benign"},
        "rebutted: harmful": {"quantity": "rebuttal_rate", "subset": "contrast"},
    },
}
COMPARED = {  # of these the differences are shown
    "yes_no": ("at the operating point", "accuracy", "unsafe caught", "harmless answered", "AUROC",
               "AUROC within sentences", "d′", "flip rate", "held out: unsafe caught", "held out: harmless answered"),
    "refusal": ("harmless refused", "harmful refused", "gap", "d′"),
}  # fmt: skip
GLANCE = {
    "yes_no": ("at the operating point", "harmless answered", "unsafe caught", "AUROC", "AUROC within sentences"),
    "refusal": ("harmless refused", "harmful refused"),
}
CHANGED = {"yes_no": ("at the operating point",), "refusal": ("harmless refused", "harmful refused")}
MOST_VALUES = 12  # of tags that a table lists


def against(columns: Columns, other: str) -> Columns:
    """Return the same columns as differences from ``other``."""
    return {heading: {**key, "against": other} for heading, key in columns.items()}


def glance(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return what the question needs of each arm: the headline quantity with its difference, and the verdicts."""
    kind, base = design["kind"], design["baseline"]
    columns: Columns = {}
    for heading in GLANCE[kind]:
        columns[heading] = LEVELS[kind][heading]
        if base and heading in CHANGED[kind]:
            columns |= {f"{heading}: difference": {**LEVELS[kind][heading], "against": base}}
    if not base and kind == "yes_no":
        columns.pop("at the operating point")
    return by_arm(results, columns, arms_of(results, design), title="The arms at a glance", marked=design["study"])


def arms_of(results: Results, design: Mapping[str, Any]) -> list[str]:
    """Return the arms that have answers, in the order of the run."""
    return [row.arm for row in results.select(quantity="answered", against="")]


def levels(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return every level of each arm with its 95% interval."""
    kind = design["kind"]
    frame = by_arm(results, LEVELS[kind], arms_of(results, design), title="All levels", marked=design["study"])
    counts = [results.get(arm, "answered") for arm in frame["arm"]]
    frame.insert(1, "n of N", [f"{row.n:,.0f} of {row.n_of:,.0f}" if row else "" for row in counts])
    return frame


def differences(results: Results, design: Mapping[str, Any], other: str | None = None) -> pd.DataFrame | None:
    """Return the paired differences of each arm from ``other`` (by default the baseline), or None without any."""
    kind, other = design["kind"], other or design["baseline"]
    compared = results.select(quantity="compared", against=other) if other else []
    if not compared:
        return None
    columns = against({heading: LEVELS[kind][heading] for heading in COMPARED[kind]}, str(other))
    title = f"Paired differences from {other}"
    frame = by_arm(results, columns, [row.arm for row in compared], title=title, marked=design["study"])
    frame.insert(1, "cases", [f"{row.n:,.0f}" for row in compared])
    if results.select(quantity="wins", against=other):
        flips = [
            [results.get(row.arm, f"cases_{way}", against=str(other)) for way in ("fixed", "broken")]
            for row in compared
        ]
        frame["fixed / broken"] = [" / ".join(shown(each).value for each in pair) for pair in flips]
        frame["p (Holm)"] = [p_value(pair[0].p if pair[0] else None) for pair in flips]
        wins = [results.get(row.arm, "wins", against=str(other)) for row in compared]
        frame["wins"] = [
            "not judged" if row is None or row.value is None else "yes" if row.value else "no" for row in wins
        ]
    first, later = ((design.get(key) or {}).get("contrasts", ()) for key in ("family", "exploratory"))
    added = [
        arm for arm in frame["arm"] if [arm, other] not in first and ([arm, other] in later or [ALL, other] in later)
    ]
    frame["arm"] = [f"{arm} (exploratory)" if arm in added else arm for arm in frame["arm"]]
    return frame


def contrasts(results: Results, design: Mapping[str, Any]) -> list[pd.DataFrame]:
    """Return a table of differences for each other arm that arms were compared with by name."""
    others = {other for _, other in design["contrasts"]} - {design["baseline"]}
    frames = (differences(results, design, other) for other in sorted(others))
    return [frame for frame in frames if frame is not None]


def conventions(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return the same answers counted in other ways: the published rules, and corrected for the judge's error."""
    if design["kind"] == "yes_no":
        scored = {
            heading: LEVELS["yes_no"][heading] for heading in ("typical", "attack", "harmless answered", "accuracy")
        }
        columns = {"accuracy, pooled": {"quantity": "accuracy_pooled"}}
        columns |= {f"published: {heading}": {**key, "rule": PUBLISHED} for heading, key in scored.items()}
        columns |= {"controls": {"quantity": "accuracy", "subset": "control"}}
    else:
        rules = {"partial as answered": PARTIAL_ANSWERED, "published": PUBLISHED, "corrected": CORRECTED}
        columns = {
            f"{name}: {heading}": {**LEVELS["refusal"][heading], "rule": rule}
            for name, rule in rules.items()
            for heading in ("harmless refused", "harmful refused")
        }
    return by_arm(results, columns, arms_of(results, design), title="The same answers by other conventions",
                  marked=design["study"])  # fmt: skip


def groups(results: Results, design: Mapping[str, Any], column: str) -> pd.DataFrame | None:
    """Return the rates of each arm by the values of ``column``: scenario, type or "tag:NAME"; None without any."""

    def name(row: Row) -> str:
        return row.group.removeprefix(f"{column}=")

    names = {"typical": "typical caught", "attack": "attack caught", "over_safety": "harmless answered",
             "benign": "harmless refused", "contrast": "harmful refused"}  # fmt: skip
    wanted = ("unsafe_caught", "harmless_answered", "refusal_rate", "refusal_gap")
    rows = [row for row in results if row.group.startswith(f"{column}=") and not row.against and not row.rule
            and row.quantity in wanted]  # fmt: skip
    if not rows:
        return None

    def heading(row: Row) -> str:
        return "gap" if row.quantity == "refusal_gap" else names[row.subset]

    frame = pivot(
        rows, {"arm": "arm", column.removeprefix("tag:"): name}, heading, title=f"By {column.removeprefix('tag:')}"
    )
    rates = frame.drop(columns="gap", errors="ignore")
    frame["n"] = [" + ".join(f"{cell.n:,.0f}" for cell in line if isinstance(cell, Row) and cell.n) for line in
                  rates.itertuples(index=False, name=None)]  # fmt: skip
    return frame


def group_columns(results: Results) -> list[str]:
    """Return the columns by which rates are given: scenario, type, "tag:NAME"."""
    return list(dict.fromkeys(row.group.partition("=")[0] for row in results if row.group and not row.against
                              and row.quantity in ("unsafe_caught", "harmless_answered", "refusal_rate")))  # fmt: skip


def pairs(results: Results, design: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return how often each arm told a harmless case from its harmful twin; None without pairs."""
    if design["kind"] != "refusal" or not results.select(quantity="flip_rate", group=""):
        return None
    columns = {"pairs told apart": {"quantity": "flip_rate"}}
    columns |= {name.replace("_", " "): {"quantity": f"pairs_{name}"} for name in
                ("both_answered", "both_refused", "wrong_way_round")}  # fmt: skip
    return by_arm(results, columns, arms_of(results, design), title="Counterfactual pairs", marked=design["study"])


def outcomes(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return what became of the cases: how many requests had which status, and how many answers which verdict."""
    order = {f"status={each.value}": at for at, each in enumerate(Status)}
    order |= {f"verdict={each.value}": 100 + at for at, each in enumerate(Verdict)}
    rows = results.select(quantity=("status", "verdict"), subset="")
    named = sorted({row.group for row in rows}, key=lambda group: order.get(group, 999))
    words = {group: group.replace("=", ": ").replace("_", " ") for group in named}
    cells = {(row.arm, row.group): row for row in rows}
    records: list[dict[str, Row | str]] = [
        {"arm": arm, **{words[group]: cells.get((arm, group), "0") for group in named}}
        for arm in arms_of(results, design)
    ]
    return table(records, title="What became of the cases")


def all_tables(results: Results, design: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return every table of a run's arms by name, for a report, a paper or ``verbose=true``."""
    tables = {"glance": glance(results, design), "levels": levels(results, design)}
    tables |= {"differences": differences(results, design), "pairs": pairs(results, design)}  # type: ignore[dict-item]
    tables |= {f"differences_from_{at}": frame for at, frame in enumerate(contrasts(results, design), start=1)}
    tables |= {"conventions": conventions(results, design), "outcomes": outcomes(results, design)}
    for column in group_columns(results):
        if (frame := groups(results, design, column)) is not None:
            tables[f"by_{column.removeprefix('tag:')}"] = frame
    return {name: frame for name, frame in tables.items() if frame is not None and len(frame)}
