"""A run is named by what was loaded: its name, and the beginning of its weights' hash, wherever it is mentioned."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.experiments.compose import composed, run_of
from tests.experiments.synthetic_run import metrics_of

SMALL = ("limit=6", "draws=20", "batch_size=6", "max_new_tokens=2", "method=baseline")


def finished(outputs: Path, name: str, *overrides: str) -> Path:
    run = run_of(f"output_root={outputs}", f"name={name}", *SMALL, *overrides)
    run.task(run)
    return max((outputs / name).iterdir(), key=lambda path: path.stat().st_mtime_ns)


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("model.path=/x/my-llava",), "my-llava"),
        (("model=llava_1_5_7b", "++model.path=owner/my-llava"), "my-llava"),
        (("model=llava_1_5_7b", "model.path=organism:llava"), "organism:llava"),
        (("model.path=/x/my-llava", "model.name=llava_organism"), "llava_organism"),  # given, so it is meant
        (("model=llava_1_5_7b",), "llava_1_5_7b"),
        (("model=api_vllm", "model.model=Qwen/Qwen2.5-VL-7B-Instruct"), "Qwen2.5-VL-7B-Instruct"),
        (("model=api_vllm", "model.base_url=http://127.0.0.1:9000/v1"), "api_vllm"),
    ],
)
def test_a_model_is_named_by_what_is_loaded(overrides: tuple[str, ...], name: str) -> None:
    run = run_of(*overrides)
    assert run.model.name == name
    assert run.config["model"]["name"] == name


@pytest.mark.long
def test_a_model_that_is_not_moved_continues_what_was_begun_under_its_name() -> None:
    for overrides in (("model=llava_1_5_7b", "model.dtype=float32"), ("model=api_vllm", "model.retries=1")):
        assert run_of(*overrides).config["model"] == composed(*overrides).model


@pytest.fixture(scope="module")
def two_models(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of one name with different weights."""
    root = tmp_path_factory.mktemp("two")
    one, other = root / "a" / "my-llava", root / "b" / "my-llava"
    for folder in (one, other):
        shutil.copytree(saved, folder)
    weights = load_file(other / "model.safetensors")
    name = next(name for name in weights if name.endswith("lm_head.weight") or "embed_tokens" in name)
    weights[name] = weights[name] + torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(1))
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return one, other


@pytest.fixture(scope="module")
def two_runs(two_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    outputs = tmp_path_factory.mktemp("runs")
    one, other = (finished(outputs, f"run{at}", f"model.path={path}") for at, path in enumerate(two_models))
    return one, other


def title(folder: Path) -> str:
    """What the run is to be called, from the hash in its environment.json."""
    revision = read(folder, "environment.json")["model"]["revision"].removeprefix("sha256:")
    assert len(revision) >= 8
    return f"my-llava ({revision[:8]})"


@pytest.mark.long
def test_headline_and_report_carry_the_name_and_the_hash_of_the_weights(two_runs: tuple[Path, Path]) -> None:
    for folder in two_runs:
        assert metrics_of(folder)["summary"][0].startswith(f"{title(folder)} on iconworld: ")
        assert read(folder, "environment.json")["model"]["title"] == title(folder)
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert f"How well does {title(folder)} (baseline) tell safe from unsafe" in page
        assert "llava_organism" not in page


@pytest.mark.long
def test_two_runs_of_different_weights_under_one_name_are_told_apart_in_a_join(
    two_runs: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = two_runs
    run = run_of("task=report", f"runs=[{one},{other}]", f"output_root={tmp_path}", "draws=20")
    run.task(run)
    (folder,) = (tmp_path / "joined").iterdir()
    names = [title(part) for part in two_runs]
    assert len(set(names)) == 2
    metrics = metrics_of(folder)
    assert list(metrics["arms"]) == [f"{name}: baseline" for name in names]
    assert metrics["summary"][0].startswith(f"{names[0]} and {names[1]} on iconworld: ")
    assert read(folder, "environment.json")["joined"] == dict(zip(names, map(str, two_runs), strict=True))
