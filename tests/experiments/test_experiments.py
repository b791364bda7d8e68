"""Every experiment whose model and data are bundled runs from the command's configuration, at the smallest size."""

from pathlib import Path

import pytest

from tests.experiments.compose import run_of


@pytest.mark.slow  # both are commands of tests/test_first_hour.py
@pytest.mark.parametrize(
    ("exp", "overrides", "leaves"),
    [
        ("vcd_llava", ("limit=2", "draws=20"), ("metrics.json", "report.html", "attention.json")),
        ("heatmap_llava", ("limit=2", "draws=20"), ("environment.json", "figures")),
    ],
)
def test_it_runs_with_what_is_bundled(
    exp: str, overrides: tuple[str, ...], leaves: tuple[str, ...], tmp_path: Path
) -> None:
    run = run_of(f"+exp={exp}", f"output_root={tmp_path}", *overrides)
    run.task(run)
    (folder,) = (tmp_path / exp).iterdir()
    for name in leaves:
        assert (folder / name).exists(), name
