"""What the command line showed in earlier versions still works, or is told what it is called now."""

import dataclasses
import re
import subprocess
import sys

import pytest

from experiments.command_line import COMMANDS, FIRST, FORMER, greeting, in_todays_words, top_level_options
from experiments.config import Schema
from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed
from tests.experiments.test_config import options

EXPERIMENTS = [
    "ablation_llava", "bench_attention", "bench_eval", "bench_kernels", "bench_report", "bench_vcd", "frontier_llava",
    "heatmap_llava", "judge_xstest", "languages", "mechanism_llava", "mmsafeaware_table1", "mmsafeaware_table2",
    "mmsafeaware_table3", "mossbench_leaderboard", "mossbench_safety", "organism_family", "stages_llava",
    "train_organism", "train_refusal_classifier", "vcd_frontier", "vcd_llava", "vcd_sampled", "vrtuning_ablations",
    "vrtuning_llava", "vrtuning_llava_7b",
]  # fmt: skip
TASKS = [
    "ablation", "attention", "bench_attention", "bench_eval", "bench_kernels", "bench_report", "bench_vcd", "export",
    "failure_modes", "frontier", "heatmap", "judge_card", "labels", "languages", "mechanism", "mitigations",
    "mmsafeaware_table1", "mmsafeaware_table2", "mmsafeaware_table3", "models", "mossbench_leaderboard",
    "mossbench_safety", "organism_family", "preview", "rejudge", "report", "stages", "study", "train_organism",
    "train_refusal_classifier", "vrtuning",
]  # fmt: skip


@pytest.mark.parametrize("argument", [*(f"+exp={name}" for name in EXPERIMENTS), *(f"task={name}" for name in TASKS)])
def test_every_name_that_was_ever_documented_composes(argument: str) -> None:
    today, notes = in_todays_words([argument])
    assert composed(*today).task._target_
    assert notes == ([f"{argument} is now called {' '.join(today)}."] if argument in FORMER else [])


def test_former_options_of_tasks_are_the_runs_own() -> None:
    said, notes = in_todays_words(["task=attention", "task.run=outputs/a=b"])
    assert said == ["task=attention", "run=outputs/a=b"]
    assert notes == ["task.run=outputs/a=b is now called run=outputs/a=b."]


def test_a_sweep_over_former_names() -> None:
    assert in_todays_words(["task=models,preview"])[0] == ["task=model_table,preview"]
    with pytest.raises(UserError, match=r"vcd_frontier \(task=vcd_grid\); sweep them apart"):
        in_todays_words(["+exp=vcd_frontier,vcd_llava"])


def test_what_is_called_as_ever_stays_as_it_is() -> None:
    said = ["+exp=vcd_llava", "method=readout", "seed=0,1", "--multirun", "~task.candidates.pai"]
    assert in_todays_words(said) == (said, [])
    assert not {argument.partition("=")[2] for argument in FORMER if argument.startswith("task=")} & set(
        options("task")
    )


def test_the_command_says_the_new_name_and_goes_on() -> None:
    command = [sys.executable, "-m", "experiments.run", "+exp=frontier_llava", "--cfg", "job"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert answer.stderr == "+exp=frontier_llava is now called +exp=mitigation_selection.\n"
    assert "MitigationSelection" in answer.stdout or "mitigation_selection" in answer.stdout


@pytest.fixture(scope="module")
def shown() -> str:
    command = [sys.executable, "-m", "experiments.run", "--help"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def test_help_fits_a_terminal_and_lists_every_group_and_option(shown: str) -> None:
    assert shown.startswith("forestlens finds out why")
    assert max(map(len, shown.splitlines())) <= 80
    words = set(re.findall(r"[\w+]+", shown))
    for group in ("exp", "task", "model", "benchmark", "method", "judge", "data", "parts"):
        assert set(options(group)) <= words
    groups = {"task", "model", "benchmark", "judge", "method", "attention_analysis", "plan", "parts"}
    assert {field.name for field in dataclasses.fields(Schema)} - groups == {
        name.partition("=")[0] for name in top_level_options()
    }
    assert all(said in " ".join(shown.split()) for said in map(" ".join, map(str.split, top_level_options().values())))


def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    command = f"{sys.executable} -m experiments.run --help | head -1"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert said.stdout.startswith("forestlens finds out why")
    assert said.stderr == ""


def test_without_arguments_it_greets_and_asks_nothing_of_the_machine() -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('HEAVY', [n for n in ('torch', 'transformers') if n in sys.modules]))\n"
        "from experiments.run import main\nmain()"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert said.stdout == greeting() + "HEAVY []\n"
    assert said.stderr == ""


def test_the_greeting_fits_a_screen_and_says_where_to_read_on() -> None:
    lines = greeting().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines[:-1])) <= 80
    assert "--help" in lines[-2]
    assert str(REPOSITORY) in lines[-1]


def test_the_commands_that_help_and_the_greeting_show_compose() -> None:
    for command in (*COMMANDS, *FIRST):
        assert composed(*command.split())
