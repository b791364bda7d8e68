"""The arguments as Hydra composes them: a plan set apart, settings of a method file as new keys, a run's own cases."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from experiments.config import CONF

PLAN = "task=plan"
ATTENTION = "task=attention"
SETTING = re.compile(r"(?:method|arms\.[^.=]+)\.settings[.=]")
# Options of tasks that are typed without their task.
SHORT = frozenset(
    ("case", "image", "text", "run", "runs", "labels", "mmsafeaware", "mossbench", "mssbench", "lvlm_safer",
     "holisafe")
)  # fmt: skip
SWEEP = ("-m", "--multirun")
WITH_VALUE = ("-cd", "--config-dir", "-cp", "--config-path", "-cn", "--config-name")  # flags that define what runs


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The arguments spelled out, with the cases of the run that they are about, ``task=plan`` set apart."""
    return with_plan_apart(with_cases_of_the_run(spelled_out(arguments)))


def with_cases_of_the_run(arguments: Sequence[str]) -> list[str]:
    """``task=attention task.run=DIR`` with the benchmark that the run's command named, unless one is named here.

    A target (``benchmark._target_``) is not taken from a run's files.
    """
    from experiments.report.next_commands import about, typed

    runs = [argument.partition("=")[2].strip("'\"") for argument in arguments if argument.startswith("task.run=")]
    if ATTENTION not in arguments or not runs or about(arguments, "benchmark"):
        return list(arguments)
    try:
        environment = json.loads((Path(runs[-1]) / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the task says what is wrong with it
        return list(arguments)
    words = (typed(environment) if isinstance(environment, dict) else None) or []
    return [*arguments, *(word for word in about(words, "benchmark") if "_target_" not in word)]


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """``run=…`` and the like with the task that they are options of; settings of a method file with Hydra's ``++``.

    Hydra knows only what is in ``conf/``. The method's file says which settings there are:
    ``method.settings.NAME=VALUE``, ``method.settings={NAME: VALUE}``, and the same for arms.
    """
    if arguments[:1] == ["explore"]:  # a task that has a word of its own
        arguments = ["task=explore", *arguments[1:]]
    spelled = [f"task.{argument}" if argument.partition("=")[0] in SHORT else argument for argument in arguments]
    return [f"++{argument}" if SETTING.match(argument) else argument for argument in spelled]


def with_plan_apart(arguments: Sequence[str]) -> list[str]:
    """The arguments with ``task=plan`` and its own options set apart.

    Hydra knows one task; the plan becomes ``plan``, a second choice from the same group (``+task@plan=plan``).
    """
    if PLAN not in arguments:
        return list(arguments)
    options = OmegaConf.load(CONF / "task" / "plan.yaml").keys()
    apart = ["+task@plan=plan"]
    for argument in arguments:
        key, dot, option = argument.partition(".")
        mine = key == "task" and dot and option.partition("=")[0] in options
        apart += [f"plan.{option}"] if mine else [argument] * (argument != PLAN)
    return apart


def of_this_run(typed: Sequence[str]) -> list[str]:
    """The arguments that give this run alone: those that were typed or, of a sweep, its flags and this run's values."""
    if not any(flag in typed for flag in SWEEP):
        return list(typed)
    flags = [
        word
        for at, word in enumerate(typed)
        if word.partition("=")[0] in WITH_VALUE or (at and typed[at - 1] in WITH_VALUE)
    ]
    return [*flags, *HydraConfig.get().overrides.task]
