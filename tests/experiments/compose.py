"""Configurations as the command line makes them, for tests, and the folders of their runs."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
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


def ran(run: Run) -> Path:
    """Run the task, and return the folder that was written to last."""
    run.task(run)
    return max(Path(run.output_root).glob("*/*"), key=lambda path: path.stat().st_mtime_ns)


def stopped(run: Run) -> Path:
    """Answer all cases, stop before the conclusion, and return the only folder of the run's name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("experiments.evaluation.study.Study.conclude", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.task(run)
    return only_run(run)


def lines(folder: Path, name: str = "predictions.jsonl") -> list[dict[str, Any]]:
    """Return the JSON lines of a run's file."""
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def only_run(run: Run) -> Path:
    """The folder of the one run of its name."""
    (folder,) = (Path(run.output_root) / run.name).iterdir()
    return folder
