"""Read the options of a group: files of ``conf/<group>/``, and entries of a list such as ``conf/methods.yaml``."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

import conf

CONF = Path(conf.__file__).parent
LISTED = {  # group → file
    "model": "models.yaml",
    "method": "methods.yaml",
    "benchmark": "benchmarks.yaml",
    "judge": "judges.yaml",
}


@cache
def entries(group: str) -> dict[str, dict[str, Any]]:
    """Return option → node of each entry in the group's list; empty for a group without a list."""
    if group not in LISTED:
        return {}
    listed = OmegaConf.to_container(OmegaConf.load(CONF / LISTED[group]))
    assert isinstance(listed, dict)
    return {str(name): node for name, node in listed.items()}


def options_of(group: str) -> list[str]:
    """Return the names that ``group=NAME`` accepts."""
    listed = {name for name in entries(group) if "/" not in name}
    return sorted({path.stem for path in (CONF / group).glob("*.yaml")} | listed)


def written(group: str, name: str) -> DictConfig:
    """Return an option as its file or entry says, before Hydra composes it."""
    listed = entries(group)
    node = OmegaConf.create(listed[name]) if name in listed else OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    return node


def source_lines(group: str, name: str) -> list[str]:
    """Return the text of an option with its comments, line by line; of an entry without its indentation."""
    if name not in entries(group):
        return (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    text = (CONF / LISTED[group]).read_text(encoding="utf-8")
    block = re.search(rf"^{re.escape(name)}:\n((?:  .*\n|\n)*)", text, re.MULTILINE)
    assert block is not None
    return [line.removeprefix("  ") for line in block[1].rstrip().splitlines()]


def register_entries() -> None:
    """Register every entry with Hydra, as if it were a file."""
    for group in LISTED:
        for name, node in entries(group).items():
            folder, _, option = name.rpartition("/")  # tuned/vcd is the option vcd of the group method/tuned
            ConfigStore.instance().store(group=f"{group}/{folder}".rstrip("/"), name=option, node=node)
