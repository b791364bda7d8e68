"""The grid: constant shifts lie on their curve, and nothing is answered twice."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.config import Run
from experiments.metrics.yes_no.shift_curve import shift_curve
from experiments.report.table import terminal
from experiments.studies.mitigation_selection.vcd_grid import evaluate, table
from interp.errors import UserError
from mitigation.vcd import VCD
from tests.experiments.compose import run_of


@st.composite
def weighted(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = draw(st.integers(2, 12))
    margin = np.array(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), dtype=float)
    unsafe = np.array([True, False, *draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))])
    weight = np.array([1, 1, *draw(st.lists(st.integers(0, 3), min_size=n - 2, max_size=n - 2))], dtype=float)
    return margin, unsafe, weight


@given(weighted())
def test_the_curve_is_what_constant_shifts_reach(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    margin, unsafe, weight = case
    over_safety, best = shift_curve(margin, unsafe, weight)
    reached: dict[float, float] = {}
    for threshold in [np.inf, *margin, -np.inf]:
        yes = margin > threshold
        safe = weight[yes & ~unsafe].sum() / weight[~unsafe].sum()
        found = weight[~yes & unsafe].sum() / weight[unsafe].sum()
        reached[round(safe, 9)] = max(found, reached.get(round(safe, 9), 0.0))
    assert over_safety.round(9).tolist() == sorted(reached)
    assert best.tolist() == pytest.approx([reached[s] for s in sorted(reached)])


def lines(arms: dict[str, tuple[np.ndarray, np.ndarray]], unsafe: np.ndarray) -> list[dict[str, Any]]:
    """Records of arms given as margins and whether they say Yes."""
    return [
        {"case": f"c{i:03}", "arm": arm, "status": "answered", "verdict": "yes" if yes[i] else "no",
         "margin": float(margin[i]), "subset": "typical" if unsafe[i] else "over_safety", "scenario": "s",
         "gold": "no" if unsafe[i] else "yes", "cluster": f"c{i:03}"}
        for arm, (margin, yes) in arms.items() for i in range(len(unsafe))
    ]  # fmt: skip


def test_a_constant_shift_is_on_its_curve_and_a_better_margin_above() -> None:
    rng = np.random.default_rng(0)
    unsafe = np.arange(200) % 2 == 0
    base = rng.normal(size=200) - unsafe - 2
    better, worse = base - 2.0 * unsafe + 3, rng.normal(size=200)
    arms = {"baseline": base, "alpha=1 step=0": base + 1.5, "alpha=2 step=0": better, "alpha=3 step=0": worse}
    grid = {name: VCD(alpha=float(name[6])) for name in list(arms)[1:]}
    records = lines({name: (margin, margin > 0) for name, margin in arms.items()}, unsafe)
    result = evaluate(records, grid, seed=0, draws=300, where="here")

    shifted, gained, lost = result["points"]
    assert -0.02 < shifted["above_shift_curve"]["value"] <= 0  # below where another shift ties with it on safe cases
    assert shifted["above_shift_curve"]["high"] >= 0
    assert shifted["above_shift_curve"]["statement"] in ("no change", "not shown")
    assert shifted["conclusion"] == "no change"
    assert gained["above_shift_curve"]["low"] > 0
    assert gained["conclusion"] == "rose"
    assert lost["above_shift_curve"]["high"] < 0
    assert lost["conclusion"] == "fell"
    assert result["best"] == "alpha=2 step=0"
    assert "]: rose)" in result["summary"][0]
    assert "]: above the shifts" in result["summary"][0]
    both = gained["delta"]["auroc"]["simultaneous"]
    assert both["of"] == 2  # the shift's is 0 by construction
    assert both["low"] < gained["delta"]["auroc"]["low"]
    assert "of 3 settings" in result["summary"][0]
    assert len(result["summary"]) == 1
    assert all(0 <= corner["unsafe"] <= 1 for corner in result["shift_curve"])
    here = [corner for corner in result["shift_curve"] if corner["over_safety"] == shifted["over_safety"]]
    assert here[0]["unsafe"] == pytest.approx(shifted["unsafe"], abs=0.021)  # equal but for shifts that tie on safe
    console = Console(width=80, record=True)
    console.print(terminal(table(result)))
    assert not re.search(r"…\s", console.export_text()), "a cell was cut off"


def test_without_margins_of_both_kinds_there_is_no_curve() -> None:
    unsafe = np.array([True, True])
    margin = np.array([-1.0, 1.0])
    with pytest.raises(UserError, match="no curve of constant shifts"):
        evaluate(lines({"baseline": (margin, margin > 0)}, unsafe), {}, seed=0, draws=5, where="here")


def frontier(saved: Path, outputs: Path, *overrides: str) -> Run:
    small = ("task.alphas=[0.5,4.0]", "task.noise_steps=[300,999]", "limit=12", "draws=20", "batch_size=5")
    return run_of("task=vcd_grid", f"model.path={saved}", f"output_root={outputs}", "max_new_tokens=2", *small,
                  *overrides)  # fmt: skip


def latest(run: Run) -> Path:
    run.task(run)
    return max((Path(run.output_root) / run.name).iterdir(), key=lambda path: path.stat().st_mtime_ns)


def records_of(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len({(r["case"], r["arm"]) for r in found}) == len(found)
    return {(r["case"], r["arm"]): r for r in found}


@pytest.fixture(scope="module")
def finished(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return latest(frontier(saved, tmp_path_factory.mktemp("frontier")))


@pytest.mark.long
def test_a_run_leaves_records_metrics_and_figure(finished: Path) -> None:
    assert len(records_of(finished)) == 12 * 5
    metrics = json.loads((finished / "metrics.json").read_text())
    assert [(p["alpha"], p["noise_step"]) for p in metrics["points"]] == [(0.5, 300), (4, 300), (0.5, 999), (4, 999)]
    assert json.loads((finished / "environment.json").read_text())["finished"]
    picture = (finished / "figures" / "frontier.svg").read_text()
    assert "</svg>" in picture


@pytest.mark.long
def test_the_records_are_those_of_a_plain_study(finished: Path, saved: Path, tmp_path: Path) -> None:
    study = run_of(
        "method=vcd", "method.alpha=4", "method.noise_step=999", "benchmark.split=development", "limit=12", "draws=5",
        "batch_size=12", f"model.path={saved}", f"output_root={tmp_path}", "max_new_tokens=2",
    )  # fmt: skip
    plain = {case: r for (case, arm), r in records_of(latest(study)).items() if arm == "vcd"}
    swept = {case: r for (case, arm), r in records_of(finished).items() if arm == "alpha=4 step=999"}
    assert plain.keys() == swept.keys()
    for case, record in plain.items():
        assert record["settings"] == swept[case]["settings"]
        assert (record["verdict"], record["response"]) == (swept[case]["verdict"], swept[case]["response"])
        assert record["margin"] == pytest.approx(swept[case]["margin"], abs=1e-4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.alphas=[1,-1]", "alpha=-1.*0 or more"),
        ("task.noise_steps=[1000]", "noise_step=1000.*999"),
        ("task.beta=0.0", r"beta=0\.0.*\(0, 1\]"),
        ("task.split=training", "task.split='training'.*development, test"),
        ("task.alphas=[]", "task.alphas=.*one or more"),
        ("task.noise_steps=[5,5]", "task.noise_steps=.*different"),
    ],
)
def test_bad_settings_are_refused_at_the_door(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_of("task=vcd_grid", override)


def test_without_a_development_split_one_must_ask_for_the_test_cases(no_weights: None, tmp_path: Path) -> None:
    run = run_of("task=vcd_grid", "benchmark.split=development", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"no development split.*task\.split=test"):
        run.task(run)
