"""One training from dataset to checkpoint: what is learned, what is written, what is refused, what a kill does."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.collator import IGNORED, Collator
from mitigation.vrtuning.settings import Settings, total_steps
from mitigation.vrtuning.train import Marker, Trained, train
from tests import forked
from tests.families import FAMILIES
from tests.mitigation.vrtuning_job import SETTINGS, STEPS, data, run, tiny
from tests.slow import first
from tests.tiny import picture

PROMPTS = [Prompt("Is this safe?", picture(i)) for i in range(2)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """An undisturbed training of five steps."""
    return run(tmp_path_factory.mktemp("vrtuning") / "run")


def weights(adapter: Path) -> dict[str, Tensor]:
    return load_file(adapter / "adapter_model.safetensors")


@pytest.mark.long
def test_it_learns_and_leaves_a_checkpoint_alone(finished: Trained) -> None:
    assert finished.steps == len(finished.losses) == STEPS
    assert finished.losses[-1][1] < finished.losses[0][1]
    files = {str(path.relative_to(finished.adapter.parent)) for path in finished.adapter.parent.rglob("*.*")}
    names = ("README.md", "adapter_config.json", "adapter_model.safetensors", "training_rows.json", "vrtuning.json")
    assert files == {"training.json", *(f"adapter/{name}" for name in names)}


@pytest.mark.long
@pytest.mark.parametrize(("options", "tolerance"), [({"checkpointing": "on"}, 1e-5), ({"bf16": "on"}, 0.05)])
def test_what_a_gpu_would_switch_on_trains_the_same(
    finished: Trained, options: dict[str, str], tolerance: float, tmp_path: Path
) -> None:
    vlm = tiny()
    before = vlm.score(PROMPTS)
    done = train(vlm, data().dataset, replace(SETTINGS, **options), tmp_path / "run")  # type: ignore[arg-type]
    assert [loss for _, loss in done.losses] == pytest.approx([loss for _, loss in finished.losses], rel=tolerance)
    assert torch.equal(vlm.score(PROMPTS), before)


@pytest.mark.long
@pytest.mark.parametrize("family", first(["llava", "instructblip", "qwen2_vl"]))
def test_the_loss_is_the_mean_over_answer_tokens(family: str, tmp_path: Path) -> None:
    vlm = VLM(*FAMILIES[family](), name=family)
    dataset = data(2).dataset
    batch = Collator(vlm)(list(dataset))  # type: ignore[arg-type]
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = vlm.model(**batch).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    done = train(vlm, dataset, replace(SETTINGS, steps=1), tmp_path / "run")
    assert done.losses[0][1] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["sft", "dpo"])
def test_only_the_answers_tokens_are_projected_on_the_vocabulary(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, metrics and adapters are those of TRL's own head, which projects every position of the prompt."""
    head = importlib.import_module("trl.trainer.utils")._ChunkedLogProbFunction
    project, dataset = head.apply, data(6, preferences=trainer == "dpo").dataset
    positions: list[int] = []
    logs: list[dict[str, float]] = []
    monkeypatch.setattr(head, "apply", lambda *given: positions.append(len(given[0])) or project(*given))
    monkeypatch.setattr(Marker, "on_log", lambda *_, **named: logs.append(named["logs"]))
    settings = replace(SETTINGS, trainer=trainer, steps=3)
    ours = train(tiny(), dataset, settings, tmp_path / "ours")
    answers, logged = max(positions), list(logs)
    positions.clear(), logs.clear()
    monkeypatch.setattr("mitigation.vrtuning.train._score_only_answers", lambda _: None)
    trls = train(tiny(), dataset, settings, tmp_path / "trls")

    batch = Collator(tiny())(list(dataset.select(range(settings.batch_size))))
    marked = batch["completion_mask"] if trainer == "dpo" else batch["labels"] != IGNORED
    assert answers == int(marked.sum())
    assert max(positions) >= marked[:, 1:].numel() > 2 * answers
    assert [loss for _, loss in ours.losses] == pytest.approx([loss for _, loss in trls.losses], rel=1e-6)
    for mine, its in zip(logged, logs, strict=True):
        named = {name for name in its if "runtime" not in name and "per_second" not in name}
        assert {name: mine[name] for name in named} == pytest.approx({name: its[name] for name in named}, rel=1e-4)
    for name, weight in weights(trls.adapter).items():
        torch.testing.assert_close(weights(ours.adapter)[name], weight, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one(finished: Trained, tmp_path: Path) -> None:
    """Killed at step 3 and, started again, at step 5: the same number of steps, and the very same adapter."""
    out = tmp_path / "run"
    ended = forked.typed("tests.mitigation.vrtuning_job", str(out), "--die-at", "3", "5", OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    assert not (out / "adapter").exists()
    half = out / "trainer" / "checkpoint-6"  # a kill while a resume point is written leaves no mark on it
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": 6')
    done = run(out)
    assert (done.resumed_at, done.steps) == (4, STEPS)
    assert [step for step, _ in done.losses] == list(range(1, STEPS + 1))
    assert [loss for _, loss in done.losses] == pytest.approx([loss for _, loss in finished.losses])
    again = weights(done.adapter)
    for name, weight in weights(finished.adapter).items():
        torch.testing.assert_close(again[name], weight)
    assert not (out / "trainer").exists()


def test_a_finished_run_is_not_trained_again(finished: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mitigation.vrtuning.train._run", None)
    (finished.adapter.parent / "trainer").mkdir()  # as a kill between the last two acts would leave it
    done = run(finished.adapter.parent)
    assert (done.steps, done.resumed_at, done.losses) == (STEPS, STEPS, finished.losses)
    assert not (finished.adapter.parent / "trainer").exists()
    with pytest.raises(UserError, match="another training"):
        train(tiny(), data(10).dataset, SETTINGS, finished.adapter.parent)


@pytest.mark.long
def test_nan_ends_in_one_sentence_and_nothing_looks_finished(tmp_path: Path) -> None:
    vlm = tiny()
    vlm.model.lm_head.weight.data[5] = float("nan")
    with pytest.raises(UserError, match=r"loss is nan at step 1; .*learning_rate"):
        train(vlm, data().dataset, SETTINGS, tmp_path / "run")
    assert not (tmp_path / "run" / "adapter").exists()
    assert not list((tmp_path / "run" / "trainer").glob("checkpoint-*"))
    assert not any("lora" in name for name, _ in vlm.model.named_parameters())


def test_datasets_that_cannot_be_trained_on_are_refused(tmp_path: Path) -> None:
    dataset = data(3).dataset
    cases = {
        "dataset is empty": dataset.select([]),
        "no pictures": dataset.remove_columns("images"),
        "no column completion": dataset.remove_columns("completion"),
        "row 2 of the dataset has 0 pictures": dataset.map(
            lambda row, i: {"images": [] if i == 1 else row["images"]}, with_indices=True
        ),
    }
    for message, refused in cases.items():
        with pytest.raises(UserError, match=message):
            train(tiny(), refused, SETTINGS, tmp_path / "run")
    with pytest.raises(UserError, match="preferences=True"):
        train(tiny(), dataset, replace(SETTINGS, trainer="dpo"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_steps_come_from_epochs_unless_said() -> None:
    assert total_steps(Settings(steps=7), 1000) == 7
    assert total_steps(Settings(epochs=2.0, batch_size=8, accumulation=2), 100) == 13
    assert total_steps(Settings(batch_size=8), 100, processes=2) == 7
