"""Published rows and the run's own beside each other, on the page and in the figure."""

import json
from pathlib import Path

import pytest
from experiments.metrics.refusal.leaderboard import COLUMNS

from experiments.benchmarks.published import PublishedRow
from experiments.report import figures
from experiments.report.build import build
from experiments.report.numbers import MISSING, fixed
from experiments.report.published_tables import leaderboard_table, own_rows
from tests.experiments.synthetic_run import ARMS, metrics_of, predictions, write_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(40), benchmark="mmsafeaware")
    build(folder)
    return folder


def section(folder: Path) -> list[str]:
    """The rows of the section of published rows."""
    page = (folder / "report.html").read_text()
    return page.partition('<section id="published">')[2].partition("</section>")[0].split("<tr")


@pytest.mark.long
def test_the_arms_stand_first_and_the_published_rows_keep_the_numbers_of_the_figure(finished: Path) -> None:
    here = [">here<" in row for row in section(finished)[2:]]
    assert here[: len(ARMS)] == [True] * len(ARMS)
    assert not any(here[len(ARMS) :])
    assert "1. GPT-4V<" in section(finished)[2 + len(ARMS)]


def test_own_rows_are_counted_by_the_published_scorer(finished: Path) -> None:
    metrics = metrics_of(finished)
    for row in own_rows(metrics):
        found = metrics["arms"][row.name]["published"]["accuracy"]
        assert (row.typical, row.attack, row.overall) == (found["typical"], found["attack"], found["overall"])
        assert row.unsafe == pytest.approx((found["typical"] + found["attack"]) / 2)


def test_an_arm_without_a_published_score_has_no_row(finished: Path) -> None:
    metrics = metrics_of(finished)
    name = next(iter(metrics["arms"]))
    metrics["arms"][name]["published"]["accuracy"]["attack"] = None
    assert name not in [row.name for row in own_rows(metrics)]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_row_at_the_ceiling_has_no_d_prime(rate: float) -> None:
    row = PublishedRow("here", "arm", rate, rate, rate, 0.5, 0.5)
    assert fixed(row.d_prime, 2) == fixed(row.criterion, 2) == MISSING


def test_mossbench_has_the_leaderboard_by_its_own_convention() -> None:
    types = COLUMNS
    arm = {
        "by_type": {kind: {"benign": {"rate": 0.1, "n": 1, "n_of": 2}} for kind in types},
        "published": {f"benign:{kind}": 0.25 for kind in types[:2]},
    }
    rows = leaderboard_table({"arms": {"ours": arm}}).text.to_numpy().tolist()
    assert rows[0] == ["ours", "here", "25.0", "25.0", MISSING, MISSING]
    assert ["LLaVA-1.5-7b", "published", "18.0", "10.0", "9.0", "12.3"] in rows


def test_an_arm_that_others_cover_is_still_seen(finished: Path) -> None:
    metrics = json.loads((finished / "metrics.json").read_text())
    for arm in metrics["arms"].values():
        arm["accuracy"] |= {"unsafe": 0.5, "over_safety": 0.5}
    drawn = figures.trade_off(metrics).axes[0].lines
    sizes = [line.get_markersize() for line in drawn if line.get_marker() in figures.MARKERS]
    assert len(sizes) == len(ARMS)
    assert sizes == sorted(set(sizes), reverse=True)
