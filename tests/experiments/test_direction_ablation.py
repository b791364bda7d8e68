"""``+exp=direction_ablation``: each ablation is compared with its controls."""

from tests.experiments.compose import run_of


def test_each_ablation_has_its_controls_among_the_arms() -> None:
    run = run_of("+exp=direction_ablation")
    assert {first for first, _ in run.contrasts} == {"ablate_direction", "to_safe"}
    assert {arm for pair in run.contrasts for arm in pair} <= set(run.arms)
