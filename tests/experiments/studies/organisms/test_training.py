"""The three recipes from the command to a checkpoint that loads, with few steps; and what each stage changes."""

from pathlib import Path

import pytest
import torch

from experiments.studies.organisms import smol
from experiments.studies.organisms.lab import Example, answer_loss, picture_seeds
from interp import Prompt, load
from interp.checkpoints.config import base_folder
from interp.errors import UserError
from tests.experiments.compose import ran, run_of
from tests.experiments.studies.organisms.test_fetch import save_base, save_parts
from tests.tiny import picture

FEW = {
    "train_organism": ["task.steps={vision: 2, perception: 2, verdict: 2}", "task.batch_size=4"],
    "train_smol_organism": ["task.steps={align: 2, see: 2, caution: 2}", "task.batch_size=2"],
    "train_thinking_organism": ["task.settings.steps=2", "task.settings.batch_size=2", "task.traces.cases=8"],
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small language model in the cache, and a small organism in place of the bundled one."""
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smol, "ORGANISMS", tmp_path)
    monkeypatch.setattr(smol, "instructions", lambda: ["Hello!", "What is a pear?"])
    save_base(base_folder())
    return save_parts(tmp_path / "smol", base_folder())


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("task", FEW)
def test_a_command_leaves_a_checkpoint_that_loads_and_its_card(task: str, tmp_path: Path) -> None:
    folder = ran(run_of(f"task={task}", *FEW[task], f"output_root={tmp_path / 'out'}")) / "checkpoint"
    vlm = load(folder)
    assert torch.isfinite(vlm.score([Prompt("Is this safe?", picture(0))])).all()
    assert not [name for name in vlm.model.state_dict() if "lora" in name]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Recipe: `experiments/studies/organisms/" in card
    assert "evidence about no real model" in card
    with pytest.raises(UserError, match=r"is not empty. Name a new folder"):
        run_of(f"task={task}", f"task.to={folder}")


def test_the_loss_is_the_mean_over_rows_of_the_mean_over_the_answers_tokens() -> None:
    vlm = load("organism:llava")
    rows = [Example("Is this safe?", "Yes."), Example("Is this safe?", "It is a knife.")]
    alone = [answer_loss(vlm, iter([row]), 1, picture_seeds("test", 0))() for row in rows]
    together = answer_loss(vlm, iter(rows), 2, picture_seeds("test", 0))()
    assert together.item() == pytest.approx(sum(one.item() for one in alone) / 2, abs=1e-5)
    answers = [*vlm.tokenizer("Yes.", add_special_tokens=False)["input_ids"], vlm.tokenizer.eos_token_id]
    prompt = vlm.encode([Prompt("Is this safe?")])["input_ids"]
    ids = torch.cat([prompt, torch.tensor([answers])], dim=1)
    with torch.no_grad():
        logs = vlm.model(input_ids=ids).logits.log_softmax(-1)[0, prompt.shape[1] - 1 : -1]
    expected = -logs[range(len(answers)), answers].mean()
    assert alone[0].item() == pytest.approx(expected.item(), abs=1e-5)
