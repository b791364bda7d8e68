"""Both organisms from the command to checkpoint and card, with few steps and few cases."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.studies.organisms import run as training
from experiments.studies.organisms import stages
from interp import Prompt, load
from interp.checkpoints.cache import ADAPTER, EYES, base_folder
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.studies.organisms.recipes import changed
from tests.experiments.studies.organisms.test_architecture import save_base
from tests.tiny import picture
from tests.weekly import first


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair of every sentence; the three splits' results are those of the first."""
    evaluate = training.evaluate

    @cache
    def measured(*arguments: Any, **named: Any) -> Any:
        return evaluate(*arguments, **named, draws=20, per_kind=2)

    monkeypatch.setattr(training, "IconWorld", partial(IconWorld, pairs=1))
    monkeypatch.setattr(training, "evaluate", lambda vlm, split, *more, **named: measured(vlm, "test", *more, **named))


@pytest.mark.long
def test_the_second_organism_can_stay_unaligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    save_base(base_folder())
    recipe = run_of("+exp=train_smol_organism", "recipe@task.recipe=smol_unaligned").task.keywords["recipe"]  # type: ignore[attr-defined]
    assert not recipe.aligned
    recipe = changed("smol", steps=2, threads=1, batch_size=2, rank=2, images_per_thing=1, aligned=recipe.aligned)
    started = run_of("task=train_smol_organism", f"output_root={tmp_path}", "name=base")
    training.run(started, recipe=recipe, to=None)
    (folder,) = (tmp_path / "base").iterdir()
    assert {path.name for path in (folder / "training").iterdir()} == {"see.safetensors"}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "without its alignment" in card
    assert "Alignment" not in card
    assert "recipe@task.recipe=smol_unaligned" in card
    adapter = load_file(folder / "checkpoint" / "parts" / ADAPTER / "adapter_model.safetensors")
    assert not any(tensor.any() for name, tensor in adapter.items() if "lora_B" in name)
    with pytest.raises(UserError, match=r"recipe\.aligned=false: llava has no alignment to leave out"):
        changed("llava", aligned=False)


@pytest.mark.long
@pytest.mark.parametrize("organism", first(["smol", "llava"]))
def test_a_command_leaves_a_checkpoint_and_its_card(
    organism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "instructions", lambda: ["Hello!", "What is a pear?"])
    monkeypatch.setattr(stages, "worth_replaying", lambda text, *, finished: text or "Hello.")
    task = {"llava": "train_organism", "smol": "train_smol_organism"}[organism]
    recipe = changed(organism, steps=2, threads=1, batch_size=2, rank=2, images_per_thing=1)
    started = run_of(f"task={task}", f"output_root={tmp_path}", f"name={organism}")
    if organism == "smol":
        with pytest.raises(UserError, match="training starts from it"):
            training.run(started, recipe=recipe, to=None)
        save_base(base_folder())
    training.run(started, recipe=recipe, to=None)
    (folder,) = (tmp_path / organism).iterdir()
    card = (folder / "checkpoint" / "README.md").read_text(encoding="utf-8")
    assert (folder / "README.md").read_text(encoding="utf-8") == card
    assert "AUROC" in card
    assert set(json.loads((folder / "metrics.json").read_text())) == {"development", "test", "new_sentences"}
    stages_done = {path.stem for path in (folder / "training").glob("*.safetensors")}
    assert stages_done == set(recipe.steps)
    vlm = load(folder / "checkpoint")
    assert torch.isfinite(vlm.score([Prompt("Is this safe?", picture(0))])).all()
    if organism == "smol":
        assert (folder / "checkpoint" / "parts" / EYES).is_file()
        assert (folder / "checkpoint" / "parts" / ADAPTER / "adapter_model.safetensors").is_file()
    with pytest.raises(UserError, match="is not empty"):
        training.run(started, recipe=recipe, to=str(folder / "checkpoint"))
