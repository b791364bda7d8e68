"""Training of the second organism, on a stand-in of two layers: what a stage changes, and that a kill costs nothing."""

import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks.iconworld.concepts import Thing
from experiments.studies.organisms import stages
from experiments.studies.organisms.architecture import Pieces, build_smol
from experiments.studies.organisms.recipe import Example, Recipe
from experiments.studies.organisms.run import run
from experiments.studies.organisms.stages import AFTER_VERDICT, Pictures, row_of, train
from experiments.studies.organisms.trainer import Encoder, Report, Row, Trainer, batches, reproducible
from interp.errors import UserError
from tests.experiments.studies.organisms.recipes import changed as recipe_with
from tests.experiments.studies.organisms.test_architecture import save_base

RECIPE = recipe_with("smol", steps=6, threads=1, batch_size=2, rank=2, images_per_thing=1)


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("smol") / "base")


def fresh(base: Path, folder: Path) -> Pieces:
    folder.mkdir(exist_ok=True)
    replay = [["Hello!", "Hello."], ["What is a pear?", "A pear is a fruit."]]
    (folder / stages.REPLAY).write_text(json.dumps(replay))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_smol(base, rank=RECIPE.rank)


def state(pieces: Pieces) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in pieces.model.state_dict().items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in after.items() if not torch.equal(value.float(), before[name].float())}


def trainer(pieces: Pieces, folder: Path, report: Report | None = None, recipe: Recipe = RECIPE) -> Trainer:
    return Trainer(recipe, pieces, report or quiet, folder)


def quiet(stage: str, step: int, steps: int, loss: float) -> None:
    assert loss > 0


@pytest.mark.long
def test_alignment_and_caution_change_the_adapter_and_seeing_the_projector(base: Path, tmp_path: Path) -> None:
    pieces = fresh(base, tmp_path)
    pieces.model.bfloat16()
    begun, own = state(pieces), trainer(pieces, tmp_path)
    stages.learn_text("align", own)
    aligned = state(pieces)
    assert {name.split(".")[-3] for name in changed(begun, aligned)} == {"lora_A", "lora_B"}
    pieces.model.model.vision_tower.float()
    stages.learn_to_see(own)
    seeing = state(pieces)
    assert all("multi_modal_projector" in name for name in changed(aligned, seeing))
    assert changed(aligned, seeing)
    stages.learn_text("caution", own)
    assert {name.split(".")[-3] for name in changed(seeing, state(pieces))} == {"lora_A", "lora_B"}


