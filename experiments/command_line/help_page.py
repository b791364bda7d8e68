"""The page of ``--help``, made from the text of ``conf/`` alone."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import takewhile

from omegaconf import OmegaConf

from experiments.config import CONF, options_of, source_lines

ABOUT = """\
forestlens finds out why multimodal language models judge safety from the words
and ignore the picture, tries what helps, and says whether the gain is real."""
USAGE = "forestlens [+exp=NAME | task=NAME] [GROUP=NAME] [KEY=VALUE]"
FIRST = {
    "+exp=vcd_llava": "does a mitigation (VCD) help a small bundled model? a minute",
    "+exp=heatmap_llava": "one case: its answers, and where the model looked",
    "+exp=vcd_llava model.path=FOLDER_OR_HUB_ID": "the first, with your own model",
    "task=preview benchmark=table benchmark.path=cases.csv": "your own pictures and questions",
    "task=doctor": "is everything installed, and does it work?",
}
COMMANDS = {
    "+exp=vcd_llava": "the main experiment: VCD and its controls, on the bundled model",
    "+exp=vcd_llava model=llava_1_5_7b benchmark=mmsafeaware benchmark.root=DIR": "the same on LLaVA-1.5-7B",
    "task=plan +exp=vcd_llava model=llava_1_5_7b task.gpu_gib=24": "what that would need on a GPU of 24 GB",
    "method=prompt limit=50": "one method beside the baseline, on 50 cases",
    "task=attention run=outputs/NAME/TIME": "where the attention of a run's failures went",
    "task=report runs=[outputs/NAME/TIME,outputs/NAME/TIME]": "two finished runs in one report",
}
LISTED = {
    "method": "its options: method.KEY=VALUE",
    "model": "its options: model.KEY=VALUE",
    "benchmark": "most need benchmark.root=DIR",
    "judge": "reads the answers",
    "data": "rows to train on: task=vrtuning data@task.data=NAME",
}
ENDING = """\
forestlens new method|learned_method|benchmark|judge NAME writes a skeleton of
your own, with its test.
python -m experiments.run is the same as forestlens.
--cfg job prints the composed configuration instead of running it, -m runs a
sweep over values with commas (seed=0,1), --hydra-help lists Hydra's own flags.
case=, image=, text=, run=, runs=, labels= and the folders of benchmarks, as
mossbench=, are short for the task's: task.case=, ...
conf/GROUP/NAME.yaml, or the entry NAME in conf/GROUPs.yaml (models, methods,
benchmarks, judges), says what each option means."""
OPTION = re.compile(r"(?P<key>\w+): (?P<value>.*?)  # (?P<comment>.*)")
WIDTH = 80
BODY = "defaults:"  # where the settings of an experiment begin
SHARED = "  - settings: lora"  # the line of a task's file


def help_page(arguments: Sequence[str] = ()) -> str:
    """What ``--help`` prints: commands, groups and options, read from ``conf/`` and 80 columns wide.

    Behind an experiment or a task, what that one does and takes.
    """
    named = {group: name for word in arguments for group, _, name in [word.lstrip("+").partition("=")]}
    for group in ("exp", "task"):
        if (name := named.get(group, "")) in options_of(group):
            return _page_of(group, name)
    groups = [entry for entry in OmegaConf.load(CONF / "config.yaml").defaults if OmegaConf.is_dict(entry)]
    defaults = {group: f"; default: {name}" for entry in groups for group, name in entry.items()}
    parts = [
        ABOUT,
        f"Usage:\n  {USAGE}",
        "Common commands (after forestlens):\n" + _rows(COMMANDS, 6),
    ]
    parts += [f"{heading}\n" + _rows(rows, 25) for heading, rows in commands().items()]
    for group, about in LISTED.items():
        listed = textwrap.fill("  ".join(options_of(group)), WIDTH, initial_indent="  ", subsequent_indent="  ")
        parts.append(f"{group}=NAME  ({about}{defaults.get(group, '')})\n{listed}")
    parts.append("KEY=VALUE  (of the run, with its default)\n" + _rows(top_level_options(), 25))
    return "\n\n".join([*parts, ENDING]) + "\n"


def _page_of(group: str, name: str) -> str:
    """The help of one experiment or task: the first lines of its file, its task's options, and what it sets."""
    lines, title = source_lines(group, name), f"{'+' * (group == 'exp')}{group}={name}"
    about = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    about = [line for line in about if not line.startswith("@package")]
    parts = [title, "\n".join(map(_wrapped, about))]
    task = name
    if group == "exp":
        tasks = [line.rpartition(": ")[2] for line in lines if line.strip().startswith("- override /task:")]
        task = tasks[-1] if tasks else "study"
        settings = textwrap.indent("\n".join(lines[lines.index(BODY) :]), "  ")
        parts.append(f"What it sets, where you say nothing else\n{settings}")
    of_task = source_lines("task", task)
    options = {f"{key}={value}": comment for key, value, comment in _options(of_task)}
    if options:
        parts.append(f"task.KEY=VALUE  (of task={task}, with its default)\n" + _rows(options, 25))
    if SHARED in of_task:
        parts.append("task.settings.KEY=VALUE, of a LoRA's training: conf/task/settings/lora.yaml lists them")
    return "\n\n".join([*parts, "KEY=VALUE of the run, models, methods and benchmarks: forestlens --help"]) + "\n"


