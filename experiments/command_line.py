"""What the command line says before any task: the page of ``--help``, and former names in today's words.

Reads the text of ``conf/`` alone; imports neither torch nor transformers.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

import conf
from interp.errors import UserError

CONF = Path(conf.__file__).parent
ABOUT = """\
forestlens looks inside multimodal language models that judge safety from the
words and ignore the picture, mitigates that, and proves what got better."""
USAGE = "python -m experiments.run [+exp=NAME | task=NAME] [GROUP=NAME] [KEY=VALUE]"
COMMANDS = {
    "+exp=vcd_llava": "the main experiment: VCD and its controls, on the bundled model",
    "+exp=vcd_llava model=llava_1_5_7b benchmark=mmsafeaware benchmark.root=DIR": "the same on LLaVA-1.5-7B",
    "method=prompt limit=50": "one method beside the baseline, on 50 cases",
    "task=attention run=outputs/NAME/TIME": "where the attention of a run's failures went",
    "task=report runs=[outputs/NAME/TIME,outputs/NAME/TIME]": "two finished runs in one report",
}
DESCRIBED = {
    "+exp": "a question: its task, arms and settings",
    "task": "what is done",
}
LISTED = {
    "model": "its options: model.KEY=VALUE",
    "benchmark": "most need benchmark.root=DIR",
    "method": "its options: method.KEY=VALUE",
    "judge": "reads the answers",
    "data": "rows to train on: task=vrtuning data@task.data=NAME",
}
ENDING = """\
--cfg job prints the composed configuration instead of running it, -m runs a
sweep over values with commas (seed=0,1), --hydra-help lists Hydra's own flags.
What an option of a group means stands beside it in conf/GROUP/NAME.yaml."""
OPTION = re.compile(r"(?P<key>\w+): (?P<value>.*?)  # (?P<comment>.*)")
WIDTH = 80

FORMER = {
    "+exp=ablation_llava": "+exp=direction_ablation",
    "+exp=bench_attention": "task=bench_attention",
    "+exp=bench_eval": "task=bench_eval",
    "+exp=bench_kernels": "task=bench_kernels",
    "+exp=bench_report": "task=bench_report",
    "+exp=bench_vcd": "task=bench_vcd",
    "+exp=frontier_llava": "+exp=mitigation_selection",
    "+exp=judge_xstest": "task=judge_validation",
    "+exp=mechanism_llava": "+exp=mechanism",
    "+exp=mossbench_leaderboard": "task=mossbench_leaderboard",
    "+exp=mossbench_safety": "task=mossbench_safety",
    "+exp=stages_llava": "+exp=reasoning_stages",
    "+exp=train_organism": "task=train_organism",
    "+exp=train_refusal_classifier": "task=judge_training",
    "+exp=vcd_frontier": "task=vcd_grid",
    "task=ablation": "task=direction_ablation",
    "task=frontier": "task=vcd_grid",
    "task=judge_card": "task=judge_validation",
    "task=labels": "task=human_labels",
    "task=mitigations": "task=mitigation_selection",
    "task=mmsafeaware_table1": "task=mmsafeaware_table task.table=1",
    "task=mmsafeaware_table2": "task=mmsafeaware_table task.table=2",
    "task=mmsafeaware_table3": "task=mmsafeaware_table task.table=3",
    "task=models": "task=model_table",
    "task=stages": "task=reasoning_stages",
    "task=train_refusal_classifier": "task=judge_training",
}
# Options of tasks that are now the run's own, or have a name of their own.
FORMER_KEYS = {
    "task.attribution": "attribution",
    "task.case": "case",
    "task.labels": "labels",
    "task.limit": "task.failures",
    "task.run": "run",
    "task.runs": "runs",
}


def in_todays_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with every former name replaced, and one sentence for each that was.

    Raises:
        UserError: a former name in a sweep (``+exp=a,b``) where today's names are not all of one group.
    """
    said: list[str] = []
    notes: list[str] = []
    for argument in arguments:
        today = _today(argument)
        if today != argument:
            notes.append(f"{argument} is now called {today}.")
        said += today.split(" ") if today != argument else [argument]
    return said, notes


def _today(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if key in FORMER_KEYS and equals:
        return f"{FORMER_KEYS[key]}={value}"
    names = [f"{key}={name}" for name in value.split(",")]
    if not any(name in FORMER for name in names):
        return argument
    todays = [FORMER.get(name, name).partition("=") for name in names]
    groups = {group for group, _, _ in todays}
    if len(todays) > 1 and (len(groups) > 1 or any(" " in name for _, _, name in todays)):
        listed = ", ".join(f"{name} ({FORMER[name]})" for name in names if name in FORMER)
        raise UserError(f"{argument}: names that have changed and cannot be swept together: {listed}; sweep them apart")
    return f"{todays[0][0]}=" + ",".join(name for _, _, name in todays)


def help_page() -> str:
    """What ``--help`` prints: commands, groups and options, read from ``conf/`` and 80 columns wide."""
    groups = [entry for entry in OmegaConf.load(CONF / "config.yaml").defaults if OmegaConf.is_dict(entry)]
    defaults = {group: f"; default: {name}" for entry in groups for group, name in entry.items()}
    parts = [ABOUT, f"Usage:\n  {USAGE}", "Common commands (after python -m experiments.run):\n" + _rows(COMMANDS, 6)]
    for group, about in DESCRIBED.items():
        names = {name: _first_sentence(group.lstrip("+"), name) for name in options_of(group.lstrip("+"))}
        parts.append(f"{group}=NAME  ({about}{defaults.get(group, '')})\n" + _rows(names, 25))
    for group, about in LISTED.items():
        listed = textwrap.fill("  ".join(options_of(group)), WIDTH, initial_indent="  ", subsequent_indent="  ")
        parts.append(f"{group}=NAME  ({about}{defaults.get(group, '')})\n{listed}")
    parts.append("KEY=VALUE  (of the run, with its default)\n" + _rows(top_level_options(), 25))
    return "\n\n".join([*parts, ENDING]) + "\n"


def options_of(group: str) -> list[str]:
    """The names that ``group=NAME`` takes."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def top_level_options() -> dict[str, str]:
    """``key=default`` → its comment, of every option at the top of ``conf/config.yaml``, in its order."""
    lines = (CONF / "config.yaml").read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := OPTION.fullmatch(line))]
    return {f"{option['key']}={_default(option['value'])}": option["comment"] for option in found}


def _default(value: str) -> str:
    return "TASK" if value.startswith("${") else value


def _first_sentence(group: str, name: str) -> str:
    lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    said = next(line.removeprefix("# ") for line in lines if line.startswith("# ") and "@package" not in line)
    return re.split(r"(?<=[.?])\s", said)[0].rstrip(".")


def _rows(rows: Mapping[str, str], column: int) -> str:
    """A name and what it is: on one line, or below it where the name reaches past ``column``."""
    lines = []
    for name, said in rows.items():
        head = f"  {name}"
        if len(head) + 2 > column:
            lines.append(head)
            head = ""
        lines.append(textwrap.fill(said, WIDTH, initial_indent=head.ljust(column), subsequent_indent=" " * column))
    return "\n".join(lines)


def register_help() -> None:
    """Makes the page known to Hydra as ``${help_page:}``, which conf/config.yaml takes as the template of its help."""
    OmegaConf.register_new_resolver("help_page", lambda: help_page().replace("$", "$$"), replace=True)
