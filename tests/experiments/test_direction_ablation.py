"""``+exp=direction_ablation``: each ablation is compared with its controls."""

from pathlib import Path

import pytest

from experiments.runs.results_table import read_results
from tests.experiments.compose import run_of

CONTROLS = ["random_0", "random_1", "random_2", "shuffled"]


def test_each_ablation_has_its_controls_among_the_arms() -> None:
    run = run_of("+exp=direction_ablation")
    assert {first for first, _ in run.contrasts} == {"ablate_direction", "to_safe"}
    assert {arm for pair in run.contrasts for arm in pair} <= set(run.arms)


@pytest.mark.slow
def test_the_experiment_runs(tmp_path: Path) -> None:
    run = run_of("+exp=direction_ablation", f"output_root={tmp_path}", "limit=400", "draws=20")
    folder = run.task(run)
    assert (folder / "learned" / "to_safe.safetensors").exists()
    results = read_results(folder)
    for quantity in ("harmless_answered", "unsafe_caught"):
        compared = results.select(quantity=quantity, arm="ablate_direction", group="", subset="", rule="")
        assert sorted(row.against for row in compared) == ["", "baseline", *CONTROLS]
