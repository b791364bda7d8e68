"""What is wrong with a command line, in one sentence with the word that was probably meant.

``in_a_sentence`` is called once Hydra has refused. It looks for the argument at fault itself and does not read Hydra's
messages.
"""

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.config import composed, options_of

NOISE = ("See https://", "Set the environment variable", "full_key:", "object_type=", "To append to your config")
OF_HYDRA = (HydraException, OmegaConfBaseException)
FLAGS = frozenset(  # Hydra's, as its documentation lists them
    ("--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package", "-p", "--run", "-r",
     "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
     "-cd", "--experimental-rerun", "--info", "-i")
)  # fmt: skip
MOST = 12  # names that a sentence lists
NAMED = {"+exp": "exp", "task": "task", "model": "model", "method": "method", "benchmark": "benchmark"}  # typed → group


def in_a_sentence(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return what is wrong with the command line and what was probably meant; None if the error is not about it."""
    if not isinstance(error, OF_HYDRA):
        return None
    words = [argument for argument in arguments if not argument.startswith("-")]
    if any(argument.startswith(("-cd", "--config-dir")) for argument in arguments):  # options that are not listed here
        return _name_taken(arguments) or _plain(error)
    for word in words:
        if not _reads(word) or ("=" not in word.lstrip("~") and not word.startswith("~")):
            return _unread(error, word, arguments)
    for word in words:
        others = [other for other in words if other != word]
        if (refused := _refusal([word])) is not None and (_refusal([*others, word]) is not None):
            return _mistake(word, refused, others)
    return _plain(error)


def _name_taken(arguments: Sequence[str]) -> str:
    """Return the sentence about a file of the user's with the name of one of our options; empty if there is none."""
    for argument, following in pairwise([*arguments, ""]):
        flag, _, value = argument.partition("=")
        if flag in ("-cd", "--config-dir"):
            for file in Path(value or following).glob("*/*.yaml"):
                if file.stem in options_of(file.parent.name):
                    return (
                        f"{file.parent.name}={file.stem}: a file of yours has the name of an option that is there "
                        "already; give it another name"
                    )
    return ""


def _refusal(overrides: Sequence[str]) -> Exception | None:
    """Return Hydra's error about these overrides, or None."""
    try:
        composed(overrides)
    except OF_HYDRA as error:
        return error
    return None


def _mistake(word: str, refused: Exception, others: Sequence[str]) -> str:
    key, equals, value = word.partition("=")
    name, plus = key.lstrip("+~"), key.startswith("+")
    group = name.partition("@")[0]
    if options := options_of(group):
        if value not in options:
            longer = [option for option in options if value in option]
            near = (longer if 0 < len(longer) <= MOST else []) or get_close_matches(value, options, n=3)
            meant = (
                f"did you mean {' or '.join(f'{key}={option}' for option in near)}? There are" if near else "there are"
            )
            return f"{word}: there is no such option; {meant} {', '.join(options)}"
        if group == "exp" and not plus:
            return f"{word}: an experiment is written with a plus; did you mean +{word}?"
        if plus:
            return f"{word}: {name} has an option already; leave out the +, which adds a second one"
    keys = _keys(_composed(others))
    if name in keys and plus:
        return f"{word}: it is there already, and a + adds what is not; write {word.lstrip('+')}"
    if name in keys or plus:
        return f"{word}: {_plain(refused.__cause__ or refused)}"
    return f"{word}: there is no {name}; {_nearest(name, keys, equals + value)}"


def unknown_flag(arguments: Sequence[str]) -> str | None:
    """What is wrong with the first argument that looks like a flag and is none of Hydra's; None where there is none.

    Hydra would answer with its usage, and takes ``--exp`` for the beginning of a flag of its own.
    """
    for argument, following in pairwise([*arguments, "-"]):
        flag, _, value = argument.partition("=")
        if not flag.startswith("-") or flag in FLAGS or (flag[1:2] != "-" and flag[:2] in FLAGS):
            continue
        name = flag.lstrip("-").replace("-", "_")
        value = value or ("VALUE" if following.startswith("-") or "=" in following else following)
        meant = "--help lists everything"
        if name == "exp" or name in _keys(_composed([])):
            meant = f"did you mean {'+' * (name == 'exp')}{name}={value}?"
        return f"{flag}: there is no such flag; options are written KEY=VALUE, without dashes; {meant}"
    return None


def quoted(override: str) -> str:
    """``key=value`` as it is typed into a shell so that Hydra reads the value as it stands."""
    key, _, value = override.partition("=")
    inside = re.sub(r'(\\*)"', r'\1\1\\"', value)
    inside = re.sub(r"(\\+)$", r"\1\1", inside)
    return shlex.quote(f'{key}="{inside}"')


def _unread(error: Exception, word: str, arguments: Sequence[str]) -> str:
    if "=" not in word:
        return f"{word}: is no KEY=VALUE and no flag; {_of_a_word(word, arguments)}"
    typed = quoted(word)
    if not _reads(shlex.split(typed)[0]):
        return f"{word}: cannot be read ({_plain(error)}); --help has examples"
    return f"{word}: a value with such a character is put into quotes, which the shell must keep; write {typed}"


def _of_a_word(word: str, arguments: Sequence[str]) -> str:
    """What may have been meant by a word that stands alone."""
    index = arguments.index(word)
    if meant := [f"{typed}={word}" for typed, group in NAMED.items() if word in options_of(group)]:
        return f"did you mean {' or '.join(meant)}?"
    if index and "=" in arguments[index - 1] and not arguments[index - 1].startswith("-"):
        rest = takewhile(lambda one: "=" not in one, arguments[index:])
        typed = quoted(" ".join([arguments[index - 1], *rest]))
        return f"a value with spaces is put into quotes, which the shell must keep; write {typed}"
    return "--help lists both"


def _reads(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def _plain(error: BaseException) -> str:
    """The message in one line, without Hydra's links and hints."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(NOISE))


def _composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration without the argument that failed; that of no argument where the others fail too."""
    try:
        return composed(overrides)
    except OF_HYDRA:
        return composed([])


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in map(str, config):
        if name.startswith("_"):
            continue
        key = f"{prefix}{name}"
        keys.append(key)
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            keys += _keys(node, f"{key}.")
    return keys


def _nearest(key: str, known: Sequence[str], value: str) -> str:
    """Keys of the same node that end as ``key`` does, else the one spelt most like it."""
    node, _, last = key.rpartition(".")
    ending = [one for one in known if one.rpartition(".")[2] == last and one.startswith(key.partition(".")[0])]
    if near := ending[:3] or get_close_matches(key, known, n=1):
        return f"did you mean {' or '.join(f'{one}{value}' for one in near)}?"
    parent = node if node in known else ""
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    more = ", … (--cfg job shows all)" if len(siblings) > MOST else ""
    return f"{node or 'the run'} has {', '.join(siblings[:MOST])}{more}"
