"""``task=plan`` before a command: the rest of the command composes what is planned."""

from collections.abc import Sequence

from omegaconf import OmegaConf

from experiments.command_line.help_page import CONF

PLAN = "task=plan"


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
