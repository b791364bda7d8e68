"""The arguments as Hydra composes them: a plan set apart from what it plans, settings of a method file as new keys."""

import re
from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from experiments.command_line.help_page import CONF

PLAN = "task=plan"
SETTING = re.compile(r"(?:method|arms\.[^.=]+)\.settings[.=]")
SWEEP = ("-m", "--multirun")
WITH_VALUE = ("-cd", "--config-dir", "-cp", "--config-path", "-cn", "--config-name")  # flags that define what runs


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The arguments with ``task=plan`` set apart, and the settings of a method file as keys that may be new."""
    return with_new_settings(with_plan_apart(arguments))


def with_new_settings(arguments: Sequence[str]) -> list[str]:
    """``method.settings.NAME=VALUE`` and ``method.settings={NAME: VALUE}`` with Hydra's ``++``, of arms alike.

    Which settings there are, the file of the method says, and Hydra knows only what stands in ``conf/``.
    """
    return [f"++{argument}" if SETTING.match(argument) else argument for argument in arguments]


def with_plan_apart(arguments: Sequence[str]) -> list[str]:
    """The arguments with ``task=plan`` and its own options set apart.

    Hydra knows one task; the plan becomes ``plan``, a second choice from the same group (``+task@plan=plan``).
    """
    if PLAN not in arguments:
        return list(arguments)
    own = OmegaConf.load(CONF / "task" / "plan.yaml").keys()
    apart = ["+task@plan=plan"]
    for argument in arguments:
        key, dot, option = argument.partition(".")
        mine = key == "task" and dot and option.partition("=")[0] in own
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
