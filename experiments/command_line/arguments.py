"""Short forms of the command line, spelled out for Hydra, and mistakes in it, said in one sentence.

``in_a_sentence`` is called after Hydra has refused. It looks for the argument at fault itself and does not read Hydra's
messages.
"""

import json
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config import composed, options_of
from experiments.config.run import with_defaults, written
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
    from experiments.report.terminal import about, typed

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


NOISE = re.compile("(See https|Set the environment|full_key:|object_type=|To append to|Or add a second)")  # of Hydra
OF_HYDRA = (HydraException, OmegaConfBaseException)
NAMED = {"+exp": "exp", "task": "task", "model": "model", "method": "method", "benchmark": "benchmark"}  # typed → group


def in_a_sentence(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return what is wrong with the command line and what was probably meant; None if the error is not about it."""
    if not isinstance(error, OF_HYDRA):
        return None
    if any(argument.startswith(("-cd", "--config-dir")) for argument in arguments):  # its options are not listed here
        return _plain(error)
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if not word.startswith("-") and ("=" in word or before[:1] != "-")]
    for word in words:
        if isinstance(_refusal([word]), OverrideParseException):
            return _unread(word)
    for word in words:
        others = [other for other in words if other != word]
        if (refused := _refusal([word])) and _refusal([*others, word]):
            return _mistake(word, refused, others)
    return _plain(error)


def _unread(word: str) -> str:
    """Return what is wrong with an argument that Hydra cannot read."""
    if "=" in word:
        key, _, value = word.partition("=")
        inside = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + match[2].replace('"', '\\"'), value)
        typed = shlex.quote(f'{key}="{inside}"')
        return f"{word}: a value with such a character needs quotes, which the shell must keep; write {typed}"
    options = [f"{typed}={word}" for typed, group in NAMED.items() if word in options_of(group)]
    meant = f"did you mean {options[0]}?" if options else "a value with spaces needs quotes: 'note=\"How is it?\"'"
    return f"{word}: is no KEY=VALUE and no flag; {meant}"


def _mistake(word: str, refused: Exception, others: Sequence[str]) -> str:
    """Return what is wrong with the one argument that Hydra refuses."""
    key, equals, value = word.partition("=")
    name, plus = key.lstrip("+~"), key.startswith("+")
    group = name.partition("@")[0]
    if options := options_of(group):
        if value not in options:
            return f"{word}: there is no such option; {_nearest(value, options, before=f'{key}=')}"
        if group == "exp" and not plus:
            return f"{word}: an experiment is written with a plus; did you mean +{word}?"
    names = keys(OmegaConf.to_container(composed([] if _refusal(others) else others)))
    if name in names or plus:
        return f"{word}: {_plain(refused.__cause__ or refused)}"
    return f"{word}: there is no {name}; {_nearest(name, names, after=equals + value)}"


def _nearest(word: str, names: Sequence[str], *, before: str = "", after: str = "") -> str:
    """Return the word that was probably meant: with the same last part, else spelt most like it; or the first dozen."""
    first, _, last = word.partition(".")
    same_end = [key for key in names if last and key.startswith(f"{first}.") and key.endswith(f".{last}")]
    if near := same_end[:1] or get_close_matches(word, names, n=1):
        return f"did you mean {before}{near[0]}{after}?"
    return f"there are {', '.join(names[:12])}, … (--help and --cfg job list all)"


def keys(node: Any, prefix: str = "") -> list[str]:
    """Return the keys of a configuration, each with its path: ``method.alpha``."""
    items = node.items() if isinstance(node, dict) else ()
    return [key for name, value in items for key in (f"{prefix}{name}", *keys(value, f"{prefix}{name}."))]


def _refusal(overrides: Sequence[str]) -> Exception | None:
    """Return Hydra's error about these overrides, or None."""
    try:
        composed(overrides)
    except OF_HYDRA as error:
        return error
    return None


def _plain(error: BaseException) -> str:
    """Return the message in one line, without Hydra's links and hints."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not NOISE.match(line))
