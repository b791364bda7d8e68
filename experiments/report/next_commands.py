"""What to type after a run: commands for terminal and report, made from the one that was typed."""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interp.checkpoints.config import ORGANISM

PROGRAM = ("python", "-m", "experiments.run")  # what a recorded command begins with
MOST = 3
OWN_MODEL = "model.path=FOLDER_OR_HUB_ID"
PREVIEW = "task=preview benchmark=table benchmark.path=cases.csv"
OF_MODEL = ("model", "model.path", "model.name", "model.revision", "model.force")  # keys that name one model
OF_RUN = ("run", "runs", "fresh", "force")  # keys that name one run, or how it goes on
FLAG = ("-cd", "--config-dir")  # where options of the user's own are found
BUNDLED = {  # what chooses each
    f"{ORGANISM}llava": [],
    **{f"{ORGANISM}{name}": [f"model={name}_organism"] for name in ("smol", "thinking")},
}
ARM = re.compile(r"\+{0,2}(?:method@arms|arms)\.([^.=]+)")


def typed(environment: Mapping[str, Any]) -> list[str] | None:
    """Return the arguments of the run's command; None if no readable command is recorded."""
    try:
        words = shlex.split(str(environment.get("command") or ""))
    except ValueError:
        return None
    return words[len(PROGRAM) :] if tuple(words[: len(PROGRAM)]) == PROGRAM else None


def named_arms(environment: Mapping[str, Any]) -> set[str]:
    """Return the arms that the run's command names, by adding or setting them."""
    return {match[1] for word in typed(environment) or () if (match := ARM.match(word))}


def program() -> str:
    """Return how this program was started: ``forestlens``, with its folder where that is not on the path."""
    started = Path(sys.argv[0])
    if started.stem != "forestlens":
        return "python -m experiments.run"
    if shutil.which("forestlens"):
        return "forestlens"
    try:
        return str(started.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(started)


def next_commands(environment: Mapping[str, Any], folder: str, *, program: str = "forestlens") -> dict[str, str]:
    """Return command → what it is for: at most three for the run in ``folder``; none if no weights were loaded.

    Args:
        environment: of the run's environment.json.
        folder: the run's, as it is typed.
        program: how this one is started.
    """
    model, config = environment.get("model") or {}, environment.get("config") or {}
    words, path = typed(environment), str(model.get("path") or "")
    if not path or words is None or environment.get("joined"):
        return {}
    task, bundled = str((config.get("task") or {}).get("_target_")), path.startswith(ORGANISM)
    model, cases, method = _same_model(words, path), about(words, "benchmark"), about(words, "method")
    chosen = method if any(word.startswith("method=") for word in method) else []  # else an experiment's own
    same = without(words, "task", *OF_RUN)
    told = task.startswith("experiments.studies.mechanism.") or path == f"{ORGANISM}thinking"  # has a thought before
    of_study = task == "experiments.evaluation.study.run" and not config.get("attention")
    listed = [
        (of_study, [*same, "task=attention", f"run={folder}"], "where the attention of its failures went"),
        (bundled, [*model, *cases, *chosen, "+exp=heatmap_llava"], "one case, its answers, and where the model looked"),
        (not told and (cases or not bundled), [*model, *cases, "+exp=mechanism"], "why it fails"),
        (bundled, [*without(words, *OF_MODEL, *OF_RUN), OWN_MODEL], "the same with your own model"),
        (bundled and not about(words, "benchmark"), shlex.split(PREVIEW), "your own cases"),
    ]
    chosen_commands = [(command, why) for wanted, command, why in listed if wanted]
    return {f"{program} {shlex.join(command)}": why for command, why in chosen_commands[:MOST]}


def without(words: Sequence[str], *keys: str) -> list[str]:
    """Return the arguments that set none of ``keys``; with ``task`` its options ``task.…`` go, too."""
    names = [word.lstrip("+~").partition("=")[0] for word in words]
    options = ("task.",) if "task" in keys else ()
    return [word for word, name in zip(words, names, strict=True) if name not in keys and not name.startswith(options)]


def about(words: Sequence[str], group: str) -> list[str]:
    """Return the arguments that choose the option of ``group``, or set one of its keys."""
    return [word for word in words if re.match(rf"\+{{0,2}}{group}[.=]", word)]


def _same_model(words: Sequence[str], path: str) -> list[str]:
    """Return what loads the run's model: the arguments about it, and the folder of the user's options."""
    flags = [word for at, word in enumerate(words) if word.partition("=")[0] in FLAG or (at and words[at - 1] in FLAG)]
    chosen_here = about(words, "model")
    named = any(re.match(r"model(\.path)?=", word) for word in chosen_here)
    chosen = BUNDLED.get(path, [f"model.path={path}"])
    return [*flags, *chosen_here, *([] if named else chosen)]
