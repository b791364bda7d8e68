"""Families whose published processors have no chat template: the error names the model option that has one."""

import json
from pathlib import Path

import pytest
import yaml

from experiments.evaluation import study
from interp.errors import UserError
from interp.families import PRESETS
from interp.loading import load
from tests import families
from tests.conftest import REPOSITORY
from tests.experiments.compose import only_run, run_of

SMALL = {"idefics": families.idefics, "instructblip": families.instructblip, "paligemma": families.paligemma2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A local folder of each such family, as published: without a template."""
    root = tmp_path_factory.mktemp("models")
    for name, made in SMALL.items():
        model, processor = made()
        processor.chat_template = None
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    return {name: root / name for name in SMALL}


def test_every_preset_with_a_template_is_named() -> None:
    models = yaml.safe_load((REPOSITORY / "conf" / "models.yaml").read_text())
    assert sorted(name for name, one in models.items() if one.get("chat_template")) == sorted(PRESETS.values())
    assert SMALL.keys() == PRESETS.keys()


@pytest.mark.parametrize("family", SMALL)
def test_the_error_names_the_preset(family: str, folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="has no chat template") as refused:
        load(folders[family])
    assert f"model={PRESETS[family]} model.path={folders[family]} has one" in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize("family", SMALL)
def test_the_named_command_answers_from_a_local_folder(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    run = run_of(
        "method=prompt", f"model={PRESETS[family]}", f"model.path={folders[family]}", "limit=2", "max_new_tokens=2",
        f"output_root={tmp_path}",
    )  # fmt: skip
    with study.open_study(run) as opened:
        opened.answer_all()
    answers = (only_run(run) / "predictions.jsonl").read_text().splitlines()
    assert len(answers) == 4
    assert {json.loads(answer)["status"] for answer in answers} <= {"answered", "truncated"}
