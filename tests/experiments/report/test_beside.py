"""Published rows and the rows of a run, counted by one scorer."""

from pathlib import Path

import pytest

from experiments.metrics.refusal.leaderboard import COLUMNS
from experiments.report.build import build
from experiments.report.numbers import MISSING
from experiments.report.published_tables import leaderboard_table, own_rows
from tests.experiments.synthetic_run import metrics_of, predictions, write_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(40), benchmark="mmsafeaware")
    build(folder)
    return folder


def test_own_rows_are_counted_by_the_published_scorer(finished: Path) -> None:
    metrics = metrics_of(finished)
    for row in own_rows(metrics):
        found = metrics["arms"][row.name]["published"]["accuracy"]
        assert (row.typical, row.attack, row.overall) == (found["typical"], found["attack"], found["overall"])
        assert row.unsafe == pytest.approx((found["typical"] + found["attack"]) / 2)


def test_mossbench_has_the_leaderboard_by_its_own_convention() -> None:
    types = COLUMNS
    arm = {
        "by_type": {kind: {"benign": {"rate": 0.1, "n": 1, "n_of": 2}} for kind in types},
        "published": {f"benign:{kind}": 0.25 for kind in types[:2]},
    }
    rows = leaderboard_table({"arms": {"ours": arm}}).text.to_numpy().tolist()
    assert rows[0] == ["ours", "here", "25.0", "25.0", MISSING, MISSING]
    assert ["LLaVA-1.5-7b", "published", "18.0", "10.0", "9.0", "12.3"] in rows
