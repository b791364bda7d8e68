"""What the command line prints by itself: its help, its greeting, and how it ends."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.command_line.arguments import expand
from experiments.command_line.help_page import commands, documented, greeting, help_page
from experiments.config import Schema, options_of
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

HEAVY = ("torch", "transformers", "pandas", "matplotlib", "scipy")


@pytest.fixture(scope="module")
def shown() -> str:
    command = [sys.executable, "-m", "experiments.run", "--help"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
def test_help_fits_a_terminal_and_lists_every_group_and_option(shown: str) -> None:
    assert shown.startswith("forestlens finds out why")
    assert max(map(len, shown.splitlines())) <= 80
    words = set(re.findall(r"[\w+]+", shown))
    for group in ("exp", "task", "model", "benchmark", "method", "judge", "data"):
        assert set(options_of(group)) <= words
    groups = {"task", "model", "benchmark", "judge", "method", "attention_analysis", "plan"}
    options = documented("config")
    assert {field.name for field in dataclasses.fields(Schema)} - groups == {key.partition("=")[0] for key in options}
    assert all(options.values())
    assert all(comment in " ".join(shown.split()) for comment in map(" ".join, map(str.split, options.values())))
    assert {"seed=0", "batch_size=32", "max_new_tokens=null", "protocol=generate"} <= options.keys()


def test_help_behind_an_experiment_is_that_experiments() -> None:
    page = help_page(["+exp=mechanism", "model=llava_1_5_7b", "--help"])
    assert page.startswith("+exp=mechanism\n\nIs the picture read, is it carried to the verdict")
    assert "  python -m experiments.run +exp=mechanism\n" in page
    assert "  protocol: score  # the verdict is the margin's sign" in page
    assert "task.KEY=VALUE  (of task=mechanism, with its default)\n  failures=120 " in page
    assert page.endswith("KEY=VALUE of the run, models, methods and benchmarks: forestlens --help\n")
    assert help_page(["task=heatmap", "-h"]).startswith("task=heatmap\n\nOne case's attention, drawn.\n")
    listed = "\n\ntask.settings.KEY=VALUE, of a LoRA's training\n  trainer=sft            sft | dpo\n  rank=16\n"
    assert listed in help_page(["+exp=alignment", "-h"])
    assert listed not in page
    assert help_page(["+exp=nothing", "--help"]) == help_page(["--help"]) == help_page()


@pytest.mark.parametrize("command", [command for rows in commands().values() for command in rows])
def test_every_experiment_and_task_has_help_of_its_own(command: str) -> None:
    page = help_page([command, "--help"])
    assert page.startswith(f"{command}\n\n")
    assert "@package" not in page
    assert not [line for line in page.splitlines() if line != line.rstrip()]


def fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command does in a Python of its own, and behind what it prints which of ``HEAVY`` it has imported."""
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('HEAVY', [name for name in {HEAVY} if name in sys.modules]))\n"
        "from experiments.run import main\nmain()"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_without_arguments_it_greets_and_asks_nothing_of_the_machine() -> None:
    greeted = fresh()
    assert (greeted.returncode, greeted.stdout, greeted.stderr) == (0, greeting() + "HEAVY []\n", "")


@pytest.mark.long
def test_settings_of_a_method_file_may_be_new_keys(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def rule(scores, step, *, gain=1, name='a'):\n    return scores\n")
    for prefix, chosen in (
        ("method", ["method=file", f"method.path={tmp_path}/mine.py"]),
        ("arms.x", ["+method@arms.x=file", f"arms.x.path={tmp_path}/mine.py"]),
    ):
        for given in (
            [f"{prefix}.settings={{gain: 2, name: b}}"],
            [f"{prefix}.settings.gain=2", f"{prefix}.settings.name=b"],
            [f"+{prefix}.settings.gain=2", f"{prefix}.settings={{name: b}}"],
        ):
            arms = run_of(*expand([*chosen, *given])).arms
            assert arms["x" if prefix == "arms.x" else "mine"].settings == {"gain": 2, "name": "b"}


@pytest.mark.long
def test_an_option_of_a_task_may_be_typed_without_it() -> None:
    run = run_of("+exp=heatmap_llava", "case=test-plain-073-crush-safe")
    assert run.task.case == "test-plain-073-crush-safe"  # type: ignore[attr-defined]
    assert run_of("task=report", "runs=[a,b]").task.runs == ["a", "b"]  # type: ignore[attr-defined]
    folders = run_of("+exp=papers", "mmsafeaware=a", "mossbench=b").task
    assert (folders.mmsafeaware, folders.mossbench) == ("a", "b")  # type: ignore[attr-defined]
    assert expand(["explore", "case=a"]) == ["task=explore", "task.case=a"]
    assert expand(["task=plan", "+exp=papers", "mossbench=b"]) == [
        "+exp=papers",
        "task.mossbench=b",
        "+task@plan=plan",
    ]
    assert not {"case", "run", "mossbench"} & {name.partition("=")[0] for name in documented("config")}
