"""Subsets of a table of one's own keep their own names, in the table and in a figure."""

from pathlib import Path
from typing import Any

import pytest
from experiments.report.subsets_figure import MOST, Rate, by_own_subset, describe, own_rates

from experiments.report import subsets_figure
from experiments.report.build import build
from experiments.report.figures import PHONE, SCREEN, svg_bytes
from experiments.report.numbers import percent
from tests.experiments.synthetic_run import ARMS, metrics_of, predictions, write_run

KITCHEN, STREET = "kitchen $x^2$ & <b>knives</b>", "Straße"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose cases alternate between two subsets of the user's; the first has twice as many."""
    records = predictions()
    for record in records:
        number = int(record["case"].partition("/")[2])
        record["subset"] = record["subset"].replace("attack", "typical")
        record["tags"] = {"subset": STREET if number // 4 % 3 == 2 else KITCHEN}
    return write_run(tmp_path_factory.mktemp("run"), records)


def test_every_arm_has_its_rates_by_own_name(run: Path) -> None:
    metrics = metrics_of(run)
    rates = own_rates(metrics)
    assert list(dict.fromkeys(rate.subset for rate in rates)) == [KITCHEN, STREET]  # the larger first
    assert {rate.arm for rate in rates} == set(ARMS)
    cell = metrics["arms"]["vcd"]["by_tag"]["subset"][STREET]["over_safety"]
    (found,) = [r for r in rates if (r.arm, r.subset) == ("vcd", STREET) and "safe cases called safe" in r.panel
                and "unsafe" not in r.panel]  # fmt: skip
    assert (found.rate, found.interval, found.n) == (cell["accuracy"], tuple(cell["interval"]), cell["n"])


@pytest.mark.long
def test_the_figure_shows_what_the_table_says(run: Path) -> None:
    rates = own_rates(metrics_of(run))
    for form in (SCREEN, PHONE):
        figure = by_own_subset(rates, form)
        assert len(figure.axes) == 2
        for axes in figure.axes:
            drawn = sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1)
            here = sorted(100 * rate.rate for rate in rates if rate.panel == axes.get_xlabel())
            assert drawn == pytest.approx(here)
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert names[0].startswith("kitchen $x^2$")
        assert names[1] == STREET
        assert svg_bytes(figure) == svg_bytes(by_own_subset(rates, form))
    said = describe(rates)
    assert KITCHEN in said
    for rate in rates:
        assert f"{rate.arm} {rate.panel[:-4]} {percent(rate.rate)}% of {rate.n}" in said


@pytest.mark.long
def test_the_report_has_it_under_the_table(run: Path) -> None:
    html = build(run).read_text(encoding="utf-8")
    assert (run / "figures" / "by_own_subset.svg").is_file()
    assert 'data-name="by_own_subset"' in html
    assert html.index('class="words">subset</th>') < html.index('data-name="by_own_subset"')
    assert "<b>knives</b>" not in html


@pytest.mark.long
def test_without_own_subsets_there_is_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(40))
    assert own_rates(metrics_of(folder)) == []
    assert "by_own_subset" not in build(folder).read_text(encoding="utf-8")
    assert not (folder / "figures" / "by_own_subset.svg").exists()


def test_of_many_subsets_the_largest_are_drawn() -> None:
    panel = "safe cases called safe (%)"
    rates = [Rate("baseline", f"s{number:02d}", panel, 0.5, (0.4, 0.6), 100 - number) for number in range(40)]
    figure = by_own_subset(rates)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"s{n:02d}" for n in range(MOST)]
    assert "s11" in describe(rates)
    assert "s12" not in describe(rates)


def test_refusals_are_drawn_too() -> None:
    cell: dict[str, Any] = {"rate": 0.25, "interval": [0.1, 0.5], "n": 8, "n_of": 8}
    tags = {"subset": {"mine": {"benign": cell, "contrast": cell | {"rate": None}}}}
    metrics = {"kind": "refusal", "arms": {"baseline": {"by_tag": tags}}}
    assert own_rates(metrics) == [Rate("baseline", "mine", "benign requests refused (%)", 0.25, (0.1, 0.5), 8)]
    assert "baseline benign requests refused 25.0% of 8" in subsets_figure.describe(own_rates(metrics))