def commands() -> dict[str, dict[str, str]]:
    """Return heading → command → the first sentence of its file in ``conf/``, of every experiment and every task.

    A task that an experiment of the same name runs is left out.
    """
    experiments = options_of("exp")
    tasks = [name for name in options_of("task") if name not in experiments]
    return {
        "Experiments": {f"+exp={name}": _first_sentence("exp", name) for name in experiments},
        "Tasks": {f"task={name}": _first_sentence("task", name) for name in tasks},
    }


def greeting() -> str:
    """What ``forestlens`` prints without arguments: what it is, the first commands, and where to read on."""
    docs = CONF.parent / "docs"
    pages = f"README.md and docs/ in {docs.parent}" if docs.is_dir() else "README.md and docs/ of its repository"
    rows = (f"  forestlens {command}\n      {description}" for command, description in FIRST.items())
    return (
        "\n".join([ABOUT, "", *rows, "", "forestlens --help lists everything there is.", f"To read on: {pages}"]) + "\n"
    )


def top_level_options() -> dict[str, str]:
    """``key=default`` → its comment, of every option at the top of ``conf/config.yaml``, in its order."""
    lines = (CONF / "config.yaml").read_text(encoding="utf-8").splitlines()
    return {f"{key}={_default(value)}": comment for key, value, comment in _options(lines)}


def _options(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    """Key, default and comment of each option at the top of a file that has a comment."""
    return [(option["key"], option["value"], option["comment"]) for line in lines if (option := OPTION.fullmatch(line))]


def _default(value: str) -> str:
    """What an option is where nothing is said: of ``${oc.select:…,16}`` the 16; a run's name is its task's."""
    if value.startswith("${oc.select:"):
        return value.rstrip("}").rpartition(",")[2]
    return "TASK" if value.startswith("${") else value


def _first_sentence(group: str, name: str) -> str:
    lines = source_lines(group, name)
    title = next(line.removeprefix("# ") for line in lines if line.startswith("# ") and "@package" not in line)
    return re.split(r"(?<=[.?])\s", title)[0].rstrip(".")


def _wrapped(line: str) -> str:
    """A line of prose in 80 columns; a command whole, so that it can be copied."""
    is_command = line.startswith(("python -m ", "forestlens ", "git "))
    return f"  {line}" if is_command else textwrap.fill(line, WIDTH)


def _rows(rows: Mapping[str, str], column: int) -> str:
    """A name and what it is: on one line, or below it where the name reaches past ``column``."""
    lines = []
    for name, description in rows.items():
        head = f"  {name}"
        if len(head) + 2 > column:
            lines.append(head)
            head = ""
        lines.append(
            textwrap.fill(description, WIDTH, initial_indent=head.ljust(column), subsequent_indent=" " * column)
        )
    return "\n".join(lines)
