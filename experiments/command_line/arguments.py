"""Short forms of the command line, spelled out for Hydra."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from experiments.config.options import with_defaults, written
from interp.errors import UserError

PLAN, ATTENTION = "task=plan", "task=attention"
# Keys that Hydra's composed configuration need not have: a method's file says which settings there are.
OPEN = re.compile(r"(?:method|arms\.[^.=]+)\.settings[.=]|benchmark\.skip_bad=")
SHORT = ("case", "image", "text", "run", "runs", "labels", "mmsafeaware", "mossbench")  # options of tasks
WITH_VALUE = ("-cd", "--config-dir", "-cp", "--config-path", "-cn", "--config-name")  # flags that define what runs


def expand(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as Hydra composes them.

    - ``explore`` is ``task=explore``, and ``run=DIR`` and the like are options of the task.
    - ``method.settings.x=1`` and ``benchmark.skip_bad=true`` may be new keys, which Hydra marks with ``++``.
    - ``task=attention run=DIR`` takes the benchmark from the run's own command, unless one is named here.
    - ``task=plan`` is a second task, ``plan``, so that the command keeps the task that it plans.

    Raises:
        UserError: a sweep names an option twice; Hydra would take the last without a word.
    """
    keys = [word.partition("=")[0] for word in arguments if "=" in word]
    if {"-m", "--multirun"} & {*arguments} and (twice := next((key for key in keys if keys.count(key) > 1), "")):
        raise UserError(
            f"a sweep names {twice} twice, and only the last would count; name it once, or each part separately, as in "
            f"{twice}.NAME=1,2"
        )
    words = ["task=explore", *arguments[1:]] if arguments[:1] == ["explore"] else list(arguments)
    words = [f"task.{word}" if word.partition("=")[0] in SHORT else word for word in words]
    words = [f"++{word}" if OPEN.match(word) else word for word in words]
    runs = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("task.run=")]
    if ATTENTION in words and runs:
        words += _benchmark_of(Path(runs[-1]), words)
    if PLAN in words:
        words.remove(PLAN)
        options = tuple(f"task.{option}=" for option in with_defaults(written()[PLAN.replace("=", "/")]))
        words = [word.replace("task.", "plan.", 1) if word.startswith(options) else word for word in words]
        words.append("+task@plan=plan")
    return words


def _benchmark_of(run: Path, words: Sequence[str]) -> list[str]:
    """Return the arguments about the benchmark in the command of a finished run, without a ``_target_``."""
    from experiments.report.next_commands import about, typed

    try:
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the task says what is wrong with it
        return []
    if about(words, "benchmark") or not isinstance(environment, dict):
        return []
    return [word for word in about(typed(environment) or [], "benchmark") if "_target_" not in word]


def of_this_run(typed: Sequence[str]) -> list[str]:
    """Return the arguments of this run: all that were typed or, in a sweep, its flags and this run's values."""
    if not {"-m", "--multirun"} & set(typed):
        return list(typed)
    pairs = zip(["", *typed], typed, strict=False)
    flags = [word for before, word in pairs if before in WITH_VALUE or word.partition("=")[0] in WITH_VALUE]
    return [*flags, *HydraConfig.get().overrides.task]
