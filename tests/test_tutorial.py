"""The tutorial runs from a fresh start, in two minutes of CPU, and shows what it was saved with."""

import base64
import io
import json
import os
import re
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY

TUTORIAL = REPOSITORY / "docs" / "tutorial.ipynb"
NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?")


def told(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell printed, without its numbers' digits and spaces, and the kinds of picture."""
    printed = ["".join(one.get("text", "")) for one in outputs]
    kinds = [kind for one in outputs for kind in one.get("data", ())]
    return ["".join(NUMBER.sub("n", text).split()) for text in printed] + kinds


@pytest.mark.slow
def test_every_cell_runs_and_its_figures_show_something() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-W", "ignore", "-m", "tests.notebook", str(TUTORIAL)]
    environment = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 2 * 120  # two cores for two minutes
    outputs = [json.loads(line) for line in ended.stdout.splitlines()]
    saved = [cell for cell in json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [told(found) for found in outputs] == [told(cell["outputs"]) for cell in saved]
    figures = [one["data"]["image/png"] for found in outputs for one in found if "image/png" in one.get("data", ())]
    assert len(figures) >= 7
    for figure in figures:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB"))
        assert pixels.std() > 10


def test_the_tutorial_is_a_notebook_with_its_outputs() -> None:
    book = json.loads(TUTORIAL.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
