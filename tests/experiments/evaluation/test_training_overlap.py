"""An adapter or a learned file is not evaluated on its own training rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from experiments.evaluation.validated_run import check_untrained
from experiments.types import Sample
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.tensor_file import read_rows
from interp.vlm import VLM, Prompt
from mitigation.learned.activation_steering import DirectionSteering
from mitigation.learned.direction_ablation import AblateDirection
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import abilities
from mitigation.own_file import own_method
from mitigation.vcd import VCD
from mitigation.vrtuning.data import Row, from_rows
from mitigation.vrtuning.method import VRTuning
from mitigation.vrtuning.train import train
from mitigation.wrappers import Shifted
from tests.experiments.compose import run_of
from tests.mitigation.vrtuning_job import SETTINGS
from tests.tiny import picture

CASES, TRAINED = 32, 24
ASKED = "Is this sentence safe? {}"


def shown(number: int) -> Image.Image:
    return picture(number, (64, 64))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 32 cases with a picture each; two of them share their words."""
    folder = tmp_path_factory.mktemp("table")
    for number in range(CASES):
        shown(number).save(folder / f"{number}.png")
    rows = [(f"{n}.png", f"words {n % (CASES - 1)}", ("safe", "unsafe")[n % 2]) for n in range(CASES)]
    pd.DataFrame(rows, columns=["image", "text", "label"]).to_csv(folder / "cases.csv", index_label="id")
    return folder / "cases.csv"


@pytest.fixture(scope="module")
def adapter(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter trained on the table's first 24 rows, under another question."""
    rows = [
        Row(shown(number), ASKED.format(f"words {number}"), "", ("Yes", "No")[number % 2], about=f"words {number}")
        for number in range(TRAINED)
    ]
    model = ModelConfig("tiny", str(saved), device="cpu")
    return train(model, from_rows(rows).dataset, replace(SETTINGS, steps=1), tmp_path_factory.mktemp("a") / "x").adapter


@pytest.mark.long
def test_what_was_trained_on_24_rows_is_not_evaluated_on_the_table(
    table: Path, saved: Path, adapter: Path, tmp_path: Path
) -> None:
    run = run_of(
        "benchmark=table", f"benchmark.path={table}", f"model.path={saved}", f"output_root={tmp_path}",
        "method=vrtuning", f"method.adapter={adapter}",
    )  # fmt: skip
    with pytest.raises(UserError, match=r"24 of the 32 cases are training rows of vrtuning .*evaluate on others"):
        run.task(run)
    assert not (tmp_path / run.name).exists()


def samples(edit: Callable[[Image.Image, Path], None]) -> Callable[[Path], list[Sample]]:
    def made(folder: Path) -> list[Sample]:
        found = []
        for number in range(CASES):
            path = folder / f"{number}.jpg"
            edit(shown(number), path)
            text = f"Words  {number}."
            found.append(Sample(str(number), "typical", "", "no", text, f"Safe? {text}", path, f"c{number}"))
        return found

    return made


@pytest.mark.parametrize(
    "edit",
    [
        lambda image, path: image.save(path, quality=60),
        lambda image, path: image.resize((41, 41)).save(path, quality=95),
        lambda image, path: image.resize((200, 200)).save(path),
    ],
)
def test_re_encoded_and_resized_pictures_are_known_again(
    adapter: Path, tmp_path: Path, edit: Callable[[Image.Image, Path], None]
) -> None:
    cases = samples(edit)(tmp_path)
    arms = {"plain": VCD(), "ours": Shifted(VRTuning(str(adapter)), 0.5)}
    with pytest.raises(UserError, match="24 of the 32 cases are training rows of ours"):
        check_untrained(arms, None, cases)
    assert check_untrained(arms, None, cases[TRAINED:]) == check_untrained({"plain": VCD()}, None, cases) == []


LEARNERS: list[Any] = [TruthReadout(layer=1), DirectionSteering(layer=1), AblateDirection(layer=1, by="truth")]


@pytest.mark.parametrize("learner", [*LEARNERS, None], ids=lambda one: type(one).__name__)
def test_what_is_learned_carries_its_cases(learner: Any, vlm: VLM, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def learn(vlm, prompts, safe):\n    return {'n': 1.0}\n\n\ndef ask(prompt, *, learned):\n    return prompt\n"
    )
    method = own_method(str(tmp_path / "mine.py")) if learner is None else learner
    prompts = [Prompt(f"Safe? w{i}", picture(i), key=str(i), request=f"w{i}") for i in range(24)]
    taught = method.learn(vlm, prompts, [i % 2 == 0 for i in range(24)], out=tmp_path / "x.safetensors")
    rows = read_rows(Path(abilities(taught).learned_in))
    assert len(rows.rows) == 24
    cases = [
        Sample(str(i), "typical", "", "no", f"w{i}", f"Other: w{i}", tmp_path / f"{i}.png", str(i)) for i in range(26)
    ]
    for i in range(26):
        picture(i).save(tmp_path / f"{i}.png")
    with pytest.raises(UserError, match="24 of the 26 cases are training rows of mine"):
        check_untrained({"mine": Shifted(taught, 1.0)}, None, cases)
