"""The page of ``--help``, made from the text of ``conf/`` and the defaults in the source. Composes nothing."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import takewhile

from experiments.config.run import defaults_of, options_of, source_lines, with_defaults, written

ABOUT = """\
forestlens finds out why multimodal language models judge safety from the words
and ignore the picture, tries what helps, and says whether the gain is real."""
COMMANDS = {
    "+exp=vcd_llava": "does a mitigation (VCD) help a small bundled model? a minute",
    "+exp=vcd_llava model.path=FOLDER_OR_HUB_ID": "the same with your own model",
    "task=plan +exp=vcd_llava model=llava_1_5_7b task.gpu_gib=24": "what that would need on a GPU of 24 GB",
    "+exp=heatmap_llava": "one case: its answers, and where the model looked",
    "task=preview benchmark=table benchmark.path=cases.csv": "your own pictures and questions",
    "task=report runs=[outputs/NAME/TIME,outputs/NAME/TIME]": "two finished runs in one report",
    "task=doctor": "what is missing on this machine, and how to get it",
}
ENDING = """\
python -m experiments.run is the same as forestlens.
--cfg job prints the composed configuration instead of running it, -m runs a
sweep over values with commas (seed=0,1), --hydra-help lists Hydra's own flags.
case=, image=, text=, run=, runs=, labels= are short for task.case=, ...
conf/ says what each option means."""
WIDTH = 80


def help_page(arguments: Sequence[str] = ()) -> str:
    """Return what ``--help`` prints, 80 columns wide.

    If the arguments name an experiment or a task, return what that experiment or task does and takes.
    """
    chosen = {group: name for word in arguments for group, _, name in [word.lstrip("+").partition("=")]}
    for group in ("exp", "task"):
        if (name := chosen.get(group, "")) in options_of(group):
            return _page_of(group, name)
    parts = [ABOUT, "Usage:\n  forestlens [+exp=NAME | task=NAME] [GROUP=NAME] [KEY=VALUE]", _first_commands()]
    parts += [f"{heading}\n" + _rows(rows, 25) for heading, rows in commands().items()]
    for group in ("method", "model", "benchmark", "judge", "data"):
        parts.append(f"{group}=NAME\n" + textwrap.indent(textwrap.fill("  ".join(options_of(group)), WIDTH - 2), "  "))
    parts.append("KEY=VALUE  (of the run, with its default)\n" + _rows(documented("config"), 25))
    return "\n\n".join([*parts, ENDING]) + "\n"


def _page_of(group: str, name: str) -> str:
    """Return the first lines of an experiment's or task's file, its task's options, and what it sets."""
    lines = source_lines(f"{group}/{name}")
    about = [
        _wrapped(line[1:].strip()) for line in takewhile(lambda line: line[:1] == "#", lines) if "@package" not in line
    ]
    parts = [f"{'+' * (group == 'exp')}{group}={name}", "\n".join(about)]
    task = name
    if group == "exp":
        task = next((line.split()[-1] for line in lines if "- override /task:" in line), "study")
        settings = textwrap.indent("\n".join(lines[lines.index("defaults:") :]), "  ")
        parts.append(f"What it sets, where you say nothing else\n{settings}")
    if options := documented(f"task/{task}"):
        parts.append(f"task.KEY=VALUE  (of task={task}, with its default)\n" + _rows(options, 25))
    if {"settings": "lora"} in written()[f"task/{task}"].get("defaults", []):
        parts.append("task.settings.KEY=VALUE, of a LoRA's training\n" + _rows(documented("task/settings/lora"), 25))
    return "\n\n".join([*parts, "KEY=VALUE of the run, models, methods and benchmarks: forestlens --help"]) + "\n"


def documented(option: str) -> dict[str, str]:
    """Return ``key=default`` → its comment, of each key of an option.

    The comment is behind a value, or in a line ``# key: comment`` if the value is the class's own.
    """
    node, text = with_defaults(written()[option]), "\n".join(source_lines(option))
    if option == "config":
        node = defaults_of("experiments.config.run.Settings") | {"max_new_tokens": None, "arms": {}} | node
    rows = {}
    for key, value in node.items():
        comment = re.search(rf"^(?:# {key}: |{key}:.*?  # )(.*)", text, re.MULTILINE)
        if key not in ("_target_", "_partial_", "defaults") and not (isinstance(value, dict) and value):
            plain = value if isinstance(value, str) and value else json.dumps(value)
            rows[f"{key}={plain}"] = comment[1] if comment else ""
    return rows


def commands() -> dict[str, dict[str, str]]:
    """Return heading → command → the first sentence of its file in ``conf/``, of every experiment and every task.

    A task that an experiment of the same name runs is left out.
    """
    experiments = options_of("exp")
    tasks = {f"task={name}": _first_sentence(f"task/{name}") for name in options_of("task") if name not in experiments}
    return {"Experiments": {f"+exp={name}": _first_sentence(f"exp/{name}") for name in experiments}, "Tasks": tasks}


def greeting() -> str:
    """Return what ``forestlens`` prints without arguments: what it is, the first commands, and where to read on."""
    return f"{ABOUT}\n\n{_first_commands()}\n\nforestlens --help lists everything; to read on: README.md and docs/\n"


def _first_commands() -> str:
    return "First commands:\n" + _rows({f"forestlens {command}": about for command, about in COMMANDS.items()}, 6)


def _first_sentence(option: str) -> str:
    title = next(line[2:] for line in source_lines(option) if line.startswith("# ") and "@package" not in line)
    return re.split(r"(?<=[.?])\s", title)[0].rstrip(".")


def _wrapped(line: str) -> str:
    """Return a line of prose in 80 columns, and a command on one line, so that it can be copied."""
    is_command = line.startswith(("python -m ", "forestlens ", "git "))
    return f"  {line}" if is_command else textwrap.fill(line, WIDTH)


def _rows(rows: Mapping[str, str], column: int) -> str:
    """Return a name and its text on one line, or the text below if the name reaches past ``column``."""
    lines = []
    for name, description in rows.items():
        head = f"  {name}"
        if len(head) + 2 > column:
            lines.append(head)
            head = ""
        first, rest = head.ljust(column), " " * column
        lines.append(textwrap.fill(description, WIDTH, initial_indent=first, subsequent_indent=rest) or head)
    return "\n".join(lines)
