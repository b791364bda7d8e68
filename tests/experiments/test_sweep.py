"""Sweeps end in one table."""

import json
from pathlib import Path

import pytest

from experiments.report.arms import arms_of
from experiments.report.saved_run import read_run
from tests.experiments.compose import run_of
from tests.forked import typed

pytestmark = pytest.mark.long

RULE = """
def rule(scores, step, *, strength=1.0):
    return scores if step else scores * (1 + strength)
"""


def test_a_sweep_ends_in_one_table(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RULE)
    command = ["method=file", f"method.path={tmp_path}/mine.py", "limit=12", "draws=50", f"output_root={tmp_path}/o"]
    ended = typed("experiments.run", "-m", *command, "method.settings.strength=0.5,2")
    assert ended.returncode == 0, ended.stderr
    swept = ended.stdout
    _, second = sorted((tmp_path / "o" / "study").iterdir())
    (joined,) = (tmp_path / "o" / "joined").iterdir()
    saved = read_run(joined)
    assert arms_of(saved.results, saved.metrics) == ["baseline", "strength=0.5: mine", "strength=2: mine"]
    end = swept.partition("the 2 runs of this sweep beside each other")[2]
    assert f"table: {joined}/results.csv" in end
    assert f"figure: {joined}/figures/safety.svg" in end
    assert (joined / "figures" / "safety.svg").is_file()
    assert (joined / "report.html").is_file()

    alone = run_of(*command[:-1], "++method.settings.strength=2", f"output_root={tmp_path}/alone")
    alone.task(alone)
    (folder,) = (tmp_path / "alone" / "study").iterdir()
    assert json.loads((folder / "metrics.json").read_text()) == json.loads((second / "metrics.json").read_text())
    one, other = ([row._replace(run="") for row in read_run(each).results] for each in (folder, second))
    assert one == other


def test_such_a_sweep_ends_in_a_sentence(tmp_path: Path) -> None:
    ended = typed("experiments.run", "-m", "limit=1", "limit=2", f"output_root={tmp_path}")
    assert ended.returncode == 2
    assert ended.stderr.strip().startswith("error: a sweep names limit twice")
    assert not list(tmp_path.iterdir())
