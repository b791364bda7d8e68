"""The options of a group: files of ``conf/<group>/``, and entries of ``conf/models.yaml`` and the like (``LISTED``)."""

from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

import conf

CONF = Path(conf.__file__).parent
LISTED = {"model": "models.yaml", "method": "methods.yaml", "judge": "judges.yaml"}  # group → file


@cache
def entries(group: str) -> dict[str, dict[str, Any]]:
    """Option → what its file in ``conf/<group>/`` would hold, of the options that have none."""
    if group not in LISTED:
        return {}
    listed = OmegaConf.to_container(OmegaConf.load(CONF / LISTED[group]))
    assert isinstance(listed, dict)
    return {str(name): node for name, node in listed.items()}


def options_of(group: str) -> list[str]:
    """The names that ``group=NAME`` takes."""
    return sorted({path.stem for path in (CONF / group).glob("*.yaml")} | set(entries(group)))


def written(group: str, name: str) -> DictConfig:
    """An option as it is written, before Hydra composes it."""
    listed = entries(group)
    node = OmegaConf.create(listed[name]) if name in listed else OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    return node


def register_entries() -> None:
    """Makes the entries known to Hydra, as if each were a file."""
    for group in LISTED:
        for name, node in entries(group).items():
            ConfigStore.instance().store(group=group, name=name, node=node)