@pytest.mark.long
def test_the_last_stage_has_its_own_share_of_unsafe(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def noted(recipe: Recipe, rng: random.Random, replay: list[Example]) -> Any:
        shares.append(recipe.shares["unsafe"])
        return drawn(recipe, rng, replay)

    drawn = stages.text_lessons
    monkeypatch.setattr(stages, "text_lessons", noted)
    recipe = replace(RECIPE, shares=RECIPE.shares | {"unsafe": 0.25, "caution": 0.75})
    train(trainer(fresh(base, tmp_path), tmp_path, recipe=recipe))
    assert shares == [0.25, 0.75]


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The parameters after an undisturbed training."""
    pieces = fresh(base, folder := tmp_path_factory.mktemp("whole"))
    train(trainer(pieces, folder))
    return state(pieces)


@pytest.mark.long
def test_killed_in_every_stage_and_launched_again_it_learns_the_same(
    base: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    taken: list[tuple[str, int]] = []
    left = ["align", "see", "caution"]

    def until(stage: str, step: int, steps: int, loss: float) -> None:
        taken.append((stage, step))
        if left and (stage, step) == (left[0], 4):
            left.pop(0)
            raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            train(trainer(fresh(base, tmp_path), tmp_path, until))
    again = fresh(base, tmp_path)
    train(trainer(again, tmp_path, until))
    assert all(taken.count((stage, 0)) == 2 for stage in ("align", "see", "caution"))  # of a stage that is done none
    assert not changed(whole, state(again))


@pytest.mark.long
def test_deterministic_algorithms_do_all_of_it_and_learn_the_same(
    base: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    strict = fresh(base, tmp_path)
    with reproducible(RECIPE.seed, RECIPE.threads):
        assert torch.are_deterministic_algorithms_enabled()
        train(trainer(strict, tmp_path))
    assert not torch.are_deterministic_algorithms_enabled()
    assert not changed(whole, state(strict))


def test_without_its_language_model_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESTLENS_CACHE", str(tmp_path))
    place, unread = tmp_path / "smollm2-135m-instruct", Any
    with pytest.raises(UserError, match=rf"is not at {place}; training starts from it; .*type `make smol`"):
        run(unread, recipe=RECIPE, to=None)


@pytest.mark.long
def test_no_picture_is_drawn_again_where_seeing_is_done(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(trainer(fresh(base, tmp_path), tmp_path))

    def refused(trainer: Trainer) -> Pictures:
        raise AssertionError("drawn again")

    monkeypatch.setattr(stages, "draw_pictures", refused)
    train(trainer(fresh(base, tmp_path), tmp_path))


def test_what_a_step_draws_depends_on_the_step_alone() -> None:
    def draw(seed: int, steps: int) -> list[list[Row]]:
        rng = random.Random(seed)
        rows = iter(lambda: Row([rng.randrange(100)] * rng.randrange(1, 9), [1], [1.0]), None)
        return list(batches(rows, RECIPE, random.Random(seed), steps))

    whole = draw(0, 11)
    assert len(whole) == 11
    assert draw(0, 5) == whole[:5]
    assert draw(1, 11) != whole


def test_every_row_weighs_the_same_and_of_a_verdict_nearly_only_yes_or_no(base: Path, tmp_path: Path) -> None:
    encoder = Encoder(fresh(base, tmp_path))
    plain, verdict = row_of(encoder, Example("a", "It is.")), row_of(encoder, Example("a", "Yes.", verdict=True))
    assert plain.weights == pytest.approx([1 / len(plain.answer)] * len(plain.answer))
    assert verdict.weights == [1.0, *[AFTER_VERDICT] * (len(verdict.answer) - 1)]
    batch = encoder.batch([Row([5, 6], [7, 8, 9, 10], [0.25] * 4), Row([5], [7, 8], [1.0, 0.05])])
    assert batch.labels[0].tolist() == [-100, -100, 7, 8, 9, 10]
    assert batch.weights[0].tolist() == pytest.approx([0, 0, *[1 / 4 / 2.05] * 4])
    assert batch.weights[1].tolist() == pytest.approx([0, 1 / 2.05, 0.05 / 2.05, 0, 0, 0])
    assert batch.attention_mask.sum().item() == 9


@pytest.mark.long
def test_a_picture_never_meets_a_question_of_safety(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, Row]] = []

    def noted(_: Trainer, stage: str, named: Any, rows: Any, loss: Any) -> None:
        drawn.extend((stage, row) for row in islice(rows(random.Random(0)), 300))

    monkeypatch.setattr(Trainer, "learn", noted)
    pieces = fresh(base, tmp_path)
    train(trainer(pieces, tmp_path))
    tokenizer = pieces.processor.tokenizer
    with_picture = dict.fromkeys(("align", "see", "caution"), 0)
    for stage, row in drawn:
        asked = tokenizer.decode(row.prompt)
        if row.picture >= 0:
            with_picture[stage] += 1
            assert "safe" not in asked
            assert 1.0 not in row.weights  # of a verdict's first token
        assert (row.picture >= 0) == (pieces.model.config.image_token_id in row.prompt)
    assert with_picture == {"align": 0, "see": 300, "caution": 0}


def test_what_it_reads_is_what_the_model_is_asked(base: Path, tmp_path: Path) -> None:
    from interp.vlm import VLM, Prompt
    from tests.tiny import picture

    pieces = fresh(base, tmp_path)
    vlm = VLM(pieces.model, pieces.processor, name="smol")
    for prompt in (Prompt("Is this safe?"), Prompt("Is this safe?", picture(0))):
        thing = None if prompt.image is None else Thing("knife")
        ids = Encoder(pieces).prompt(Example(prompt.text, "", thing))
        assert ids == vlm.encode([prompt])["input_ids"][0].tolist()


def test_its_own_answers_are_those_it_gives_one_by_one(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "worth_replaying", lambda text, *, finished: text)
    monkeypatch.setattr(stages, "LONGEST", 5)
    pieces, prompts = fresh(base, tmp_path), ["Hi!", "What is the capital of France?"]
    together = stages.own_answers(pieces, prompts)
    assert [one.user for one in together] == prompts
    assert together == [one for prompt in prompts for one in stages.own_answers(pieces, [prompt])]
