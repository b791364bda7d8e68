"""Directions find the planted one; what they read is of cases held out; a file serves the model it was made for."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from interp.errors import UserError
from interp.tools.directions import Direction, Kind, fit_direction, load_directions, project
from interp.tools.directions import save_directions as save
from interp.vlm import VLM

ROWS, WIDTH = 200, 32
AXIS = np.random.default_rng(7).normal(size=WIDTH) / np.sqrt(WIDTH)
LABELS = np.random.default_rng(1).random(ROWS) < 0.3
GROUPS = np.arange(ROWS) // 5


def states(size: float = 4.0) -> torch.Tensor:
    """White noise, and for true cases ``size`` along ``AXIS``."""
    noise = np.random.default_rng(2).normal(size=(ROWS, WIDTH))
    return torch.tensor(noise + size * LABELS[:, None] * AXIS, dtype=torch.float32)


def fit(hidden: torch.Tensor, labels: Any = LABELS, **given: Any) -> Direction:
    return fit_direction(hidden, labels, GROUPS, name="alarming", position="verdict", layer=1, **given)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_finds_the_planted_direction(kind: Kind) -> None:
    found = fit(states(), kind=kind)
    assert float(found.vector @ torch.tensor(AXIS / np.linalg.norm(AXIS)).float()) > 0.9
    assert float(found.vector.norm()) == pytest.approx(1, abs=1e-6)
    assert found.accuracy > 0.9
    assert found.auroc > 0.95
    assert found.gap == pytest.approx(4 * np.linalg.norm(AXIS), rel=0.2)
    assert (found.n, found.positives, found.groups) == (ROWS, int(LABELS.sum()), 40)
    above = project(states(), found) > found.threshold
    assert (above.numpy() == LABELS).mean() > 0.9


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_it_reads_is_held_out(kind: Kind) -> None:
    """Of labels that nothing can know, a direction in 32 dimensions knows the 200 cases it was fitted on by heart."""
    labels = np.random.default_rng(3).permutation(LABELS)
    found = fit(states(0), labels, kind=kind)
    assert abs(found.auroc - 0.5) < 0.12
    inside = project(states(0), found).numpy()
    assert inside[labels].mean() - inside[~labels].mean() > 0.3


def test_a_loud_nuisance_misleads_the_mean_difference_alone() -> None:
    """A property that half goes with the label and lies along another axis twenty times as long."""
    rng = np.random.default_rng(4)
    nuisance = np.where(rng.random(ROWS) < 0.7, LABELS, ~LABELS)
    hidden = states().clone()
    hidden[:, 0] += torch.tensor(60.0 * nuisance)
    read = {kind: fit(hidden, kind=kind).auroc for kind in get_args(Kind)}
    assert read["discriminant"] > 0.95
    assert read["mean_difference"] < 0.85
    assert fit(hidden, balance=[nuisance]).auroc > read["mean_difference"] + 0.1


def test_a_file_gives_back_what_was_saved(vlm: VLM, tmp_path: Path) -> None:
    directions = [fit(states()), fit(states(1), kind="discriminant")]
    save(tmp_path / "one.safetensors", directions, vlm=vlm)
    save(tmp_path / "two.safetensors", directions, vlm=vlm)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    for before, after in zip(directions, load_directions(tmp_path / "one.safetensors", vlm=vlm), strict=True):
        assert torch.equal(after.vector, before.vector)
        for name in ("name", "position", "layer", "kind", "threshold", "gap", "accuracy", "auroc", "n", "positives"):
            assert getattr(after, name) == getattr(before, name)


@pytest.mark.parametrize("content", [b"", b"12345678" * 4, b"older", None])
def test_a_file_of_something_else_is_refused(vlm: VLM, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "directions.safetensors"
    if content == b"older":
        save(path, [fit(states())], vlm=vlm)
        path.write_bytes(path.read_bytes().replace(b"position", b"location"))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="no directions can be read"):
        load_directions(path, vlm=vlm)


def test_a_file_of_another_model_is_refused(vlm: VLM, tmp_path: Path) -> None:
    path = tmp_path / "directions.safetensors"
    save(path, [fit(states())], vlm=vlm)
    vlm.revision = "sha256:abc"
    with pytest.raises(UserError, match=r"differs from tiny in its weights \(None, here sha256:abc\)"):
        load_directions(path, vlm=vlm)
