"""The options of every group: what ``conf/`` says, on top of the defaults of the classes that it names.

An option is a file ``conf/<group>/<name>.yaml``, or an entry of a list such as ``conf/methods.yaml``.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import conf
from experiments.config.defaults import defaults_of
from experiments.config.run import Schema

CONF = Path(conf.__file__).parent
Node = dict[str, Any]


@cache
def written() -> dict[str, Node]:
    """Return option → what its file or entry says, such as ``method/vcd`` → its node."""
    options: dict[str, Node] = {}
    for path in CONF.rglob("*.yaml"):
        name = path.relative_to(CONF).with_suffix("").as_posix()
        node = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        is_list = path.parent == CONF and name != "config"  # models.yaml is a list of options of the group model
        options |= {f"{name[:-1]}/{entry}": node[entry] for entry in node} if is_list else {name: node}
    return options


def options_of(group: str) -> list[str]:
    """Return the names that ``group=NAME`` accepts."""
    return sorted(option.rpartition("/")[2] for option in written() if option.rpartition("/")[0] == group)


def source_lines(option: str) -> list[str]:
    """Return the lines of an option's file, with its comments."""
    return (CONF / f"{option}.yaml").read_text(encoding="utf-8").splitlines()


def with_defaults(node: Any) -> Any:
    """Return the node with every option of its ``_target_``; nodes inside it likewise.

    Left out are values that the node's defaults list composes, and the arguments of a function that is called later.
    """
    if not isinstance(node, dict):
        return node
    entries = [key for entry in node.get("defaults", []) for key in ([entry] if isinstance(entry, str) else entry)]
    composed = {re.split("[@/]", key)[-1].partition(".")[0] for key in entries}
    defaults = defaults_of(node["_target_"]) if "_target_" in node and "_partial_" not in node else {}
    options = {name: value for name, value in defaults.items() if name not in composed}
    return options | {name: with_defaults(value) for name, value in node.items()}


@cache
def register() -> None:
    """Register every option with Hydra, once, and ``Schema`` as ``run_schema``."""
    store = ConfigStore.instance()
    schema = OmegaConf.structured(Schema)
    OmegaConf.set_readonly(schema, None)  # a frozen dataclass would make the whole configuration read-only
    store.store(name="run_schema", node=schema)
    for option, node in written().items():
        group, _, name = option.rpartition("/")
        package = "_global_" if group == "exp" else None
        store.store(group=group or None, name=name, node=with_defaults(node), package=package)
