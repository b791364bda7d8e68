"""Configurations as the command line makes them, for tests."""

from pathlib import Path

from omegaconf import DictConfig

from experiments import config
from experiments.command_line.arguments import expand
from experiments.config import Run, build_run


def composed(*overrides: str) -> DictConfig:
    """The configuration that ``python -m experiments.run <overrides>`` would see."""
    words = expand(overrides)
    if words[:1] == ["--config-dir"]:
        words = [f"hydra.searchpath=[file://{Path(words[1]).absolute()}]", *words[2:]]
    return config.composed(words)


def run_of(*overrides: str) -> Run:
    """The typed run of a composed configuration."""
    return build_run(composed(*overrides))


def only_run(run: Run) -> Path:
    """The folder of the one run of its name."""
    (folder,) = (Path(run.output_root) / run.name).iterdir()
    return folder
