"""Hydra's complaints about a command line, in one sentence with the word that was meant.

``in_a_sentence`` is called once Hydra has refused; what the configuration has is then composed from the arguments that
are left.
"""

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.config import composed, options_of

ABSENT = re.compile(r"Could not (?:override|append to config|delete from config)\W+'?(?P<key>[\w.@/]+)'?")
NO_OPTION = re.compile(r"Could not find '(?P<group>[\w/]+)/(?P<name>[^/']+)'")
THERE = re.compile(
    r"Could not append to config\. An item is already at '[^']+'\. Either remove \+ prefix: '(?P<override>.*?)' Or add"
)
TWICE = re.compile(r"Multiple values for (?P<group>[\w/@.]+)\.")
SAME_NAME = re.compile(r"'(?P<group>\w+)/(?P<name>\w+)' is validated against ConfigStore schema with the same name")
WRONG_TYPE = re.compile(r"Error merging override (?P<override>.*)")
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
    """What is wrong with the command line and what may have been meant; None where the error is not about it."""
    if isinstance(error, OverrideParseException):
        return _unread(error, arguments)
    if not isinstance(error, OF_HYDRA):
        return None
    message = _plain(error)
    if isinstance(error, MissingConfigException) and (found := NO_OPTION.search(message)):
        return _no_option(found["group"], found["name"], error.options, arguments)
    if found := TWICE.match(message):
        return f"+{found['group']}=…: {found['group']} has an option already; leave out the +, which adds a second one"
    if found := THERE.match(message):
        return f"+{found['override']}: it is there already, and a + adds what is not; write {found['override']}"
    if found := SAME_NAME.match(message):
        return (
            f"{found['group']}={found['name']}: a file of yours has the name of an option that is there already; "
            "give it another name"
        )
    if (found := WRONG_TYPE.match(message)) and error.__cause__ is not None:
        return f"{found['override']}: {_plain(error.__cause__)}"
    if found := ABSENT.match(message):
        return _no_key(found["key"].strip("."), arguments)
    return message


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


def _unread(error: OverrideParseException, arguments: Sequence[str]) -> str:
    override = error.override if error.override in arguments else next((a for a in arguments if not _reads(a)), "")
    if not override:
        return _plain(error)
    if "=" not in override:
        return f"{override}: is no KEY=VALUE and no flag; {_of_a_word(override, arguments)}"
    typed = quoted(override)
    if not _reads(shlex.split(typed)[0]):
        return f"{override}: cannot be read ({_plain(error)}); --help has examples"
    return f"{override}: a value with such a character is put into quotes, which the shell must keep; write {typed}"


def _of_a_word(word: str, arguments: Sequence[str]) -> str:
    """What may have been meant by a word that stands alone."""
    at = arguments.index(word)
    if meant := [f"{typed}={word}" for typed, group in NAMED.items() if word in options_of(group)]:
        return f"did you mean {' or '.join(meant)}?"
    if at and "=" in arguments[at - 1] and not arguments[at - 1].startswith("-"):
        rest = takewhile(lambda one: "=" not in one, arguments[at:])
        typed = quoted(" ".join([arguments[at - 1], *rest]))
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


def _no_option(group: str, name: str, options: Sequence[str] | None, arguments: Sequence[str]) -> str:
    own = re.compile(rf"\+?{re.escape(group)}(@[\w.]+)?=")
    typed = next((found[0] for one in arguments if (found := own.match(one)) and name in one), f"{group}=")
    known = sorted(options or options_of(group))
    longer = [one for one in known if name in one]
    near = (longer if 0 < len(longer) <= MOST else []) or get_close_matches(name, known, n=3)
    close = [f"{typed}{one}" for one in near]
    meant = f"did you mean {' or '.join(close)}? There are" if close else "there are"
    return f"{typed}{name}: there is no such option; {meant} {', '.join(known)}"


def _no_key(key: str, arguments: Sequence[str]) -> str:
    own = re.compile(rf"[+~]*{re.escape(key)}(?:@[\w.]+)?(?:=|$)")
    override = next((one for one in arguments if own.match(one)), key)
    value = "".join(override.partition("=")[1:])
    if key == "exp" and not override.startswith("+"):
        return f"{override}: an experiment is written with a plus; did you mean +{override}?"
    rest = [one for one in arguments if not own.match(one) and not one.startswith("-") and _reads(one)]
    known = _keys(_composed(rest))
    return f"{override}: there is no {key}; {_nearest(key, known, value)}"


def _composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration without the argument that failed; that of no argument where the others fail too."""
    try:
        return composed(overrides)
    except OF_HYDRA:
        return composed([])


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for name in map(str, config):
        if name.startswith("_"):
            continue
        key = f"{prefix}{name}"
        found.append(key)
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            found += _keys(node, f"{key}.")
    return found


def _nearest(key: str, known: Sequence[str], value: str) -> str:
    """Keys of the same node that end as ``key`` does, else the one spelt most like it."""
    node, _, last = key.rpartition(".")
    ending = [one for one in known if one.rpartition(".")[2] == last and one.startswith(key.partition(".")[0])]
    if near := ending[:3] or get_close_matches(key, known, n=1):
        return f"did you mean {' or '.join(f'{one}{value}' for one in near)}?"
    of = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == (node if node in known else "")]
    return f"{node or 'the run'} has {', '.join(of[:MOST])}{', … (--cfg job shows all)' if len(of) > MOST else ''}"
