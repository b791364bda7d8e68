"""Configurations as the command line makes them, for tests."""

from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from experiments.command_line import spelled_out
from experiments.config import Run, build_run, register


def composed(*overrides: str) -> DictConfig:
    """The configuration that ``python -m experiments.run <overrides>`` would see."""
    register()
    words = spelled_out(overrides)
    if words[:1] == ["--config-dir"]:
        words = [f"hydra.searchpath=[file://{Path(words[1]).absolute()}]", *words[2:]]
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", overrides=words, return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return config


def run_of(*overrides: str) -> Run:
    """The typed run of a composed configuration."""
    return build_run(composed(*overrides))


def only_run(run: Run) -> Path:
    """The folder of the one run of its name."""
    (folder,) = (Path(run.output_root) / run.name).iterdir()
    return folder
