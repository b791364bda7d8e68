"""Both ends of every range in pyproject.toml: what ``make ends`` runs in each, beside the contract of six families."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ends import lowest, requirements

pytestmark = pytest.mark.ends
REPOSITORY = Path(__file__).resolve().parent.parent
OPEN = ("torch",)  # 2.11 and 2.13 were tried; a host that has another keeps it
WARNING = re.compile(r"warning|deprecat|\[transformers\]|traceback", re.IGNORECASE)
COMMANDS = {
    "doctor": "task=doctor",
    "heatmap": "+exp=heatmap_llava",
    "attention": "task=attention limit=6 draws=20 task.failures=1 task.figures=1",
    "study": "+exp=vcd_llava limit=6 draws=20",
    "adapter": "+exp=vrtuning_llava limit=3 draws=20 batch_size=6 max_new_tokens=4 task.settings.steps=2 "
    "task.settings.batch_size=4 task.data.cases=12",
}
LEAVES = {
    "heatmap": "figures/*_heads.png",
    "attention": "attention.json",
    "study": "metrics.json",
    "adapter": "adapters/vrtuning/adapter/adapter_model.safetensors",
}


def test_every_range_has_a_lower_and_an_upper_end() -> None:
    always, extras = requirements()
    assert [line for line in always if ">=" not in line] == []
    assert [line for line in always if "<" not in line and not line.startswith(OPEN)] == []
    lines = [line for extra in extras.values() for line in extra]
    assert [line for line in lines if ">=" not in line and not line.startswith(("forestlens[", "transformers["))] == []


def test_the_lowest_are_read_off_the_ranges() -> None:
    lines = ["torch>=2.6", "transformers>=5.20,<5.25", "uvicorn[a]>=0.34; python_version > '3'", "forestlens[api]"]
    assert lowest(lines) == ["torch==2.13.0", "transformers==5.20", "uvicorn==0.34"]
    always, _ = requirements()
    assert len(lowest(always)) == len(always)


@pytest.mark.slow  # in make ends alone
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_well_and_warns_of_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.run", *COMMANDS[name].split(), f"output_root={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert [line for line in (ended.stdout + ended.stderr).splitlines() if WARNING.search(line)] == []
    if name in LEAVES:
        assert len(list(tmp_path.glob(f"*/*/{LEAVES[name]}"))) == 1
