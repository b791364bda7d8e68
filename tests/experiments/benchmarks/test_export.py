import base64
import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from experiments.benchmarks.export import export_vlmevalkit
from experiments.benchmarks.iconworld import IconWorld
from interp.errors import UserError
from tests.experiments.compose import run_of


def test_the_tsv_of_vlmevalkit_has_a_row_a_case(tmp_path: Path) -> None:
    samples = [sample for sample in IconWorld().load().samples if sample.subset != "control"][:6]
    bare = replace(samples[0], id="bare", image=None, prompt='two\nlines, a\ttab and "quotes"', gold="comply")
    table = pd.read_csv(export_vlmevalkit([*samples, bare], tmp_path / "cases.tsv"), sep="\t", keep_default_na=False)
    assert list(table.columns) == ["index", "image", "question", "answer", "category", "id"]
    assert list(table["index"]) == list(range(1, 8))
    assert list(table["question"]) == [sample.prompt for sample in [*samples, bare]]
    assert list(table["answer"]) == [*(sample.gold.title() for sample in samples), "comply"]
    assert list(table["category"]) == [sample.subset for sample in [*samples, bare]]
    for sample, encoded in zip(samples, table["image"], strict=False):
        image = Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)))
        assert image.tobytes() == sample.image.render().tobytes()
    assert table["image"].iloc[-1] == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["task.format=hdf5"], "task.format=hdf5: must be one of vlmevalkit, engine_model"),
        ([], "task.to: has no value; give a new .tsv file"),
        (["task.format=engine_model"], "task.to: has no value; give a new folder"),
    ],
)
def test_the_task_says_what_it_lacks(options: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        (run := run_of("task=export", *options)).task(run)
